import math
import re

import pytest
import torch

from gradwire.contrib.compressors.sketches import _minmax
from gradwire.contrib.compressors.sketches.sketchml import SketchML
from gradwire.errors import ConfigError, WireError
from gradwire.testing.inputs import gaussian
from tests.cases import together
from tests.wire.parsers import sketchml as parser


def decoded(code, x):
    return code.decompress(code.compress(x), x.shape)


def payload(code, x):
    return code.layout(x.shape).views(code.compress(x))


def sparse(n, every):
    x = torch.zeros(n)
    x[::every] = gaussian(len(range(0, n, every)))
    return x


def test_each_bucket_decodes_to_its_mean():
    x, code = gaussian(20_000), SketchML()
    used, _, means, codes = payload(code, x)
    assert int(used) == 20_000
    for bucket in codes.unique():
        members = x[codes == bucket]
        assert float(means[int(bucket)]) == pytest.approx(float(members.double().mean()), rel=1e-6)
        assert members.min() * members.max() > 0


def test_buckets_hold_equally_many():
    x = gaussian(20_000)
    counts = torch.bincount(payload(SketchML(), x)[3].long(), minlength=256)
    assert int(counts[0]) == 0
    assert int(counts[1:].max()) < 2.5 * 20_000 / 255
    lost = float((decoded(SketchML(), x) - x).square().sum() / x.square().sum())
    assert lost < 1e-3


def test_few_buckets_are_coarser_but_keep_signs_and_sum():
    x = gaussian(20_000)
    for buckets, bound in ((16, 0.08), (64, 8e-3)):
        out = decoded(SketchML(buckets), x)
        assert torch.equal(out.sign(), x.sign())
        assert float(out.double().sum()) == pytest.approx(float(x.double().sum()), abs=1e-2)
        assert float((out - x).square().sum() / x.square().sum()) < bound


@pytest.mark.parametrize("x", [torch.full((500,), 0.3), -torch.ones(500), torch.tensor([1.0, -2.0] * 250)])
def test_many_equal_values_are_exact(x):
    assert torch.equal(decoded(SketchML(), x), x)


def test_one_sign_only_in_the_tensor_or_only_outside_the_sample():
    x = gaussian(70_000).abs()
    assert bool((decoded(SketchML(), x) > 0).all())
    x[12_345] = -2.0
    assert float(decoded(SketchML(), x)[12_345]) == -2.0


@together
@pytest.mark.parametrize(("n", "every"), [(5000, 2), (5000, 3), (5000, 10), (200_000, 150), (400_000, 70_000)])
def test_a_sparse_gradient_keeps_signs_and_never_grows(n, every):
    """No element is read larger than the mean of its own bucket."""
    x, code = sparse(n, every), SketchML()
    out = decoded(code, x)
    assert torch.equal(out != 0, x != 0)
    assert torch.equal(out.sign(), x.sign())
    used, head, means, _ = payload(code, x)
    assert int(used) < n
    assert int(head[1:].sum()) == int((x != 0).sum())
    _, bucket_of = code._buckets(x[x != 0])
    own = means[bucket_of[(x.view(torch.int32) >> 16 & 0xFFFF).long()].long()]
    assert bool((out.abs() <= own.abs()).all())
    assert float((out * x).sum()) > 0.2 * float(x.square().sum())


def test_ranks_are_read_right_or_too_small():
    keys, generator = torch.arange(0, 30_000, 7), torch.Generator().manual_seed(0)
    ranks = torch.randint(0, 32, keys.shape, dtype=torch.uint8, generator=generator)
    table = _minmax.insert(keys, ranks)
    assert table.numel() == 2 * math.ceil(0.3 * len(keys))
    read = _minmax.query(table, keys)
    assert bool((read <= ranks).all())
    assert 0.05 < float((read == ranks).double().mean()) < 0.9


def test_keys_take_one_to_four_bytes():
    keys = torch.tensor([3, 258, 259, 66_000, 20_000_000, 20_000_001])
    gaps, lengths = _minmax.deltas(keys)
    assert lengths.tolist() == [0, 0, 0, 2, 3, 0]
    assert _minmax.delta_bytes(gaps, lengths)[:3].tolist() == [3, 255, 1]
    assert torch.equal(_minmax.keys_of(_minmax.delta_bytes(gaps, lengths), lengths, [6]), keys)
    halves = _minmax.keys_of(_minmax.delta_bytes(gaps, lengths), lengths, [3, 3])
    assert halves[3:].tolist() == (keys[3:] - 259).tolist()


def test_a_stranger_reads_the_sparse_form():
    for every in (2, 9, 300):
        x, code = sparse(3000, every), SketchML(buckets=64)
        theirs = parser.parse(code.compress(x).numpy().tobytes(), code.to_config(), [3000])
        assert torch.equal(torch.from_numpy(theirs), decoded(code, x))


def test_zeros_cost_nothing_and_stay_zero():
    x = torch.zeros(1000)
    assert int(payload(SketchML(), x)[0]) == 0
    assert torch.equal(decoded(SketchML(), x), x)
    x[::2] = gaussian(500)
    assert torch.equal(decoded(SketchML(), x) == 0, x == 0)


@together
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("every", [1, 50])
def test_what_is_not_finite_arrives(bad, every):
    x = sparse(10_000, every)
    x[5000] = bad
    assert not decoded(SketchML(), x)[5000].isfinite()


@together
@pytest.mark.parametrize(
    ("nbytes", "head", "text"),
    [
        (1001, [100], "at most 1000 bytes"),
        (-1, [100], "at most 1000 bytes"),
        (0, [2], "2 positive buckets"),
        (0, [252], "252 positive buckets"),
        (0, [100, -1], "cannot have"),
        (0, [100, 1], "cannot have"),
        (3, [100, 1], "1 keys of 1 bytes were coded in 0"),
        (5, [100, 1], "1 keys of 1 bytes were coded in 2"),
    ],
)
def test_bytes_that_cannot_be_are_refused(nbytes, head, text):
    layout = SketchML().layout((1000,))
    buffer = torch.zeros(layout.nbytes, dtype=torch.uint8)
    views = layout.views(buffer)
    views[0].fill_(nbytes)
    views[1][: len(head)] = torch.tensor(head)
    with pytest.raises(WireError, match=re.escape(text)):
        SketchML().decompress(buffer, (1000,))


def test_a_key_beyond_the_tensor_is_refused():
    x = torch.zeros(1000)
    x[900] = 1.0
    buffer = SketchML().compress(x)
    used, _, _, stream = SketchML().layout((1000,)).views(buffer)
    stream[int(used) - 1] = 4
    with pytest.raises(WireError, match=re.escape("keys must stay below 1000, got [1156]")):
        SketchML().decompress(buffer, (1000,))


@together
@pytest.mark.parametrize("bad", [15, 257, 64.0, True])
def test_bad_parameters(bad):
    with pytest.raises(
        ConfigError, match=re.escape(f"SketchML.buckets must be an integer from 16 to 256, got {bad!r}")
    ):
        SketchML(buckets=bad)
