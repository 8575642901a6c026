"""Contract of every operation in the folder."""

import doctest
import importlib
import inspect
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from gradwire.errors import ConfigError
from gradwire.testing._expect import same
from gradwire_lab.bench.operation_examples import example, modules, operations
from tests.cases import together

OPS = operations()


def _mark(name: str, key: str) -> object:
    return OPS[name].declaration.marks.get(key)


EXAMPLES = {name: partial(example, op) for name, op in OPS.items()}

TENSORS = [(name, key) for name, make in EXAMPLES.items() for key, value in make().items() if isinstance(value, Tensor)]


SHAPED = {(name, key) for name, key in TENSORS if getattr(_mark(name, key), "shaped", False)}
"""Tensors that may have any shape where Python calls the operation."""


def _longer(x: Tensor) -> Tensor:
    return torch.cat([x, x.narrow(-1, 0, 1)], dim=-1)


def _bytes(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.uint8)


def _strided(x: Tensor) -> Tensor:
    return torch.stack([x, x], dim=-1)[..., 0]


# One element more would still be a valid call.
FREE = {
    ("bitmap_decode", "indices"),
    ("bitmap_encode", "indices"),
    ("bucket_add_decoded", "levels"),
    ("byte_counts", "symbols"),
    ("exponent_add_decoded", "out"),
    ("exponent_add_decoded", "streams"),
    ("exponent_encode", "codes"),
    ("fill_where", "out"),
    ("inceptionn_add_decoded", "out"),
    ("inceptionn_add_decoded", "streams"),
    ("moments", "x"),
    ("nonfinite", "x"),
    ("parts_add_decoded", "out"),
    ("philox", "out"),
    ("prefix_decode", "stream"),
    ("prefix_decode", "symbols"),
    ("prefix_encode", "out"),
    ("prefix_encode", "symbols"),
    ("randomk_add_decoded", "out"),
    ("randomk_encode", "x"),
    ("rans_decode", "stream"),
    ("rans_decode", "symbols"),
    ("rans_encode", "out"),
    ("rans_encode", "symbols"),
    ("scale", "x"),
    ("sign_vote", "mean"),
    ("sketch_add", "x"),
    ("sketch_estimate", "out"),
    ("sparse_add_decoded", "out"),
    ("tail_moments", "x"),
    ("take_beyond", "x"),
    ("take_drawn", "x"),
    ("ternary_add_decoded", "out"),
    ("ternary_add_decoded", "streams"),
    ("thc_begin", "seed"),
    ("three_lc_add_decoded", "stream"),
    ("threshold_add_decoded", "out"),
    ("threshold_add_decoded", "streams"),
    ("topk_encode", "x"),
    ("waves_add_decoded", "out"),
}
WRONG = {
    "dtype": lambda x: x.to(torch.complex64),
    "dimensions": lambda x: x.unsqueeze(0),
    "strides": lambda x: _strided(_longer(x))[..., : x.size(-1)],
}


def test_an_example_names_every_argument():
    assert len(OPS) > 80
    for name, op in OPS.items():
        assert list(EXAMPLES[name]()) == list(inspect.signature(op.reference).parameters), name


@together
@pytest.mark.parametrize("name", EXAMPLES)
def test_torch_accepts_the_operator(name):
    arguments = EXAMPLES[name]()
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(getattr(torch.ops.gradwire, name).default, (), arguments, test_utils=checks)


@together
@pytest.mark.parametrize("name", EXAMPLES)
def test_positional_arguments_are_those_of_the_reference(name):
    by_name, by_place = EXAMPLES[name](), EXAMPLES[name]()
    OPS[name](**by_name)
    OPS[name].reference(*by_place.values())
    for a, b in zip(by_name.values(), by_place.values(), strict=True):
        assert not isinstance(a, Tensor) or same(a, b)


@together
@pytest.mark.parametrize(("name", "key"), TENSORS)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_tensor_is_named(name, key, wrong):
    arguments = EXAMPLES[name]()
    if arguments[key].shape[-1] == 1 and wrong == "strides":
        return
    arguments[key] = WRONG[wrong](arguments[key])
    # What may have any shape in a call of Python's has one dimension for torch.
    run = getattr(torch.ops.gradwire, name) if (name, key) in SHAPED else OPS[name]
    with pytest.raises(ConfigError, match=rf"^{name}\.{key} must "):
        run(**arguments)


class Watching(TorchDispatchMode):
    """Sees the operators, so that they are dispatched."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@together
@pytest.mark.parametrize("watches", [False, True])
@pytest.mark.parametrize("name", sorted({name for name, _ in SHAPED}))
def test_what_may_have_any_shape_is_taken_as_flat(name, watches):
    flat, shaped = EXAMPLES[name](), EXAMPLES[name]()
    for key, value in shaped.items():
        if (name, key) in SHAPED:
            shaped[key] = value.view(1, -1, 1)
    with Watching() if watches else nullcontext():
        OPS[name](**shaped)
        OPS[name](**flat)
    for key, value in flat.items():
        if isinstance(value, Tensor):
            assert torch.equal(_bytes(shaped[key].view(value.shape)), _bytes(value)), key


@together
@pytest.mark.parametrize(("name", "key"), TENSORS)
def test_a_tensor_of_another_size_is_refused(name, key):
    arguments = EXAMPLES[name]()
    arguments[key] = _longer(arguments[key])
    if (name, key) in FREE:
        return
    with pytest.raises(ConfigError, match=rf"^{name}\.\w+ must "):
        OPS[name](**arguments)


@together
@pytest.mark.parametrize("name", EXAMPLES)
def test_fake_tensors_are_left_alone(name):
    arguments = tree_map_only(Tensor, lambda x: x.to("meta"), EXAMPLES[name]())
    assert OPS[name](**arguments) is None


@together
@pytest.mark.parametrize("module", modules())
def test_examples_of_the_docs(module):
    made = {name for name, op in OPS.items() if op.reference.__module__ == module}
    found, told = doctest.DocTestFinder().find(importlib.import_module(module)), []
    assert made <= {test.name.rpartition(".")[2] for test in found if test.examples}
    runner = doctest.DocTestRunner()
    for test in found:
        runner.run(test, out=told.append)
    assert runner.failures == 0, "".join(told)


NEEDED = [(name, key) for name, key in TENSORS if key not in OPS[name].declaration.optional]


@pytest.mark.parametrize(("name", "key"), NEEDED)
def test_none_in_place_of_a_tensor_is_refused_by_name(name, key):
    with pytest.raises(ConfigError, match=rf"^{name}\.{key} must be a tensor, got None$"):
        OPS[name](**(EXAMPLES[name]() | {key: None}))
