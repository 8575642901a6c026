"""GRACE's parameter dictionary, read into our objects."""

import warnings

import pytest

from gradwire.compat import MethodChoice, from_params
from gradwire.compressors.casts.fp16 import FP16
from gradwire.compressors.casts.none import Identity
from gradwire.compressors.levels.qsgd import QSGD
from gradwire.compressors.lowrank.powersgd import PowerSGD
from gradwire.compressors.signs.efsignsgd import EFSignSGD
from gradwire.compressors.signs.signsgd import SignSGD
from gradwire.compressors.sparse.topk import TopK
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.contrib.compressors.signs.onebit_sgd import OneBitSGD
from gradwire.contrib.compressors.sparse.threshold import Threshold
from gradwire.engine.settings import Settings
from gradwire.engine.strategies.allgather import AllGather
from gradwire.engine.strategies.allreduce import AllReduce
from gradwire.engine.strategies.broadcast import Broadcast
from gradwire.engine.strategies.two_phase import TwoPhase
from gradwire.errors import ConfigError
from gradwire.memory.none import NoMemory
from gradwire.memory.residual import Residual

READ = [
    ({}, MethodChoice(Identity())),
    ({"compressor": "topk"}, MethodChoice(TopK(ratio=0.3))),
    (
        {"compressor": "topk", "memory": "residual", "communicator": "allgather", "compress_ratio": 0.01},
        MethodChoice(TopK(ratio=0.01), Residual(), AllGather()),
    ),
    ({"compressor": "topk", "ratio": 0.02, "communicator": "broadcast"}, MethodChoice(TopK(0.02), None, Broadcast())),
    (
        {"compressor": "fp16", "memory": "none", "communicator": "allreduce"},
        MethodChoice(FP16(), NoMemory(), AllReduce()),
    ),
    ({"compressor": "qsgd"}, MethodChoice(QSGD(bits=8))),
    ({"compressor": "qsgd", "quantum_num": 7, "bucket_size": 128}, MethodChoice(QSGD(bits=4, block=128))),
    ({"compressor": "qsgd", "bits": 3, "communicator": "all_to_all"}, MethodChoice(QSGD(bits=3), None, TwoPhase())),
    ({"compressor": "powersgd", "memory": "powersgd"}, MethodChoice(PowerSGD(rank=1), Residual())),
    (
        {"compressor": "powersgd", "compress_rank": 4, "communicator": "allreduce"},
        MethodChoice(PowerSGD(rank=4), None, AllReduce()),
    ),
    ({"compressor": "onebit", "memory": "residual"}, MethodChoice(OneBitSGD(), Residual())),
    (
        {"compressor": "efsignsgd", "memory": "efsignsgd", "communicator": "allgather"},
        MethodChoice(EFSignSGD(), Residual(), AllGather()),
    ),
    ({"compressor": "signsgd", "memory": "none"}, MethodChoice(SignSGD(), NoMemory())),
    (
        {"compressor": "twobit", "threshold": 0.25, "memory": "residual", "beta": 0.9},
        MethodChoice(TwoBit(threshold=0.25), Residual(beta=0.9)),
    ),
    ({"compressor": "twobit", "threshold": "auto", "target": 0.05}, MethodChoice(TwoBit("auto", target=0.05))),
    (
        {"compressor": "threshold", "threshold": "auto", "memory": "residual"},
        MethodChoice(Threshold("auto"), Residual()),
    ),
]


@pytest.mark.parametrize(("params", "recipe"), READ, ids=str)
def test_read(params, recipe):
    given = dict(params)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert from_params(params) == recipe
    assert params == given


@pytest.mark.parametrize(("quantum_num", "bits"), [(1, 2), (2, 3), (3, 3), (4, 4), (7, 4), (64, 8), (127, 8)])
def test_levels_are_kept_in_as_few_bits_as_hold_them(quantum_num, bits):
    compressor = from_params({"compressor": "qsgd", "quantum_num": quantum_num}).compressor
    full = 2 ** (bits - 1) - 1
    assert compressor == QSGD(bits=bits, levels=None if quantum_num == full else quantum_num)


def test_world_size_is_ignored_with_a_word():
    with pytest.warns(UserWarning, match="world_size is ignored: the process group knows it"):
        assert from_params({"compressor": "none", "world_size": 8}) == MethodChoice(Identity())


def test_the_rate_that_cancels_is_ignored_with_a_word():
    with pytest.warns(UserWarning, match="lr is ignored: GRACE multiplies by it and divides again"):
        assert from_params({"compressor": "efsignsgd", "lr": 0.1}) == MethodChoice(EFSignSGD())


REFUSED = [
    ("topk", r"params must be a mapping of names to values, got 'topk'"),
    ({"compressor": 3}, "compressor must be a name, got 3"),
    ({"compressor": ["topk"]}, "compressor must be a name"),
    ({"compressor": "topkk"}, "unknown compressor 'topkk': did you mean 'topk'"),
    ({"memory": "residuals"}, "unknown memory 'residuals': did you mean 'residual'"),
    ({"communicator": "all_gather"}, "unknown strategy 'all_gather': did you mean 'allgather'"),
    ({"compressor": "topk", "communicator": "allreduce"}, "payloads of 'topk' cannot be summed: use .*allgather"),
    ({"compressor": "topk", "compres_ratio": 0.1}, "'compres_ratio' is no .* did you mean 'compress_ratio'"),
    ({"compressor": "topk", "quantum_num": 7}, "'quantum_num' is no parameter of 'topk'"),
    ({"compressor": "topk", "memory": "residual", "momentum": 0.9}, "'momentum' is no .* 'topk' and 'residual'"),
    ({"compressor": "fp16", "beta": 0.9}, "'beta' is no parameter of 'fp16'"),
    ({"compresor": "topk"}, "'compresor' is no parameter of 'none': did you mean 'compressor'"),
    ({"compressor": "topk", "ratio": 0.1, "compress_ratio": 0.2}, "'compress_ratio' and 'ratio' are the same"),
    ({"compressor": "topk", "compress_ratio": 1.5}, r"TopK\.ratio must be in \(0, 1\], got 1.5"),
    ({"compressor": "qsgd", "quantum_num": 256}, r"quantum_num must be an integer from 1 to 127 .*got 256"),
    ({"compressor": "qsgd", "quantum_num": 3.5}, "quantum_num must be an integer"),
    ({"compressor": "twobit", "threshold": 0}, r"TwoBit\.threshold must be"),
]


@pytest.mark.parametrize(("params", "message"), REFUSED, ids=str)
def test_refused(params, message):
    with pytest.raises(ConfigError, match=message):
        from_params(params)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("onebit", "onebit_sgd"),
        ("u8bit", "dynamic8"),
        ("sketch", "sketchml"),
        ("adaq", "adaptive_threshold"),
        ("terngrad", "terngrad"),
        ("natural", "natural"),
        ("efsignsgd", "efsignsgd"),
    ],
)
def test_a_method_with_another_name(theirs, ours):
    assert from_params({"compressor": theirs, "memory": "residual"}).compressor.name == ours


def test_a_method_that_needs_a_residual_runs_without_one_with_a_word():
    with pytest.warns(UserWarning, match=r"memory 'none' loses for good what TopK\(ratio=0.3.* does not send"):
        recipe = from_params({"compressor": "topk", "memory": "none"})
    assert recipe == MethodChoice(TopK(ratio=0.3), NoMemory(), force=True)
    assert Settings().exchange(recipe, {}, None, "cpu").methods.memory == NoMemory()
    # What the call itself says is not forced by the dictionary.
    with pytest.raises(ConfigError, match="say force=True"):
        Settings(memory="none").exchange(recipe, {}, None, "cpu")


def test_a_memory_that_loses_and_that_grace_does_not_have_is_refused():
    recipe = from_params({"compressor": "topk", "memory": "momentum"})
    with pytest.raises(ConfigError, match="memory 'momentum' loses for good what TopK"):
        Settings().exchange(recipe, {}, None, "cpu")


def test_a_momentum_that_is_in_the_method_there_is_in_the_memory_here():
    recipe = from_params({"compressor": "signum", "memory": "none", "momentum": 0.8})
    assert (recipe.memory.name, recipe.memory.beta) == ("momentum", 0.8)
    assert from_params({"compressor": "dgc", "memory": "dgc", "momentum": 0.5}).memory.momentum == 0.5


def test_a_word_that_another_method_has_itself():
    assert from_params({"compressor": "threshold", "threshold": 0.25}).compressor.v == 0.25
    assert from_params({"compressor": "twobit", "threshold": 0.25}).compressor.threshold == 0.25
