"""docs/wire.md says all that another parser needs: here is one, written from the page, without gradwire or torch."""

import importlib
import json
import pkgutil
import re
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.compressors.casts.bf16 import BF16
from gradwire.compressors.levels.qsgd import QSGD
from gradwire.compressors.lowrank.powersgd import PowerSGD
from gradwire.compressors.sparse.topk import TopK
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.compressors.wrappers.compose import compose
from gradwire.contrib.compressors.sparse.randomk import RandomK
from gradwire.contrib.compressors.ternary.strom import Strom
from gradwire.contrib.compressors.wrappers.entropy import Entropy
from gradwire.testing.inputs import gaussian
from gradwire.vocabulary import Key
from gradwire.wire import Packing, sent_nbytes
from tests.cases import together
from tests.golden import freeze as golden
from tests.wire import parsers
from tests.wire.parsers import topk, twobit

PAGE = Path(__file__).parents[2] / "docs" / "wire.md"
SECTIONS = sorted(PAGE.with_name("methods").glob("*.md"))
HEAD = r"^\| compressor \| fields, in order \| decoded element \|\n.*\n"
PARSERS = {module.name for module in pkgutil.iter_modules(parsers.__path__)}


def parser_of(name):
    """The parser of a payload: among the others, or beside the tests of a method whose section has its row."""
    module = f"tests.wire.parsers.{name}" if name in PARSERS else f"tests.compressors.test_{name}"
    return importlib.import_module(module).parse


def parse(config, shape, payload: bytes) -> np.ndarray:
    decoded = parser_of(config["name"])(payload, config, shape)
    return np.asarray(decoded, dtype=np.float32).reshape(shape)


def count(shape):
    return int(np.prod(shape, dtype=np.int64))


GOLDEN = Path(__file__).parents[1] / "golden"
VARIANTS = [variant for name in registry.names("compressors") for variant in golden.variants(GOLDEN, name)]
CASES = [
    (TwoBit(threshold=0.25), (37,)),
    (TopK(ratio=0.0001), (300_000,)),
    (PowerSGD(rank=2), (6, 3, 5)),
    (Entropy(), (1500,)),
    *[(Entropy(TwoBit(threshold=2.0), coder), (3000,)) for coder in ("rans", "huffman")],
    *[(variant, shape) for variant in VARIANTS for shape in ((41,), (10, 100))],
    (compose(TopK(0.1, indices="rice"), QSGD(bits=4)), (30, 31)),
    (compose(TopK(0.07), BF16()), (30, 31)),
    (compose(RandomK(0.1, run=3), QSGD(bits=2, scaled=True)), (29, 31)),
    (RandomK(0.2, run=7), (9, 11)),
    *[(TwoBit(t, "adaptive"), (3, 700)) for t in (0.1, 1.0, 1.5, 3.0, 9.0)],
    *[(Strom(t, "words"), (3, 700)) for t in (0.1, 3.0, 9.0)],
    (TopK(0.3, "bfloat16", "rice"), (7, 11)),
    (TopK(0.01, "float16", "auto"), (300_000,)),
]


@together
@pytest.mark.parametrize(("compressor", "shape"), CASES, ids=str)
def test_a_parser_written_from_the_page(compressor, shape):
    payload = compressor.compress(gaussian(count(shape)).view(shape))
    ours = compressor.decompress(payload, shape).numpy()
    travels = payload[: sent_nbytes(compressor, compressor.layout(shape), payload)]
    theirs = parse(json.loads(json.dumps(compressor.to_config())), shape, travels.numpy().tobytes())
    exact = capabilities.portable(compressor)  # A sum of products depends on its order.
    np.testing.assert_allclose(theirs, ours, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-6)


def test_every_registered_compressor_is_on_the_page():
    rows = re.findall(r"^\| `(\w+)` \|", PAGE.read_text().split("## Payloads")[1], re.MULTILINE)
    assert set(rows) == PARSERS
    for page in SECTIONS:
        rows += re.findall(HEAD + r"\| `(\w+)` \|", page.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(registry.names("compressors"))


def test_the_worked_example():
    block = re.search(r"### Example.*?```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    hex_pairs = [re.match(r"(?:[0-9a-f]{2} )+", line + " ") for line in block[1].splitlines()]
    data = bytes.fromhex("".join(pairs[0] for pairs in hex_pairs))
    code = TwoBit(threshold=0.5)
    packing = Packing((code.layout((3,)),))
    buffer = torch.zeros(packing.nbytes, dtype=torch.uint8)
    code.encode(torch.tensor([0.6, -0.5, 0.1]), packing.payload(buffer, 0), {}, Key())
    assert data == buffer.numpy().tobytes()
    np.testing.assert_array_equal(parse(code.to_config(), (3,), data[8:12]), np.float32([0.5, -0.5, 0.0]))


def test_the_message_of_the_page():
    """Status, then payloads at multiples of 8, read with nothing but offsets."""
    codes = [TwoBit(threshold=0.5), TopK(ratio=0.5)]
    packing = Packing(tuple(code.layout((5,)) for code in codes))
    buffer = torch.zeros(packing.nbytes, dtype=torch.uint8)
    packing.status(buffer).fill_(1)
    for i, code in enumerate(codes):
        code.encode(gaussian(5), packing.payload(buffer, i), {}, Key())
    data = buffer.numpy().tobytes()
    assert struct.unpack_from("<i", data) == (1,)
    np.testing.assert_array_equal(
        twobit.parse(data[8:16], {"threshold": 0.5}, [5]),
        codes[0].decompress(codes[0].compress(gaussian(5)), (5,)),
    )
    np.testing.assert_array_equal(
        topk.parse(data[16:38], {"ratio": 0.5}, [5]), codes[1].decompress(codes[1].compress(gaussian(5)), (5,))
    )
    assert len(data) == 40
