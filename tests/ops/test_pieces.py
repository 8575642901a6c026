"""An operation on many pieces does to each of them what it does to a tensor, with the same bits."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from gradwire import kernels
from gradwire.compressors.casts.ops import cast_add_decoded
from gradwire.errors import ConfigError
from gradwire.kernels import Each, Pieces, Places
from gradwire.kernels.base import MOST_TABLES, Op
from gradwire.kernels.pieces import MOST_DERIVED
from gradwire.testing.sync import synchronisations
from gradwire_lab.bench.operation_examples import example, operations

OPERATIONS = operations()
EXAMPLES = {name: partial(example, op) for name, op in OPERATIONS.items()}

FACTORS = (1.0, -0.5, 2.0)
GAP = 8
"""Elements between two pieces, which nobody may touch."""

TAKE_MANY = sorted(name for name in EXAMPLES if name in OPERATIONS and OPERATIONS[name].kernel_of_many is not None)


def examples(name: str) -> list[dict[str, Any]]:
    """Arguments of three calls."""
    found = []
    for factor in FACTORS:
        given = EXAMPLES[name]()
        floats = {key for key, value in given.items() if isinstance(value, Tensor) and value.is_floating_point()}
        found.append({key: value * factor if key in floats else value for key, value in given.items()})
    return found


def shared(op: Op, key: str, value: object) -> bool:
    """Return whether all pieces have the same status and numbers."""
    return key in ("status", "when", "bad") or not isinstance(value, Tensor)


def joined(tensors: list[Tensor]) -> Pieces:
    """Tensors as pieces of one, with gaps."""
    apart = [torch.cat([each, each.new_zeros(*each.shape[:-1], GAP)], dim=-1) for each in tensors]
    ends = torch.tensor([each.size(-1) for each in apart]).cumsum(0).tolist()
    lows = [end - each.size(-1) for end, each in zip(ends, apart, strict=True)]
    return Pieces(torch.cat(apart, dim=-1), Places(ends[-1], lows, [each.size(-1) for each in tensors]))


def several(op: Op, given: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        key: value if shared(op, key, value) else joined([each[key] for each in given])
        for key, value in given[0].items()
    }


def differences(op: Op, given: list[dict[str, Any]], many: dict[str, Any]) -> Iterator[str]:
    """The arguments that differ after the single calls and the one for all."""
    for key, value in many.items():
        if isinstance(value, Pieces):
            bits = zip((each[key] for each in given), pieces_of(value), strict=True)
            if not all(torch.equal(one.view(torch.uint8), two.contiguous().view(torch.uint8)) for one, two in bits):
                yield key
            if not gaps_of(value).eq(0).all():
                yield f"the gaps of {key}"


def pieces_of(pieces: Pieces) -> list[Tensor]:
    places = zip(pieces.places.offsets, pieces.places.sizes, strict=True)
    return [pieces.base[..., lo : lo + size] for lo, size in places]


def gaps_of(pieces: Pieces) -> Tensor:
    places = zip(pieces.places.offsets, pieces.places.sizes, strict=True)
    return torch.cat([pieces.base[..., lo + size : lo + size + GAP] for lo, size in places], dim=-1)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", TAKE_MANY)
def test_the_bits_are_those_of_single_calls(name: str, threads: int) -> None:
    op, before = OPERATIONS[name], torch.get_num_threads()
    singles, given = examples(name), examples(name)
    status = next((each["status"] for each in singles if isinstance(each.get("status"), Tensor)), None)
    for each in singles:
        op(**(each | ({"status": status} if status is not None else {})))
    many = several(op, given)
    torch.set_num_threads(threads)
    try:
        first, *rest = (key for key in op.declaration.parameters if key in many)
        op(many[first], **{key: many[key] for key in rest})
    finally:
        torch.set_num_threads(before)
    assert not list(differences(op, singles, many))
    if status is not None:
        assert torch.equal(status, many["status"])


def test_most_operations_take_many() -> None:
    declared = {name for name in EXAMPLES if name in OPERATIONS}
    assert len(TAKE_MANY) > 0.6 * len(declared), sorted(declared - set(TAKE_MANY))


def test_a_number_may_be_each_pieces_own() -> None:
    out, keys = Pieces(torch.zeros(24, dtype=torch.int32), Places(24, [0, 8], [8, 16])), Each((5, -7))
    kernels.philox(out, keys, 3)
    for piece, key in zip(pieces_of(out), keys, strict=True):
        alone = torch.empty_like(piece)
        kernels.philox(alone, key, 3)
        assert torch.equal(alone, piece)
    kernels.fill_where(floats := Pieces(torch.zeros(3), Places(3, [0, 1], [1, 2])), Each((1.5, -2.0)))
    assert floats.base.tolist() == [1.5, -2.0, -2.0]


def test_large_pieces_are_shared_out_and_small_ones_handed_out() -> None:
    sizes = [300_000, 5, 70_000, 150_000, 1]
    lows = [sum(sizes[:i]) for i in range(len(sizes))]
    generator = torch.Generator().manual_seed(0)
    grad, residual = (torch.randn(sum(sizes), generator=generator) for _ in range(2))
    expected = residual + grad
    places, before = Places(sum(sizes), lows, sizes), torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        kernels.accumulate(Pieces(grad, places), Pieces(residual, places), torch.zeros(1, dtype=torch.int32))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(residual, expected)


def test_a_wrong_piece_is_refused_by_its_name() -> None:
    short, long = Pieces(torch.zeros(6), Places(6, [0, 3], [3, 3])), Pieces(torch.zeros(8), Places(8, [0, 4], [4, 4]))
    with pytest.raises(ConfigError, match=r"swap\.b must be a flat contiguous torch.float32 tensor of 3 elements"):
        kernels.swap(short, long)
    with pytest.raises(ConfigError, match=r"Places\.offsets"):
        Places(4, [2], [3])
    with pytest.raises(ConfigError, match=r"Places\.shapes must be shapes of tensors of \[6\] elements"):
        Places(6, [0], [6], [(2, 2)])
    with pytest.raises(ConfigError, match=r"Pieces\.base"):
        Pieces(torch.zeros(5), Places(4, [0], [4]))
    with pytest.raises(ConfigError, match=r"beta must be in \[0, 1\)"):
        kernels.momentum_update(short, Pieces(torch.zeros(6), short.places), 1.5)


def test_tables_are_kept_for_the_places_and_are_not_many() -> None:
    places = Places(8, [0, 4], [4, 4])
    for step in range(3 * MOST_TABLES):
        kernels.fill_where(Pieces(torch.zeros(8), places), float(step))
    assert len(places.tables) == 1
    for _ in range(3 * MOST_TABLES):
        kernels.accumulate(Pieces(torch.zeros(8), places), Pieces(torch.zeros(8), Places(8, [0, 4], [4, 4])))
    assert len(places.tables) <= MOST_TABLES + 1


def test_views_of_several_tensors_are_no_pieces() -> None:
    whole = torch.zeros(2, 16, dtype=torch.uint8)
    assert Pieces.of([torch.zeros(2), torch.zeros(2)]) is None
    assert Pieces.of([whole[0, :4].view(torch.float32), whole[0, 8:]]) is None
    rows = Pieces.of([whole[:, 4:8].view(torch.float32), whole[:, 8:16].view(torch.float32)])
    assert rows is not None
    assert (tuple(rows.base.shape), rows.places.offsets, rows.places.sizes) == ((2, 4), (1, 2), (1, 2))
    one = Pieces.of([whole[:1, 4:8], whole[:1, 8:16]])
    assert one is not None
    assert tuple(one.base.shape) == (1, 32)


def test_meta_tensors_count_as_what_a_gpu_would_be_asked() -> None:
    pieces = Pieces(torch.zeros(8, device="meta"), Places(8, [0, 4], [4, 4]))
    kernels.fill_where(pieces, 1.0, torch.zeros(1, dtype=torch.bool, device="meta"))


def test_a_table_is_for_as_many_ranks_as_it_was_made_for():
    places, out = Places(8, [0, 4], [4, 4]), Pieces(torch.zeros(8), Places(8, [0, 4], [4, 4]))
    rows = torch.full((4, 8), 5.0, dtype=torch.bfloat16)
    for ranks in (4, 1, 2):
        cast_add_decoded(Pieces(rows[:ranks], places), out, 1.0, fresh=True)
        assert out.base.tolist() == [5.0 * ranks] * 8


@pytest.mark.parametrize("sizes", [[2], [2, 1, 1]])
def test_another_number_of_pieces_than_the_first_has_is_refused(sizes):
    x = Pieces(torch.zeros(8), Places(8, [0, 4], [2, 2]))
    others = Places(8, [0, 4, 6][: len(sizes)], sizes)
    with pytest.raises(ConfigError, match=r"copy_where\.target must be of 2 pieces"):
        kernels.copy_where(x, Pieces(torch.ones(8), others), None)
    with pytest.raises(ConfigError, match=r"fill_where\.value must be of 2 pieces"):
        kernels.fill_where(x, Each([1.0] * len(sizes)))


def test_whole_numbers_serve_where_each_piece_has_a_float_of_its_own():
    x = Pieces(torch.zeros(4), Places(4, [0, 2], [1, 2]))
    kernels.fill_where(x, Each([3, -1]))
    assert x.base.tolist() == [3.0, 0.0, -1.0, -1.0]


def test_what_the_dispatcher_leaves_out_is_as_by_default() -> None:
    """A function of Python behind the dispatcher, as a GPU's kernels are, is not given what equals a default."""
    grad, residual = (Pieces(torch.arange(8.0), Places(8, [0, 5], [4, 3])) for _ in range(2))
    synchronisations(lambda: kernels.accumulate(grad, residual))
    assert residual.base.tolist() == [0.0, 2.0, 4.0, 6.0, 4.0, 10.0, 12.0, 14.0]
    synchronisations(lambda: kernels.fill_where(residual, 0.5))
    assert residual.base.tolist() == [0.5, 0.5, 0.5, 0.5, 4.0, 0.5, 0.5, 0.5]


def test_pieces_know_the_shapes_of_what_they_are() -> None:
    shapes = ((2, 3), (4,), (1, 1, 2))
    flat = torch.zeros(20)
    pieces = Pieces(flat, Places(20, [0, 7, 12], [6, 4, 2], shapes))
    assert pieces.shapes == pieces.fresh().shapes == pieces.at(torch.ones(20)).shapes == shapes
    assert pieces.unsqueeze(0).rows(0).shapes == shapes
    views = [flat[0:6], flat[7:11], flat[12:14]]
    assert Pieces.of(views, shapes=shapes).shapes == shapes
    assert Pieces.of(views).shapes == ((6,), (4,), (2,))


def test_what_is_derived_of_places_is_made_once_however_many_there_are():
    made = []

    def ends(places, count):
        made.append(count)
        return [places.length + count]

    several = [Places(8, [0], [8]) for _ in range(3 * MOST_DERIVED)]
    first = [places.derive(ends, 1) for places in several]
    assert all(places.derive(ends, 1) is found for places, found in zip(several, first, strict=True))
    assert len(made) == len(several)
    # A schedule may change a number in every step: what was made for earlier ones is let go.
    places = several[0]
    assert [places.derive(ends, count) for count in range(3 * MOST_DERIVED)] == [
        [8 + i] for i in range(3 * MOST_DERIVED)
    ]
    assert len(places._derived) <= MOST_DERIVED + 1
