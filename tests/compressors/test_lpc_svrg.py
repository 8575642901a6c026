import math
import re

import pytest
import torch

from gradwire.compressors.levels.qsgd import QSGD
from gradwire.contrib.compressors.levels.lpc_svrg import LpcSvrg
from gradwire.errors import ConfigError
from gradwire.testing.inputs import SPECIAL, gaussian
from gradwire.vocabulary import Key
from tests.cases import together
from tests.compressors.rounding import decoded, memory_after, relative_error


def test_a_payload_is_one_scale_and_its_bits():
    assert LpcSvrg(bits=5).layout((9, 7)).nbytes == 4 + math.ceil(63 * 5 / 8)


def test_grid_points_are_exact_and_what_lies_beyond_is_cut_off():
    code = LpcSvrg(bits=3, clip=0.75)  # D = 0.75 * 4 / 3 = 1
    x = torch.tensor([4.0, -4.0, 3.5, -3.0, 2.0, -1.0, 0.0])
    assert decoded(code, x).tolist() == [3.0, -3.0, 3.0, -3.0, 2.0, -1.0, 0.0]


@together
@pytest.mark.parametrize("clip", [0.0625, 0.25, 0.375, 0.5, 1.0])
def test_the_grid_ends_at_the_share_of_the_range_that_was_asked_for(clip):
    code = LpcSvrg(bits=2, clip=clip)
    assert decoded(code, torch.tensor([8.0, -8.0, 0.0])).tolist() == [8 * clip, -8 * clip, 0.0]


def test_between_grid_points_the_nearer_one_is_likelier():
    code, x = LpcSvrg(bits=3), torch.cat([torch.tensor([3.0]), torch.full((4000,), 1.25)])
    out = decoded(code, x)[1:]
    assert set(out.tolist()) == {1.0, 2.0}
    assert float((out == 2.0).float().mean()) == pytest.approx(0.25, abs=0.03)


def test_the_variance_is_below_a_quarter_of_a_squared_step():
    code, x = LpcSvrg(bits=4), gaussian(1000)
    step = float(x.abs().amax()) / 7
    assert relative_error(code, x, 50) * float(x.square().sum()) <= 1000 * step**2 / 4


def test_clipping_pays_where_a_few_elements_stand_out():
    x = gaussian(20000) ** 3
    assert relative_error(LpcSvrg(bits=4, clip=0.5), x, 5) < 0.5 * relative_error(LpcSvrg(bits=4), x, 5)


def test_without_clipping_it_is_qsgd_with_one_norm():
    x, key = SPECIAL["heavy tail"](5000), Key(step=3)
    assert torch.equal(LpcSvrg(bits=5).compress(x, key=key), QSGD(bits=5, block=None).compress(x, key=key))


@pytest.mark.parametrize(
    ("code", "feedback"),
    [(LpcSvrg(), "optional"), (LpcSvrg(bits=2), "unsafe"), (LpcSvrg(bits=2, clip=0.5), "required")],
    ids=str,
)
def test_where_feedback_is_safe(code, feedback):
    assert code.feedback == feedback


@pytest.mark.parametrize("code", [LpcSvrg(bits=4), LpcSvrg(bits=2, clip=0.5), LpcSvrg(bits=8, clip=0.1)], ids=str)
def test_the_residual_stays_below_its_bound(code):
    residual, layout, largest = torch.zeros(512), code.layout((512,)), 1.0
    payload, share = layout.views(torch.zeros(layout.nbytes, dtype=torch.uint8)), 1 - code.clip
    share = max(share, code.clip / (2 ** (code.bits - 1) - 1))
    for step in range(200):
        code.encode_feedback(SPECIAL["spike"](512), residual, payload, {}, Key(step=step))
        assert float(residual.abs().amax()) <= largest * share / (1 - share) * (1 + 1e-5)
    assert memory_after(LpcSvrg(bits=4), 30, 2000) < 1


@together
@pytest.mark.parametrize("bad", [0, -0.5, 1.5, math.nan, math.inf, True, "1", None])
def test_bad_clip(bad):
    with pytest.raises(ConfigError, match=re.escape(f"LpcSvrg.clip must be in (0, 1], got {bad!r}")):
        LpcSvrg(clip=bad)


@together
@pytest.mark.parametrize("bad", [1, 9, 4.0, True, None])
def test_bad_bits(bad):
    with pytest.raises(ConfigError, match=re.escape(f"LpcSvrg.bits must be an integer in [2, 8], got {bad!r}")):
        LpcSvrg(bits=bad)
