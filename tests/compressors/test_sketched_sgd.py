"""Two rounds: what the sketch finds, what the ranks agree on, and what stays in the residual."""

import math
import re

import pytest
import torch

from gradwire.compressors import capabilities
from gradwire.contrib.compressors.sketches.sketched_sgd import SketchedSGD
from gradwire.errors import ConfigError, WireError
from gradwire.testing.inputs import gaussian
from gradwire.testing.processes import run_ranks
from gradwire.testing.ranks import mean_rounds
from gradwire.vocabulary import Key
from tests.cases import together
from tests.compressors.matrices import decoded
from tests.strategies.methods import run_method


def with_heavy(n: int, count: int, seed: int = 0) -> tuple[torch.Tensor, set[int]]:
    """Noise of 0.1 with ``count`` elements of magnitude 10, and where they are."""
    x = 0.1 * gaussian(n, seed)
    where = torch.randperm(n, generator=torch.Generator().manual_seed(seed + 1))[:count]
    x[where] = 10 * gaussian(count, seed + 2).sign()
    return x, set(where.tolist())


def recall(code: SketchedSGD, x: torch.Tensor, heavy: set[int], step: int = 0) -> float:
    return len(heavy & set(decoded(code, x, step=step).nonzero().view(-1).tolist())) / len(heavy)


def test_a_wide_sketch_finds_the_heavy_elements_and_a_narrow_one_fewer():
    """sketches.md: 1e5 elements, 100 heavy ones, 5 rows: 1e4 columns find 0.99 of them."""
    x, heavy = with_heavy(100_000, 100)
    wide = recall(SketchedSGD(ratio=0.001, width=100, candidates=1), x, heavy)
    narrow = recall(SketchedSGD(ratio=0.001, width=1, rows=1, candidates=1), x, heavy)
    assert wide > 0.98
    assert narrow < 0.5 * wide


def test_more_candidates_find_more():
    x, heavy = with_heavy(100_000, 100)
    few, many = (recall(SketchedSGD(ratio=0.001, width=4, rows=3, candidates=count), x, heavy) for count in (1, 20))
    assert few < many


def test_what_is_sent_is_exact():
    x = gaussian(5000) ** 3
    out = decoded(SketchedSGD(ratio=0.01), x)
    sent = out.nonzero().view(-1)
    assert sent.numel() == 50
    assert torch.equal(out[sent], x[sent])


def test_a_bucket_gives_the_bits_of_each_tensor_alone():
    code, ranks, shapes = SketchedSGD(ratio=0.01), 2, [(70_001,), (50, 40), (3,), (0, 4), (131_073,), (17, 5, 3)]
    sizes = [math.prod(shape) for shape in shapes]
    flats = [gaussian(sum(sizes), seed=rank) ** 3 for rank in range(ranks)]
    xs = [[part.view(shape) for part, shape in zip(torch.split(flat, sizes), shapes, strict=True)] for flat in flats]
    keys = [[Key(rank=rank, tensor=tensor, step=3) for tensor in range(len(shapes))] for rank in range(ranks)]
    payloads = mean_rounds(code, xs, [[{}] * len(shapes)] * ranks, keys)
    alone = [
        mean_rounds(code, [[x[i]] for x in xs], [[{}]] * ranks, [[k[i]] for k in keys]) for i in range(len(shapes))
    ]
    for add in ("add_decoded", "add_own"):
        out = torch.ones(sum(sizes))
        outs = [part.view(shape) for part, shape in zip(torch.split(out, sizes), shapes, strict=True)]
        getattr(capabilities, f"{add}_each")(code, payloads[1], outs, -0.5)
        for i, shape in enumerate(shapes):
            expected = torch.ones(shape)
            getattr(code, add)(alone[i][1][0], expected, -0.5)
            assert torch.equal(outs[i], expected)
            for one, other in zip(payloads[1][i], alone[i][1][0], strict=True):
                assert torch.equal(one, other)


def test_the_selection_is_that_of_the_mean():
    """An element that is large on every rank with alternating signs is not sent; one that is small on all may be."""
    code, n = SketchedSGD(ratio=0.002, width=100), 1000
    xs = [torch.zeros(n) for _ in range(2)]
    for rank, x in enumerate(xs):
        x[10], x[20], x[30] = 100.0 * (-1) ** rank, 3.0, 2.0
    keys = [[Key(rank=rank)] for rank in range(2)]
    payloads = mean_rounds(code, [[x] for x in xs], [[{}], [{}]], keys)
    out = torch.zeros(n)
    code.add_decoded(payloads[1][0], out)
    assert out.nonzero().view(-1).tolist() == [20, 30]
    for x, (payload,) in zip(xs, payloads, strict=True):
        capabilities.add_own(code, payload, x, -1.0)
    assert xs[1].nonzero().view(-1).tolist() == [10]
    assert float(xs[1][10]) == -100.0


def test_the_hash_functions_are_common_to_the_ranks_and_change_with_the_step():
    code, x = SketchedSGD(ratio=0.01), gaussian(5000)

    def sketch(key: Key) -> list[float]:
        return code.layout(x.shape).views(code.compress(x, None, key))[0].tolist()

    assert sketch(Key(rank=0, step=3)) == sketch(Key(rank=1, step=3))
    assert sketch(Key(step=3)) != sketch(Key(step=4))
    assert sketch(Key(tensor=1)) != sketch(Key(tensor=2))


def test_between_real_ranks_all_end_with_the_same():
    results = run_ranks(3, run_method, SketchedSGD(ratio=0.01), None, None, 3, 1)
    for result in results:
        assert bool(result["outputs"][1][:100].isnan().all())
        assert torch.equal(result["outputs"][2], results[0]["outputs"][2])
        kept = result["kept"]
        assert all(torch.equal(tensor, kept[1][name]) for name, tensor in kept[0].items())


def test_feedback_delivers_everything_in_the_end():
    code, x = SketchedSGD(ratio=0.05), gaussian(400)
    residual, total = torch.zeros_like(x), torch.zeros_like(x)
    payload = code.layout(x.shape).views(torch.empty(code.layout(x.shape).nbytes, dtype=torch.uint8))
    for step in range(400):
        code.encode_feedback(x, residual, payload, {}, Key(step=step))
        code.add_decoded(payload, total)
    torch.testing.assert_close(total + residual, 400 * x, rtol=1e-3, atol=1e-2)
    assert float((total / 400 - x).norm() / x.norm()) < 0.2


def test_the_traffic():
    code = SketchedSGD(ratio=0.001, rows=5, width=16, candidates=4)
    assert capabilities.traffic(code, (1_000_000,)) == 4 * 5 * 16_000 + 4 * 4000
    assert capabilities.pays_for(code, (1_000_000,))
    assert not capabilities.pays_for(code, (50,))


def refused(code, x, bad):
    payload = code.compress(x)
    code.layout(x.shape).views(payload)[4].copy_(torch.tensor(bad))
    with pytest.raises(WireError, match="must increase and stay in"):
        code.decompress(payload, x.shape)


def test_bad_indices_are_refused():
    code, x = SketchedSGD(ratio=0.02), gaussian(100)
    for bad in ([5, 5], [7, 3], [0, 100], [-1, 4]):
        refused(code, x, bad)
    # Their differences are positive in 32 bits, where they wrap around.
    refused(SketchedSGD(ratio=0.05), x, [0, 2**31 - 1, -2, -1, 1])


@together
@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"ratio": 0.0}, "SketchedSGD.ratio must be in (0, 1], got 0.0"),
        ({"ratio": math.nan}, "SketchedSGD.ratio must be in (0, 1], got nan"),
        ({"rows": 4}, "SketchedSGD.rows must be 1, 3, 5 or 7, got 4"),
        ({"rows": 9}, "SketchedSGD.rows must be 1, 3, 5 or 7, got 9"),
        ({"width": 0}, "SketchedSGD.width must be an integer in [1, 1000], got 0"),
        ({"candidates": 0}, "SketchedSGD.candidates must be an integer in [1, 100], got 0"),
    ],
)
def test_bad_parameters(values, text):
    with pytest.raises(ConfigError, match=re.escape(text)):
        SketchedSGD(**values)
