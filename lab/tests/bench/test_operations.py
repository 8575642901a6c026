"""Every operation is counted once, in one kind, with the bytes that it moves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gradwire.compressors.casts.ops import cast_add_decoded
from gradwire.compressors.levels.ops import moments
from gradwire.compressors.ternary.ops import twobit_encode
from gradwire.kernels import Pieces, Places, begin_sum
from gradwire_lab.bench.operations import OperationCount, WouldWaitError

N = 1000


def counted(work: Callable[[Tensor], object], device: str = "meta") -> OperationCount:
    x = torch.ones(N, device=device)
    with OperationCount(device) as count:
        work(x)
    return count


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("work", "names", "elements"),
    [
        (lambda x: x.add(x), {"aten::add": 1}, 3 * N),
        (lambda x: x.add_(1), {"aten::add_": 1}, 2 * N),
        (lambda x: x.zero_(), {"aten::zero_": 1}, 2 * N),
        (lambda x: x[:10].copy_(x[10:20]), {"aten::copy_": 1}, 30),
        (lambda x: torch.cat([x[:3], x[:5]], out=x.new_empty(8)), {"aten::cat": 1}, 16),
        (lambda x: torch.add(x, x.new_ones(1).expand(N)), {"aten::new_ones": 1, "aten::add": 1}, 2 * N + 2),
        (lambda x: torch._foreach_copy_([x[:2], x[2:4]], [x[4:6], x[6:8]]), {"aten::_foreach_copy_": 1}, 12),
    ],
)
def test_work_is_counted_with_what_it_reads_and_writes(
    work: Callable[[Tensor], object], names: dict[str, int], elements: int, device: str
) -> None:
    count = counted(work, device)
    assert dict(count.names) == names
    assert count.operations == sum(names.values())
    assert count.nbytes == 4 * elements


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_sum_that_begins_counts_as_what_is_filled(device: str) -> None:
    bad = torch.zeros(1, dtype=torch.bool, device=device)
    count = counted(lambda x: begin_sum(x, x.clone(), bad), device)
    assert dict(count.names) == {"aten::clone": 1, "gradwire::begin_sum": 1}
    assert count.nbytes == 4 * (2 * N + 2 * N) + 1


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_views_and_empty_memory_are_no_work(device: str) -> None:
    def work(x: Tensor) -> None:
        x.view(10, 100).transpose(0, 1)[3:].detach()
        torch.split(x, 500)
        torch.empty(5, device=device)
        torch.empty_like(x)

    count = counted(work, device)
    assert (count.operations, count.nbytes, count.allocations) == (0, 0, 2)
    assert count.views == 5


def test_an_operation_of_gradwire_is_one() -> None:
    codes = torch.empty(N // 4, dtype=torch.uint8, device="meta")
    count = counted(lambda x: twobit_encode(x, codes, 0.5))
    assert dict(count.names) == {"gradwire::twobit_encode": 1}
    assert count.nbytes == 4 * N + 2 * (N // 4)


def test_of_what_pieces_lie_in_only_the_pieces_are_moved() -> None:
    places = Places(N, [10, 500], [20, 30])
    rows = torch.empty(3, N, dtype=torch.bfloat16, device="meta")
    count = counted(lambda x: cast_add_decoded(Pieces(rows, places), Pieces(x, places), 1.0))
    assert dict(count.names) == {"gradwire::cast_add_decoded_each": 1}
    assert count.nbytes == 50 * (3 * 2 + 2 * 4)


def test_the_table_of_pieces_is_not_taken_for_an_argument_of_its_name() -> None:
    tables = Pieces(torch.empty(64, device="meta"), Places(64, [0, 32], [4, 4]))
    count = counted(lambda x: moments(Pieces(x, Places(N, [0, 600], [300, 200])), tables, True))
    assert dict(count.names) == {"gradwire::moments_each": 1}
    # What is overwritten counts as read, too; the table of the pieces is the host's.
    assert count.nbytes == 4 * (500 + 2 * 8)


def test_of_what_is_selected_from_only_that_is_moved() -> None:
    numbers = torch.empty(10, dtype=torch.int32, device="meta")
    count = counted(lambda x: x.view(100, 10).index_select(0, numbers))
    assert count.nbytes == 4 * (10 + 100 + 100)
    # Windows that overlap.
    count = counted(lambda x: torch.index_select(x.as_strided((N - 7, 8), (1, 1)), 0, numbers, out=x.new_empty(10, 8)))
    assert count.nbytes == 4 * (10 + 80 + 80)
    count = counted(lambda x: x[:5].index_select(0, numbers))
    assert count.nbytes == 4 * (10 + 5 + 10)


def test_what_the_host_does_alone_is_not_the_devices() -> None:
    count = counted(lambda _: torch.ones(5).add(1))
    assert (count.operations, count.host) == (0, 2)


@pytest.mark.parametrize(
    "work", [lambda x: float(x.sum()), lambda x: x.nonzero(), lambda x: x[x > 0], lambda x: bool(x.isnan().any())]
)
def test_what_would_wait_is_counted_on_the_cpu_and_refused_where_there_is_no_value(
    work: Callable[[Tensor], object],
) -> None:
    assert counted(work, "cpu").synchronisations == 1
    x, count = torch.ones(N, device="meta"), OperationCount("meta")
    with pytest.raises(WouldWaitError, match="aten::"), count:
        work(x)
    assert count.synchronisations == 1


def test_a_copy_into_the_hosts_memory_is_waited_for() -> None:
    x, host = torch.ones(N, device="meta"), torch.empty(N)
    for work in (lambda: x.cpu(), lambda: x.tolist(), lambda: host.copy_(x)):
        with pytest.raises(WouldWaitError), OperationCount("meta"):
            work()
    with OperationCount("meta") as count:
        x.copy_(host)
    assert (count.operations, count.synchronisations) == (1, 0)
