"""Payloads that a compressor once wrote are written and read the same."""

from functools import partial
from pathlib import Path

import pytest

from gradwire import registry
from gradwire.errors import WireError
from tests.cases import run_all, together
from tests.golden import freeze as golden

FOLDER = Path(__file__).parent
NAMES = registry.names("compressors")


@together
@pytest.mark.parametrize("name", NAMES)
def test_every_compressor_has_frozen_bytes_of_its_default_parameters(name):
    default, cases = registry.build("compressors", name), golden.load(FOLDER / f"{name}.json")
    frozen = [case["shape"] for case in cases if registry.from_config("compressors", case["config"]) == default]
    assert len(frozen) >= 3, f"run: python tests/golden/freeze.py {name}"


def test_every_file_belongs_to_a_compressor():
    assert {path.stem for path in FOLDER.glob("*.json")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_frozen_bytes_are_written_and_read_the_same(name):
    cases = golden.load(FOLDER / f"{name}.json")
    assert cases, f"run: python tests/golden/freeze.py {name}"
    run_all((f"{name}-{index}", partial(golden.check_case, case)) for index, case in enumerate(cases))


@together
@pytest.mark.parametrize("name", NAMES)
def test_a_flipped_bit_is_noticed(name):
    case = dict(next(c for c in golden.load(FOLDER / f"{name}.json") if c["shape"] == [40]))
    frozen = bytearray.fromhex(case["payload"])
    frozen[3] ^= 0x41
    case["payload"] = frozen.hex()
    with pytest.raises((AssertionError, WireError)):
        golden.check_case(case)


def test_freezing_again_changes_nothing(tmp_path):
    text = (FOLDER / "twobit.json").read_text()
    (tmp_path / "twobit.json").write_text(text)
    assert golden.freeze(tmp_path, "twobit") == 0
    assert golden.freeze(tmp_path, "twobit", replace=True) == len(golden.load(FOLDER / "twobit.json"))
    assert (tmp_path / "twobit.json").read_text() == text
