"""Frozen payloads: bytes that a method once wrote must be written and read the same for ever.

A file ``<name>.json`` holds a list of cases: a configuration, a shape, the elements of x, a key, and what came of
them, the payload in hexadecimal and the decoded elements. Elements are a list, or an object from index to element
where most are zero; JSON's numbers hold every float32 exactly. To freeze another case, append one without payload and
run ``python tests/golden/freeze.py NAME... [--replace]``; a payload that is there already is only replaced on request,
and that is a change of the wire format.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.testing._expect import decode, encode, expect, same
from gradwire.vocabulary import Key

Case = dict[str, Any]


def load(path: Path) -> list[Case]:
    """Read the cases of a file; none if it does not exist."""
    cases: list[Case] = json.loads(path.read_text()) if path.exists() else []
    return cases


def variants(folder: Path, name: str) -> list[Compressor]:
    """List the compressor with its default parameters and with each frozen configuration, every one once."""
    default: Compressor = registry.build("compressors", name)
    frozen = [registry.from_config("compressors", case["config"]) for case in load(folder / f"{name}.json")]
    return list(dict.fromkeys([default, *frozen]))


def check_case(case: Case) -> None:
    """Check that encoding gives the frozen bytes, and that these decode to the frozen elements, bit for bit.

    Where a method multiplies matrices the last bits belong to the BLAS of the machine: the numbers of one that is not
    ``portable`` may differ by 1e-5 of the largest.
    """
    compressor, x, key = _given(case)
    buffer, payload = encode(compressor, x, key)
    frozen = torch.frombuffer(bytearray.fromhex(case["payload"]) or bytearray(8), dtype=torch.uint8)
    frozen_payload = compressor.layout(x.shape).views(frozen[: buffer.numel()])
    decoded, expected = decode(compressor, frozen_payload, x), _elements(case["decoded"], case["shape"])
    if not capabilities.portable(compressor):
        # Bytes may be numbers inside; what they decode to tells.
        fields = [pair for pair in zip(payload, frozen_payload, strict=True) if pair[0].dtype != torch.uint8]
        for now, then in [*fields, (decoded, expected), (decode(compressor, payload, x), expected)]:
            expect(_close(now, then), compressor, f"gives numbers far from those frozen in shape {case['shape']}")
        return
    written = _blank_unused(compressor, buffer, x).numpy().tobytes().hex()
    expect(written == case["payload"], compressor, f"encodes shape {case['shape']} to new bytes")
    expect(same(decoded + 0.0, expected + 0.0), compressor, f"decodes the frozen bytes of shape {case['shape']} anew")


def freeze(folder: Path, name: str, *, replace: bool = False) -> int:
    """Add missing cases to ``<name>.json``; a file that does not exist starts with the default parameters.

    Args:
        folder: folder of the files.
        name: name of a registered compressor.
        replace: compute every payload anew: a change of the wire format.

    Returns:
        The number of cases that were written.
    """
    path = folder / f"{name}.json"
    cases = load(path) or _first_cases(registry.build("compressors", name))
    changed = [case for case in cases if replace or "payload" not in case]
    for case in changed:
        compressor, x, key = _given(case)
        buffer, payload = encode(compressor, x, key)
        case["payload"] = _blank_unused(compressor, buffer, x).numpy().tobytes().hex()
        case["decoded"] = _plain(decode(compressor, payload, x))
    if changed:
        path.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
    return len(changed)


def _blank_unused(compressor: Compressor, buffer: Tensor, x: Tensor) -> Tensor:
    """Zero the bytes of a payload of variable size that have no meaning."""
    layout = compressor.layout(x.shape)
    if not compressor.fixed_size:
        buffer[layout.cut(int(layout.views(buffer)[0])).nbytes :] = 0
    return buffer


def _given(case: Case) -> tuple[Compressor, Tensor, Key]:
    compressor: Compressor = registry.from_config("compressors", case["config"])
    return compressor, _elements(case["x"], case["shape"]), Key(**case["key"])


def _first_cases(compressor: Compressor) -> list[Case]:
    key, config = {"seed": 1, "step": 2, "tensor": 3}, compressor.to_config()
    shapes: list[list[int]] = [[0], [1], [40], [8, 6]]
    return [{"config": config, "shape": shape, "x": _plain(_pattern(shape)), "key": key} for shape in shapes]


def _pattern(shape: list[int]) -> Tensor:
    numbers = torch.arange(math.prod(shape))
    return ((numbers * 37 % 101 - 50) / 32).view(shape)


def _plain(x: Tensor) -> list[float] | dict[str, float]:
    flat: list[float] = x.reshape(-1).tolist()
    filled = {str(index): value for index, value in enumerate(flat) if value}
    return filled if len(filled) < len(flat) // 4 else flat


def _elements(plain: list[float] | dict[str, float], shape: list[int]) -> Tensor:
    if isinstance(plain, list):
        return torch.tensor(plain, dtype=torch.float32).view(shape)
    x = torch.zeros(math.prod(shape))
    for index, value in plain.items():
        x[int(index)] = value
    return x.view(shape)


def _close(a: Tensor, b: Tensor) -> bool:
    return a.numel() == 0 or bool((a - b).abs().amax() <= 1e-5 * b.abs().amax())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Freeze payloads.")
    parser.add_argument("names", nargs="+", metavar="NAME", help="registered compressors")
    parser.add_argument("--replace", action="store_true", help="overwrite frozen payloads: a change of the wire format")
    arguments = parser.parse_args()
    for name in arguments.names:
        count = freeze(Path(__file__).parent, name, replace=arguments.replace)
        print(f"{name}: {count} cases frozen")
