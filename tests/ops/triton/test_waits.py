"""The number of times that the host waits for a GPU: once for the sizes of a bucket, and in encodes and decodes as the
page says."""

import re
from pathlib import Path

import pytest

from gradwire import registry
from gradwire.compressors import capabilities
from tests.ops.triton import kernel_process

PAGE = Path(__file__).parents[3] / "docs" / "benchmarks.md"
VARIABLE = [name for name in registry.names("compressors") if not registry.build("compressors", name).fixed_size]
SHAPES = [(60, 100), (3000,), (7, 11, 13), (2000,)]


def told() -> dict[str, tuple[int, int]]:
    """The table of the page."""
    text = PAGE.read_text()
    table = text[text.index("<!-- waits -->") : text.index("<!-- end of waits -->")]
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| (\d+) \|$", table, re.MULTILINE)
    return {name: (int(encode), int(decode)) for name, encode, decode in rows}


def test_the_page_names_every_method_of_variable_size() -> None:
    assert sorted(told()) == VARIABLE


@pytest.mark.parametrize("name", VARIABLE)
def test_the_page_says_how_often_the_host_waits(interpreter, name: str) -> None:
    encode, decode = interpreter.submit(kernel_process.waits_of, name).result()
    # One of a decode is the size, which the host has read of all tensors together.
    known = capabilities.used_on_host(registry.build("compressors", name))
    assert (len(encode), len(decode) - known) == told()[name], (encode, decode)


@pytest.mark.parametrize("name", [name for name, waits in told().items() if waits == (0, 0)])
def test_the_sizes_of_all_tensors_are_read_at_once(interpreter, name: str) -> None:
    seen = interpreter.submit(kernel_process.waits_of_exchange, name, SHAPES).result()
    assert [each.split(":")[0] for each in seen] == ["tolist at _variable.py"]
