"""Each check of ``gradwire.testing`` notices the compressor that breaks it."""

import math
import re
import threading
from dataclasses import dataclass

import pytest
import torch

from gradwire.compressors.base import MultiRound
from gradwire.compressors.casts.bf16 import BF16
from gradwire.compressors.levels.qsgd import QSGD
from gradwire.compressors.lowrank.powersgd import PowerSGD
from gradwire.compressors.sparse.topk import TopK
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.contrib.compressors.sparse.randomk import RandomK
from gradwire.errors import WireError
from gradwire.testing import bounds, contract, feedback, ranks
from gradwire.testing.inputs import gaussian
from gradwire.vocabulary import Field, Layout
from tests.strategies.methods import NonZero


class ForgetsAParameter(TwoBit):
    def to_config(self):
        return {"name": self.name}


class ClaimsTooMuch(TopK):
    feedback = "unsafe"


class LeavesAByte(TwoBit):
    def layout(self, shape):
        return Layout((Field("spare", torch.uint8, 1), *super().layout(shape).fields))


class WritesBeside(TwoBit):
    def encode(self, x, payload, state, key):
        super().encode(x, payload, state, key)
        storage = torch.empty(0, dtype=torch.uint8).set_(payload[0].untyped_storage())
        storage[-1] = 1


class ChangesItsInput(TwoBit):
    def encode(self, x, payload, state, key):
        super().encode(x, payload, state, key)
        x.mul_(2)


class DrawsGlobally(TwoBit):
    def encode(self, x, payload, state, key):
        super().encode(x + torch.randn_like(x), payload, state, key)


class IgnoresTheRank(QSGD):
    def encode(self, x, payload, state, key):
        super().encode(x, payload, state, type(key)(step=key.step))


class ChoosesAlone(RandomK):
    def encode(self, x, payload, state, key):
        super().encode(x, payload, state, type(key)(seed=key.rank, step=key.step, phase=key.phase))


class Overwrites(TwoBit):
    def add_decoded(self, payload, out, scale=1.0):
        super().add_decoded(payload, out.zero_(), scale)


class DecodesNan(QSGD):
    def add_decoded(self, payload, out, scale=1.0):
        super().add_decoded(payload, out, scale)
        out[0] = math.nan


class MixesUpRanks(TwoBit):
    def add_decoded_many(self, payloads, out, scale=1.0):
        for rank in range(len(payloads[0])):
            super().add_decoded_many((payloads[0][:1],), out, scale * (rank + 1))


class ReadsRubbish(NonZero):
    def add_decoded(self, payload, out, scale=1.0):
        super().add_decoded(payload, out, scale)
        out.add_(payload[1][8 * (int(payload[0]) // 8) :].sum())


class NeedsRoom(NonZero):
    def check_payload(self, payload, shape):
        if payload[1].numel() < 8 * math.prod(shape):
            raise WireError("too short")


class ScalesTwice(BF16):
    def encode_scaled(self, x, scale, payload, state, key):
        super().encode_scaled(x * scale, scale, payload, state, key)


class ScalesTheGradient(BF16):
    def encode_scaled(self, x, scale, payload, state, key):
        self.encode(x.mul_(scale), payload, state, key)


class LooksAtNeighbours(TwoBit):
    def encode(self, x, payload, state, key):
        super().encode(x - x.mean(), payload, state, key)


class TakesAnything(TwoBit):
    def compress(self, x, state=None, key=None):
        return super().compress(x.to_dense().real.float(), state, key)


class ReadsAnything(TwoBit):
    def decompress(self, buffer, shape):
        return torch.zeros(shape)


class LosesTheRest(TwoBit):
    def encode_feedback(self, grad, residual, payload, state, key, status=None):
        super().encode_feedback(grad, residual, payload, state, key, status)
        residual.mul_(0.9)


class CannotGoBack(TwoBit):
    def encode_feedback(self, grad, residual, payload, state, key, status=None):
        kept = grad.clone()
        super().encode_feedback(grad, residual, payload, state, key, status)
        grad.copy_(kept)


class HidesNan(TwoBit):
    def encode_feedback(self, grad, residual, payload, state, key, status=None):
        super().encode_feedback(grad, residual, payload, state, key, None if status is None else status.clone())
        if status is not None:
            grad.copy_(torch.nan_to_num(grad))


class IsBiased(QSGD):
    def add_decoded(self, payload, out, scale=1.0):
        super().add_decoded(payload, out, 1.02 * scale)


class ClaimsLessNoise(QSGD):
    def omega(self, n):
        return super().omega(n) / 100


class ClaimsMoreContraction(TopK):
    def delta(self, n):
        return 0.9


class ChangesStateEarly(PowerSGD):
    def rounds(self, xs, payloads, states, keys):
        rounds = super().rounds(xs, payloads, states, keys)
        yield next(rounds)
        states[0]["q"].add_(1)
        yield from rounds


class StartsDifferently(PowerSGD):
    def init_state(self, shape, key, device=None):
        return {"q": super().init_state(shape, key, device)["q"] + key.rank}

    def rounds(self, xs, payloads, states, keys):
        yield from super().rounds(xs, payloads, states, keys)
        states[0]["q"].add_(keys[0].rank)


BROKEN = [
    (ForgetsAParameter(0.1), contract.check_config, "through JSON"),
    (ClaimsTooMuch(), contract.check_properties, "feedback is safe with a contraction"),
    (LeavesAByte(), contract.check_layout, "did not write each"),
    (WritesBeside(), contract.check_layout, "outside its payload"),
    (ChangesItsInput(), contract.check_layout, "changed its input"),
    (DrawsGlobally(), contract.check_determinism, "one key gave two payloads"),
    (IgnoresTheRank(), contract.check_determinism, "step, rank or phase"),
    (ChoosesAlone(), contract.check_determinism, "they depend on the rank"),
    (Overwrites(), contract.check_decoder, "not close"),
    (DecodesNan(bits=8), contract.check_decoder, "finite elements decode to some that are not finite"),
    (DecodesNan(bits=8), bounds.check_unbiased, "is biased: a mean error of nan"),
    (MixesUpRanks(), contract.check_many, "differs from the loop"),
    (ReadsRubbish(least=0.5), contract.check_used, "without the unused bytes"),
    (NeedsRoom(least=0.5), contract.check_used, "check_payload fails without the unused bytes: too short"),
    (ScalesTwice(), contract.check_summable, "encode_scaled differs"),
    (ScalesTheGradient(), contract.check_summable, "encode_scaled changes the gradient"),
    (LooksAtNeighbours(), contract.check_elementwise, "a cut at 48"),
    (TakesAnything(), contract.check_inputs, "accepted torch.int32"),
    (ReadsAnything(), contract.check_bad_bytes, "decoded 27"),
    (LosesTheRest(), feedback.check_feedback, "is not residual + grad - decoded"),
    (CannotGoBack(), feedback.check_undo, "did not receive the old residual"),
    (HidesNan(), feedback.check_nonfinite, "left status at 0"),
    (IsBiased(bits=8), bounds.check_unbiased, "is biased"),
    (ClaimsLessNoise(), bounds.check_omega, "exceeds omega"),
    (ClaimsMoreContraction(), bounds.check_contraction, "exceeds 1 - delta"),
    (ChangesStateEarly(), ranks.check_rounds, "before the last round"),
    (StartsDifferently(), ranks.check_rounds, "state differs"),
]


@pytest.mark.parametrize(("compressor", "check", "message"), BROKEN, ids=[type(b[0]).__name__ for b in BROKEN])
def test_a_broken_law_is_noticed(compressor, check, message):
    x = gaussian(100)
    check(type(compressor).__base__(), x)
    with pytest.raises(AssertionError, match=re.escape(message)):
        check(compressor, x)


def test_every_check_is_tried_on_something_broken():
    assert {check for _, check, _ in BROKEN} == set(contract.CHECKS + contract.BOUNDS)


@dataclass(frozen=True)
class Waits(MultiRound):
    """Rank 1 fails while the others wait for it."""

    name = "waits"
    reference = "none"

    def layout(self, shape):
        return Layout((Field("p", torch.float32, 1),))

    def rounds(self, xs, payloads, states, keys):
        if keys[0] == 1:
            raise ZeroDivisionError("rank 1")
        yield

    def add_decoded(self, payload, out, scale=1.0):
        out.add_(payload[0], alpha=scale)


def test_a_rank_that_fails_is_the_one_that_is_reported():
    with pytest.raises(ZeroDivisionError, match="rank 1"):
        ranks.mean_rounds(Waits(), [[torch.zeros(1)]] * 3, [[{}]] * 3, [[0], [1], [2]])


def test_ranks_run_at_the_same_time():
    barrier = threading.Barrier(4, timeout=10)
    assert sorted(ranks.run_ranks(4, lambda _rank: barrier.wait())) == [0, 1, 2, 3]
