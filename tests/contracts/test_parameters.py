"""Every parameter of every registered class: a wrong value is refused by name, a scalar of numpy's is Python's."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest

from gradwire import registry
from gradwire.compressors.sparse.topk import TopK
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.errors import ConfigError

CLASSES = [
    registry.find(kind, name) for kind in ("compressors", "memory", "strategies") for name in registry.names(kind)
]
PARAMETERS = [
    pytest.param(cls, field, id=f"{cls.__name__}.{field.name}")
    for cls in CLASSES
    for field in dataclasses.fields(cls)
    if field.init
]
OUTSIDE = (-(10**12), -1e30)
WRONG = (object(), "nonsense", [1], math.nan, math.inf, TopK, dict)


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _needed(cls: Any) -> dict[str, Any]:
    """A method for each field that has no default."""
    fields = [field for field in dataclasses.fields(cls) if field.init]
    return {field.name: TwoBit() for field in fields if _default(field) is dataclasses.MISSING}


def _wrong(cls: Any, field: dataclasses.Field[Any]) -> list[Any]:
    """Values that no parameter of this type may have; any finite number is a threshold of signs."""
    kind = str(field.type)
    values = [*WRONG, *(() if (cls.__name__, field.name) == ("OneBit", "threshold") else OUTSIDE)]
    values += [] if "None" in kind else [None]
    return values + ([0, 1, "True"] if "bool" in kind else [True, False])


@pytest.mark.parametrize(("cls", "field"), PARAMETERS)
def test_a_wrong_value_is_refused_with_the_parameter_and_the_value(cls: Any, field: dataclasses.Field[Any]) -> None:
    for value in _wrong(cls, field):
        with pytest.raises(ConfigError) as told:
            cls(**{**_needed(cls), field.name: value})
        text = str(told.value)
        assert f"{cls.__name__}.{field.name} must be " in text
        assert f"got {value!r}" in text


SCALARS = {bool: np.bool_, int: np.int64, float: np.float64, str: np.str_}


@pytest.mark.parametrize(("cls", "field"), PARAMETERS)
def test_a_scalar_of_numpy_becomes_one_of_python(cls: Any, field: dataclasses.Field[Any]) -> None:
    default = _default(field)
    numpy = SCALARS.get(type(default))
    if "Literal" in str(field.type):
        default, numpy = str(field.type).split("'")[1], np.str_
    elif numpy is None:
        default = 4 if "int" in str(field.type) else 0.5
        numpy = np.int32 if "int" in str(field.type) else np.float64
    if "float" in str(field.type) or "int" in str(field.type) or isinstance(default, bool | str):
        plain, made = (cls(**{**_needed(cls), field.name: value}) for value in (default, numpy(default)))
        assert made == plain
        assert repr(made) == repr(plain)
        assert type(getattr(made, field.name)) is type(getattr(plain, field.name))
        assert json.dumps(registry.to_config(made)) == json.dumps(registry.to_config(plain))
    else:
        assert "Compressor" in str(field.type)


def test_a_number_in_single_precision_is_the_number_that_it_is() -> None:
    assert TopK(np.float32(0.01)).ratio == float(np.float32(0.01))


def test_a_class_in_place_of_an_object_is_told_what_to_write() -> None:
    with pytest.raises(ConfigError, match=r"Compose\.outer must be .*: write TwoBit\(\.\.\.\), an object"):
        registry.build("compressors", "compose", {"outer": TwoBit})
