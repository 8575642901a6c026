"""Checks and calls that follow from the annotations of an operation."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Annotated

import pytest
import torch
from torch import Tensor

from gradwire._once import once
from gradwire.errors import ConfigError
from gradwire.kernels._declared import Declaration
from gradwire.kernels.arguments import Flat, Flats, Floats, Names, Rows, Status, Where, Written
from gradwire_lab.bench.operation_examples import example, operations

OPS = operations()


def test_every_table_of_a_kernel_is_the_same_for_all_threads() -> None:
    """A kernel is given an address alone, so a table that only one caller holds would be gone before it is read."""
    tables = [(op, each) for op in OPS.values() for each in op.declaration._tables]
    assert tables
    for op, expression in tables:
        function = eval(expression.partition("(")[0], op.reference.__globals__)
        assert function.__code__ is once(half).__code__, op.name


def half(n: int) -> int:
    return -(-n // 2)


def packed(
    x: Floats,
    payloads: Annotated[Tensor, Rows(torch.uint8, "length")],
    out: Annotated[Tensor, Flat((torch.float16, torch.float32), "half(n) + k", written=True)],
    picked: Annotated[Tensor, Flat(torch.int16, "k")],
    kind: Annotated[str, Names(("plain", "odd"))],
    block: Annotated[int, Where("block >= 1 and n % block == 0", "a part of x")],
    steps: Annotated[Tensor | None, Rows(torch.float32, "1")] = None,
    status: Status = None,
    strict: bool = False,
) -> None:
    """An operation with every form that an argument may have."""


def arguments(**changed: object) -> dict[str, object]:
    return {
        "x": torch.ones(6),
        "payloads": torch.zeros(2, 5, dtype=torch.uint8),
        "out": torch.zeros(5),
        "picked": torch.zeros(2, dtype=torch.int16),
        "kind": "odd",
        "block": 3,
    } | changed


def test_the_schema_is_the_signature() -> None:
    assert Declaration(packed).schema == (
        "packed(Tensor x, Tensor payloads, Tensor(a!) out, Tensor picked, str kind, int block, Tensor? steps=None,"
        " Tensor(b!)? status=None, bool strict=False) -> ()"
    )


def test_a_kernel_is_given_the_parameters_in_order_then_symbols_then_threads() -> None:
    given: list[tuple[object, ...]] = []
    kernels = SimpleNamespace(packed=lambda *all_of_them: given.append(all_of_them))
    told = arguments(steps=torch.ones(2, 3)[:, :1], strict=True)
    for threads in (True, False):
        Declaration(packed).kernel(kernels, threads)(**told)
    x, payloads, out, picked, steps = (told[name] for name in ("x", "payloads", "out", "picked", "steps"))
    expected = (
        x.data_ptr(),
        payloads.data_ptr(),
        5,
        out.data_ptr(),
        1,
        picked.data_ptr(),
        1,
        3,
        steps.data_ptr(),
        12,
        0,
        True,
        2,
        5,
        2,
        6,
    )
    assert given == [(*expected, torch.get_num_threads()), expected]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"x": torch.ones(6).double()}, "packed.x must be a flat contiguous torch.float32 tensor of 6 elements on cpu"),
        ({"x": torch.ones(6, 1)}, "packed.x must be a flat contiguous"),
        ({"x": torch.ones(12)[::2]}, "packed.x must be a flat contiguous"),
        ({"payloads": torch.zeros(5, dtype=torch.uint8)}, r"packed.payloads must be a torch.uint8 tensor of shape"),
        ({"payloads": torch.zeros(2, 10, dtype=torch.uint8)[:, ::2]}, r"of shape \(2, 5\) with contiguous rows on cpu"),
        ({"out": torch.zeros(6)}, "packed.out must be a flat contiguous torch.float16 or torch.float32 tensor of 5"),
        ({"out": torch.zeros(5).double()}, "packed.out must be a flat contiguous torch.float16 or torch.float32"),
        ({"picked": torch.zeros(2)}, "packed.picked must be a flat contiguous torch.int16 tensor on cpu"),
        ({"kind": "even"}, "packed.kind must be 'plain' or 'odd', got 'even'"),
        ({"block": 4}, "packed.block must be a part of x, got 4"),
        ({"steps": torch.ones(3, 1)}, r"packed.steps must be a torch.float32 tensor of shape \(2, 1\)"),
        ({"status": torch.zeros(1)}, "packed.status must be a flat contiguous torch.int32 tensor of 1 elements"),
    ],
)
def test_a_wrong_argument_is_named_with_what_is_allowed(changed: dict[str, object], said: str) -> None:
    called: list[dict[str, object]] = []
    checked = Declaration(packed).checked(lambda *_args: called.append({}))
    checked(**arguments())
    assert called == [{}]
    with pytest.raises(ConfigError, match=said):
        checked(**arguments(**changed))
    assert called == [{}]


def test_what_is_allowed_may_depend_on_the_call() -> None:
    def rounded(
        x: Floats, bits: int, level: Annotated[int, Where("level < 2 ** bits", "less than {2 ** bits}")]
    ) -> None: ...

    checked = Declaration(rounded).checked(lambda *_args: None)
    checked(torch.ones(6), 3, 7)
    with pytest.raises(ConfigError, match=r"^rounded\.level must be less than 8, got 8$"):
        checked(torch.ones(6), 3, 8)


def test_a_flat_tensor_says_how_long_a_field_of_its_size_is() -> None:
    def added(codes: Annotated[Tensor, Rows(torch.uint8, "n")], out: Written) -> None: ...

    given: list[tuple[object, ...]] = []
    call = Declaration(added).kernel(SimpleNamespace(added=lambda *told: given.append(told)), False)
    codes, out = torch.zeros(2, 6, dtype=torch.uint8), torch.zeros(6)
    call(codes, out)
    assert given == [(codes.data_ptr(), 6, out.data_ptr(), 2, 6)]
    for wrong in (codes.view(-1), codes[:, 1:], codes.int()):
        with pytest.raises(ConfigError, match=r"added\.codes must be a torch.uint8 tensor of shape \(\d, 6\)"):
            call(wrong, out)


def test_what_annotations_cannot_say_is_checked_by_a_function_of_what_it_names() -> None:
    def check(op: str, block: int, strict: bool) -> None:
        if strict and block > 2:
            raise ConfigError(f"{op}.block is {block}")

    checked = Declaration(packed, check).checked(lambda *_args: None)
    checked(**arguments())
    with pytest.raises(ConfigError, match=r"packed\.block is 3"):
        checked(**arguments(strict=True))


TABLE = torch.arange(4)


def table_of(bits: int) -> Tensor:
    return TABLE[bits:]


def test_a_kernel_is_given_the_tables_that_it_needs_after_the_parameters() -> None:
    def looked_up(x: Floats, bits: int) -> None: ...

    given: list[tuple[object, ...]] = []
    x, kernels = torch.ones(6), SimpleNamespace(looked_up=lambda *told: given.append(told))
    Declaration(looked_up, tables=("table_of(bits)", "TABLE")).kernel(kernels, False)(x, 2)
    assert given == [(x.data_ptr(), 2, TABLE.data_ptr() + 16, TABLE.data_ptr(), 6)]
    with pytest.raises(TypeError, match=r"looked_up: nothing defines tables in 'tables\[0\]'"):
        Declaration(looked_up, tables=("tables[0]",)).kernel(kernels, False)


def test_a_list_of_tensors_is_given_as_addresses_and_as_sizes_where_it_is_said() -> None:
    def check(op: str, parts: Sequence[Tensor], n: int) -> None:
        if len(parts) > n:
            raise ConfigError(f"{op}.parts are more than {n}")

    def joined(
        parts: Annotated[Sequence[Tensor], Flats((torch.int16, torch.uint8), sizes=True)],
        levels: Annotated[Sequence[Tensor], Flats(torch.float32)],
        out: Written,
    ) -> None: ...

    given: list[tuple[object, ...]] = []
    said = Declaration(joined, check)
    assert said.schema == "joined(Tensor[] parts, Tensor[] levels, Tensor(a!) out) -> ()"
    call = said.kernel(SimpleNamespace(joined=lambda *told: given.append(told)), True)
    parts, out = [torch.zeros(3, dtype=torch.int16), torch.zeros(5, dtype=torch.uint8)], torch.zeros(2)
    levels = [torch.ones(4)[4:], torch.ones(1)]
    call(parts, levels, out)
    addresses = [each.data_ptr() for each in parts], [3, 5], [0, levels[1].data_ptr()]
    assert given == [(*addresses, out.data_ptr(), 2, torch.get_num_threads())]
    for wrong in (torch.zeros(3), torch.zeros(1, 3).short(), torch.zeros(6).short()[::2]):
        with pytest.raises(ConfigError, match=r"joined\.parts must be a flat contiguous torch.int16 or torch.uint8"):
            call([parts[0], wrong], levels, out)
    with pytest.raises(ConfigError, match=r"joined\.parts are more than 2"):
        call(parts * 2, levels, out)


def test_a_size_that_no_annotation_gives_is_known_to_the_function_that_checks() -> None:
    def check(op: str, n: int, pieces: int) -> None:
        if n % pieces:
            raise ConfigError(f"{op}.picked has {pieces} of {n}")

    def cut(x: Floats, picked: Annotated[Tensor, Flat(torch.int16, "pieces")]) -> None: ...

    given: list[tuple[object, ...]] = []
    call = Declaration(cut, check).kernel(SimpleNamespace(cut=lambda *told: given.append(told)), False)
    x, picked = torch.ones(6), torch.zeros(3, dtype=torch.int16)
    call(x, picked)
    assert given == [(x.data_ptr(), picked.data_ptr(), 3, 6)]
    with pytest.raises(ConfigError, match=r"^cut\.picked has 4 of 6$"):
        call(x, torch.zeros(4, dtype=torch.int16))


def test_the_parameter_n_is_the_number_of_elements() -> None:
    def counted(codes: Annotated[Tensor, Flat(torch.uint8, "half(n)")], n: int, words: bool = False) -> None: ...

    given: list[tuple[object, ...]] = []
    codes = torch.zeros(3, dtype=torch.uint8)
    Declaration(counted).kernel(SimpleNamespace(counted=lambda *told: given.append(told)), True)(codes, 5)
    assert given == [(codes.data_ptr(), False, 5, torch.get_num_threads())]


def of_nothing(x: Tensor) -> None: ...
def of_a_list(x: list[int]) -> None: ...
def of_an_unknown_size(x: Floats, y: Annotated[Tensor, Flat(torch.uint8, "2 * m")]) -> None: ...


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (of_nothing, "of_nothing.x is a tensor of which nothing is said"),
        (of_a_list, "of_a_list.x is annotated with list"),
        (of_an_unknown_size, "of_an_unknown_size: nothing defines m in '2 [*] m'"),
    ],
)
def test_an_annotation_from_which_nothing_follows_is_refused(function: object, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        Declaration(function).checked(lambda *_args: None)


def test_a_flat_tensor_that_is_written_is_marked() -> None:
    def moved(a: Written, b: Written) -> None: ...

    assert Declaration(moved).schema == "moved(Tensor(a!) a, Tensor(b!) b) -> ()"


@pytest.mark.parametrize(("name", "block"), [("three_lc_encode", 16), ("scaled_sign_encode", 32)])
def test_an_example_has_the_first_size_that_its_operation_allows(name: str, block: int) -> None:
    assert example(OPS[name])["block"] == block
