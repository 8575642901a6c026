import math
import re

import pytest
import torch

from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.contrib.compressors.ternary.strom import Strom
from gradwire.errors import ConfigError, WireError
from gradwire.testing.inputs import gaussian
from gradwire.vocabulary import Key


def fed(code, grad, residual):
    payload = code.layout(grad.shape).views(torch.empty(code.layout(grad.shape).nbytes, dtype=torch.uint8))
    code.encode_feedback(grad, residual, payload, {}, Key())
    return payload


@pytest.mark.parametrize("coding", ["gaps", "words"])
def test_the_worked_example(coding):
    code, residual, out = Strom(1.0, coding), torch.tensor([0.5, -1.2, 2.7]), torch.zeros(3)
    code.add_decoded(fed(code, torch.zeros(3), residual), out)
    assert out.tolist() == [0.0, -1.0, 1.0]
    assert torch.allclose(residual, torch.tensor([0.5, -0.2, 1.7]))


def test_the_comparison_is_strict_and_that_of_twobit_is_not():
    x = torch.tensor([0.25, -0.25, math.nextafter(0.25, 1), 0.0])
    x[2] = torch.nextafter(torch.tensor(0.25), torch.tensor(1.0))
    assert Strom(0.25).decompress(Strom(0.25).compress(x), (4,)).tolist() == [0.0, 0.0, 0.25, 0.0]
    assert TwoBit(0.25).decompress(TwoBit(0.25).compress(x), (4,)).tolist() == [0.25, -0.25, 0.25, 0.0]


def test_the_words_are_twice_the_index_plus_one_where_positive():
    x = torch.zeros(300)
    x[[5, 200]] = torch.tensor([-2.0, 2.0])
    buffer = Strom(1.0, "words").compress(x)
    assert buffer[:4].view(torch.int32).item() == 10
    assert bytes(buffer[4:14].tolist()) == bytes([255, 2]) + (10).to_bytes(4, "little") + (401).to_bytes(4, "little")
    assert not bool(buffer[14:].any())


def test_nothing_is_sent_where_nothing_fires():
    for coding in ("gaps", "words"):
        buffer = Strom(1.0, coding).compress(torch.zeros(1000))
        assert buffer[:4].view(torch.int32).item() == 2


def test_an_element_drains_by_its_threshold_in_a_step():
    code, residual, total = Strom(1.0), torch.zeros(50), torch.zeros(50)
    for step in range(30):
        grad = gaussian(50, seed=step) * 0.5
        before = residual + grad
        code.add_decoded(fed(code, grad, residual), total)
        assert bool(((before - residual).abs() <= 1.0).all())
    assert torch.allclose(total + residual, sum(gaussian(50, seed=s) * 0.5 for s in range(30)), atol=1e-4)


def test_words_take_32_bits_for_each_that_is_sent():
    x = gaussian(5000)
    k = int((x.abs() > 2.5).sum())
    assert 0 < k < 128
    used = Strom(2.5, "words").compress(x)[:4].view(torch.int32).item()
    assert used == 2 + 4 * k


def test_a_stream_in_another_form_is_refused():
    x = gaussian(500)
    with pytest.raises(WireError, match=r"strom stream of .* bytes is not as written"):
        Strom(2.0).decompress(Strom(2.0, "words").compress(x), (500,))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"threshold": 0}, "Strom.threshold must be a finite number > 0 in float32, or 'auto', got 0"),
        ({"threshold": math.nan}, "Strom.threshold must be a finite number > 0 in float32, or 'auto', got nan"),
        ({"coding": "huffman"}, "Strom.coding must be 'gaps' or 'words', got 'huffman'"),
    ],
)
def test_bad_parameters(params, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        Strom(**params)
