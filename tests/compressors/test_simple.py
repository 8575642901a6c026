"""The simple door: everything a researcher may write, run under the full contract."""

import copy
import math
import pickle
import re
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from gradwire.compressors import capabilities
from gradwire.compressors._adapted import Adapted
from gradwire.compressors.simple import SimpleCompressor
from gradwire.compressors.sparse.topk import TopK
from gradwire.compressors.wrappers.compose import compose
from gradwire.contrib.compressors.wrappers.entropy import Entropy
from gradwire.engine.exchange import Exchange
from gradwire.engine.policy import Policy
from gradwire.errors import ConfigError, WireError
from gradwire.testing import contract, inputs
from gradwire.vocabulary import Key
from gradwire.wire import Packing
from tests.cases import together
from tests.compressors.methods import (
    Drawn,
    Half,
    Linear8,
    Momentum,
    OwnMemory,
    Rude,
    Signs,
    Summed,
    TopHalf,
    Vote,
)

DOCS = Path(__file__).parents[2] / "docs" / "simple.md"
CHECKS = contract.CHECKS + contract.BOUNDS


def documented() -> dict[str, type[SimpleCompressor]]:
    """The classes of the documentation's examples, compiled from the page itself."""
    found = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    blocks = [block for block in found if re.search("^class ", block, re.MULTILINE)]
    space: dict = {"__name__": "documented"}
    exec(compile("\n".join(blocks), str(DOCS), "exec"), space)
    return space


EXAMPLES = documented()


def encode(compressor, x, key=None, state=None):
    layout = compressor.layout(x.shape)
    buffer = torch.zeros(layout.nbytes, dtype=torch.uint8)
    payload = layout.views(buffer)
    key = key or Key()
    compressor.encode(x, payload, compressor.init_state(x.shape, key) if state is None else state, key)
    return payload


def rows(compressor, xs):
    """Payloads of several ranks, as ``add_decoded_many`` gets them."""
    layout = compressor.layout(xs[0].shape)
    packing = Packing((layout,))
    buffer = torch.zeros(len(xs), packing.nbytes, dtype=torch.uint8)
    for rank, x in enumerate(xs):
        compressor.encode(x, packing.payload(buffer[rank], 0), {}, Key(rank=rank))
    return packing.payload(buffer, 0)


@together
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(
    "method",
    [EXAMPLES["ScaledSign"], TopHalf, Linear8, Half, Signs, Summed, Vote],
    ids=lambda m: m.__name__,
)
def test_contract(method, check):
    sizes = {"spike": 1, "heavy tail": 33, "zero": 17, "denormal": 40, "huge": 64, "mixed scales": 50}
    for kind, n in sizes.items():
        check(method().adapted(), inputs.SPECIAL[kind](n))
    check(method().adapted(), torch.zeros(0))
    check(method().adapted(), inputs.gaussian(60).view(3, 4, 5))


def test_documented_memory_is_error_feedback_that_fades():
    code = EXAMPLES["ForgetfulSign"]().adapted()
    grads = [inputs.gaussian(50, seed) for seed in range(4)]
    state, unsent = code.init_state((50,), Key()), torch.zeros(50)
    for step, grad in enumerate(grads):
        payload = encode(code, grad, Key(step=step, tensor=9), state)
        x = 0.9 * unsent + grad
        sent = torch.zeros(50)
        code.add_decoded(payload, sent)
        torch.testing.assert_close(sent, x.abs().mean() * torch.where(x >= 0, 1.0, -1.0))
        unsent = x - sent
        torch.testing.assert_close(state["unsent"], unsent)
    assert code.alignment == 0


def test_state_continues_from_a_checkpoint():
    grads = [inputs.gaussian(40, seed) for seed in range(6)]

    def run(code, state, some):
        return [encode(code, grad, Key(tensor=3), state)[0].clone() for grad in some]

    code = Momentum().adapted()
    state = code.init_state((40,), Key())
    run(code, state, grads[:3])
    saved = {name: tensor.clone() for name, tensor in state.items()}
    expected = run(code, state, grads[3:])
    resumed = run(Momentum().adapted(), saved, grads[3:])
    assert all(torch.equal(a, b) for a, b in zip(resumed, expected, strict=True))
    fresh = run(Momentum().adapted(), code.init_state((40,), Key()), grads[3:])
    assert not all(torch.equal(a, b) for a, b in zip(fresh, expected, strict=True))


def test_state_is_visible_under_the_name():
    method = Momentum()
    state = {"m": torch.zeros(4)}
    encode(method.adapted(), torch.ones(4), Key(tensor=255), state)
    assert list(method.state) == ["00000000000000ff"]
    assert method.state["00000000000000ff"] is state
    torch.testing.assert_close(state["m"], torch.full((4,), 0.1))


@pytest.mark.parametrize("method", [Momentum, EXAMPLES["ForgetfulSign"]])
def test_a_gradient_that_is_not_finite_leaves_the_state(method):
    code = method().adapted()
    state = code.init_state((5,), Key())
    encode(code, torch.arange(5.0), Key(), state)
    before = {name: tensor.clone() for name, tensor in state.items()}
    encode(code, torch.tensor([1.0, torch.nan, 0.0, 0.0, 0.0]), Key(), state)
    assert all(torch.equal(state[name], before[name]) for name in before)


def test_own_memory_refuses_a_second_one():
    code = EXAMPLES["ForgetfulSign"]().adapted()
    payload = code.layout((4,)).views(torch.zeros(code.layout((4,)).nbytes, dtype=torch.uint8))
    with pytest.raises(ConfigError, match=r"has a memory of its own .* use memory='none'"):
        code.encode_feedback(torch.ones(4), torch.zeros(4), payload, code.init_state((4,), Key()), Key())


@together
@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("world", [1, 3])
def test_average_flag_means_what_it_means_in_grace(average, world):
    code = Signs(average=average).adapted()
    xs = [inputs.gaussian(20, rank) for rank in range(world)]
    out = torch.zeros(20)
    code.add_decoded_many(rows(code, xs), out, 1.0 / world)
    total = sum(torch.where(x >= 0, 1.0, -1.0) for x in xs)
    torch.testing.assert_close(out, total / world if average else total)


@together
@pytest.mark.parametrize("wrap", [Entropy, lambda inner: compose(TopK(0.5), inner)])
@pytest.mark.parametrize("method", [Vote(), Half(average=False)])
def test_what_opens_payloads_one_by_one_refuses_a_method_that_takes_all_at_once(wrap, method):
    with pytest.raises(ConfigError, match=r"\.inner must be a method whose payloads are averaged one by one"):
        wrap(method.adapted())


def test_an_unsafe_method_is_refused_inside_one_that_needs_error_feedback():
    code = make(lambda x: ([x], None), feedback="unsafe").adapted()
    with pytest.raises(ConfigError, match=r"^Compose\.inner must be safe .* use compose\(TopK\(.*\), \.\.\.\), got "):
        compose(TopK(), code)


def test_a_summable_method_has_no_aggregate_of_its_own():
    class Both(Half):
        def aggregate(self, tensors):
            return tensors[0]

    with pytest.raises(ConfigError, match="Both cannot be summable with an aggregate of its own"):
        Both().adapted()


def test_a_method_with_a_memory_of_its_own_gets_no_other():
    code = OwnMemory().adapted()
    assert Exchange(code).methods.memory_for(code).name == "none"
    with pytest.raises(ConfigError, match="which is defined with memory 'none'"):
        Exchange(code, memory="dgc")


@pytest.mark.parametrize("method", [Vote, EXAMPLES["Vote"]])
def test_aggregate_is_honoured(method):
    code = method().adapted()
    xs = [torch.tensor([1.0, -1.0, 1.0]), torch.tensor([1.0, -1.0, -1.0]), torch.tensor([-1.0, -1.0, -1.0])]
    out = torch.full((3,), 10.0)
    code.add_decoded_many(rows(code, xs), out, 1.0 / 3)
    torch.testing.assert_close(out, torch.tensor([11.0, 9.0, 9.0]))


def test_summable_payloads_hold_the_scaled_values():
    code = Half().adapted()
    x = inputs.gaussian(30)
    total = torch.zeros(30, dtype=torch.float16)
    for _ in range(4):
        payload = code.layout((30,)).views(torch.zeros(60, dtype=torch.uint8))
        capabilities.encode_scaled(code, x.clone(), 0.25, payload, {}, Key())
        total += payload[0]
    out = torch.zeros(30)
    code.add_decoded((total,), out)
    torch.testing.assert_close(out, x, rtol=2e-3, atol=1e-3)


def test_own_ctx_is_found_by_tensor():
    code = Drawn(k=4).adapted()
    a, b = inputs.gaussian(12, 1), inputs.gaussian(12, 2)
    first, second = encode(code, a, Key(tensor=1)), encode(code, b, Key(tensor=2))
    assert code.layout((12,)).nbytes == 4 * 4 + 8
    assert code.alignment == 0
    for x, payload in ((a, first), (b, second)):
        out = torch.zeros(12)
        code.add_decoded(payload, out)
        assert (out != 0).sum() == 4
        torch.testing.assert_close(out[out != 0], x[out != 0])
    with pytest.raises(ConfigError, match="this rank never compressed the tensor"):
        Drawn(k=4).adapted().add_decoded(first, torch.zeros(12))


def test_what_the_users_code_does_stays_with_it():
    code, x = Rude().adapted(), inputs.gaussian(10)
    kept = x.clone()
    payload = encode(code, x)
    assert torch.equal(x, kept)
    for _ in range(2):
        out = torch.zeros(10)
        code.add_decoded(payload, out)
        torch.testing.assert_close(out, kept, rtol=1e-3, atol=1e-3)


def test_the_probe_leaves_no_trace():
    method = Drawn(k=2)
    method.adapted().layout((8,))
    assert method.calls == {}
    before = torch.get_rng_state()
    Linear8().adapted().compress(inputs.gaussian(9))
    assert torch.equal(torch.get_rng_state(), before)


def test_layout_is_learnt_from_zeros():
    layout = TopHalf(0.25).adapted().layout((2, 8))
    assert [(field.dtype, field.count) for field in layout.fields] == [(torch.float32, 4), (torch.int32, 4)]
    assert [field.dtype for field in Signs().adapted().layout((3,)).fields] == [torch.uint8]
    mixed = make(lambda x: ([x >= 0, x.double(), x.half(), x.view(-1, 1)], None)).adapted().layout((3,))
    assert [field.dtype.itemsize for field in mixed.fields] == [8, 4, 2, 1]
    assert mixed.nbytes == 3 * 15
    assert TopHalf().adapted().layout((4, 0)).nbytes == 0


def make(send, **attributes):
    """A method whose ``compress`` returns ``send(tensor)``, and which decompresses to what it got first."""

    class Made(SimpleCompressor):
        def compress(self, tensor, name):
            return send(tensor)

        def decompress(self, tensors, ctx):
            return tensors[0]

    for key, value in attributes.items():
        setattr(Made, key, value)
    return Made()


BAD_CALLS = [
    (lambda x: ([x[x > 0]], None), "pad the tensors to sizes that follow from the shape"),
    (lambda x: ([x.half() if x.any() else x], None), "compress gave .*float16.* but .*float32.* for zeros"),
    (lambda x: ([x], float(x.sum())), "another ctx than for zeros"),
    (lambda x: ([x], (x.shape, [x.clone()])), "another ctx than for zeros"),
    (lambda x: ([x], {1: 2} if x.any() else {}), "another ctx than for zeros"),
    (lambda x: x, r"must return \(\[tensor, ...\], ctx\), got Tensor"),
    (lambda x: ([x.numel()], None), "dense tensors of at most 64 bits an item, got int"),
    (lambda x: ([x.to(torch.complex128)], None), "at most 64 bits an item, got torch.strided torch.complex128"),
    (lambda x: ([x.to_sparse()], None), "dense tensors .* got torch.sparse_coo"),
]


@together
@pytest.mark.parametrize(("compress", "message"), BAD_CALLS)
def test_a_compress_that_breaks_its_word(compress, message):
    with pytest.raises(ConfigError, match=message):
        make(compress).adapted().compress(torch.tensor([1.0, -2.0, 3.0]))


def test_ctx_may_hold_anything_that_is_equal():
    code = make(lambda x: ([x], (x.shape, [torch.arange(3), {"n": 3}], None, "text"))).adapted()
    x = torch.tensor([1.0, -2.0, 3.0])
    assert torch.equal(code.decompress(code.compress(x), (3,)), x)


@together
@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"tensors_size_are_same": False}, "Made.tensors_size_are_same must be True: .*fixed_size = False"),
        ({"summable": True, "ctx_from_shape": False}, "cannot be summable with ctx_from_shape = False"),
        ({"alignment": -1}, "Made.alignment must be an integer >= 0, got -1"),
        ({"feedback": "requried"}, "Made.feedback must be one of required, optional, built-in, unsafe, got 'requried'"),
    ],
)
def test_a_declaration_that_cannot_be_kept(attributes, message):
    with pytest.raises(ConfigError, match=message):
        make(lambda x: ([x], None), **attributes).adapted()


@pytest.mark.parametrize("fine", [True, False])
def test_the_methods_word_that_it_is_fine_counts(fine):
    assert capabilities.fine(make(lambda x: ([x], None), fine=fine).adapted()) is fine


def test_summable_needs_one_float_tensor():
    with pytest.raises(ConfigError, match="is summable, so compress must give one tensor of 16- or 32-bit floats"):
        make(lambda x: ([x, x], None), summable=True).adapted().layout((3,))


def test_a_sum_of_8_bit_floats_is_refused():
    with pytest.raises(ConfigError, match="one tensor of 16- or 32-bit floats"):
        make(lambda x: ([x.to(torch.float8_e4m3fn)], None), summable=True).adapted().layout((3,))


def test_sending_nothing_is_refused():
    with pytest.raises(ConfigError, match="must return at least one tensor"):
        make(lambda _: ([], None)).adapted().layout((3,))


@pytest.mark.parametrize("ctx", [np.zeros(3), {"mean": torch.zeros(3)}], ids=["array", "dict of tensors"])
def test_a_ctx_that_cannot_be_compared_is_refused(ctx):
    code = make(lambda x: ([x], copy.deepcopy(ctx))).adapted()
    with pytest.raises(ConfigError, match="ctx must be made of None, numbers, strings, tensors"):
        encode(code, torch.ones(3))


def test_decompress_of_another_size():
    code = make(lambda x: ([x[:2]], None)).adapted()
    payload = encode(code, torch.ones(3))
    with pytest.raises(ConfigError, match=r"decompress must give a tensor of shape \(3,\), got shape \(2,\)"):
        code.add_decoded(payload, torch.zeros(3))


def test_state_keys_come_from_init_state():
    class Late(Signs):
        def compress(self, tensor, name):
            self.state[name]["seen"] = tensor.clone()
            return super().compress(tensor, name)

    with pytest.raises(ConfigError, match="return every key from init_state"):
        Late().adapted().compress(torch.ones(3))


def test_a_compress_that_fails_on_zeros():
    with pytest.raises(ConfigError, match=r"Made\.compress fails on zeros of shape \(2, 3\): .*invalid for input"):
        make(lambda x: ([x.view(4, 4)], None)).adapted().layout((2, 3))


def test_a_method_that_cannot_be_copied():
    method = TopHalf()
    method.lock = threading.Lock()
    with pytest.raises(ConfigError, match=r"must allow copy\.deepcopy"):
        method.adapted().layout((3,))


def test_configuration_names_the_class_and_its_numbers():
    method = TopHalf(0.25)
    code = method.adapted()
    assert code.to_config() == {"name": "tests.compressors.methods:TopHalf", "ratio": 0.25}
    method.ratio = 0.5
    assert code.to_config()["ratio"] == 0.25
    assert repr(TopHalf(0.25)) == "TopHalf(ratio=0.25)"
    assert "(average=False)" in repr(Signs(average=False))
    assert code == method.adapted()
    assert hash(code) == hash(method.adapted())
    assert code != TopHalf(0.25).adapted()


def test_copies_and_pickles():
    code = Signs().adapted()
    for again in (copy.deepcopy(code), pickle.loads(pickle.dumps(code))):
        assert isinstance(again, Adapted)
        assert again.to_config() == code.to_config()
        assert torch.equal(again.compress(torch.ones(5)), code.compress(torch.ones(5)))


def test_bytes_that_the_method_cannot_decompress():
    code = TopHalf(0.5).adapted()
    payload = code.compress(inputs.gaussian(10))
    payload[-1] = 0x7F
    with pytest.raises(WireError, match=r"TopHalf\.decompress refuses the payload"):
        code.decompress(payload, (10,))


class Reusing(SimpleCompressor):
    """Gives the same two tensors in every call."""

    def __init__(self):
        super().__init__()
        self.sent, self.decompressed = torch.zeros(3), torch.zeros(3)

    def compress(self, tensor, name):
        return [self.sent.copy_(tensor)], None

    def decompress(self, tensors, ctx):
        return self.decompressed.copy_(tensors[0])


class Adding(Reusing):
    def aggregate(self, tensors):
        return torch.stack(list(tensors)).sum(0)


def test_an_aggregate_gets_every_rank_though_all_are_decompressed_into_one_tensor():
    code, out = Adding().adapted(), torch.zeros(3)
    code.add_decoded_many(rows(code, [torch.ones(3), torch.full((3,), 5.0)]), out, 0.5)
    assert out.tolist() == [3.0, 3.0, 3.0]


class Interrupted(torch.Tensor):
    """A tensor before whose change another thread is given the time to use the method."""

    other = None

    def copy_(self, source):
        self._wait()
        return super().copy_(source)

    def add_(self, source, *, alpha=1):
        self._wait()
        return super().add_(source, alpha=alpha)

    def _wait(self):
        self.other.start()
        self.other.join(0.5)


def interrupted(tensor, work):
    made = tensor.as_subclass(Interrupted)
    made.other = threading.Thread(target=work)
    return made


def test_tensors_that_a_method_reuses_are_read_before_another_thread_may_use_it():
    code, fives = Reusing().adapted(), torch.full((3,), 5.0)
    theirs = encode(code, fives)
    field = interrupted(torch.zeros(3), lambda: encode(code, fives))
    code.encode(torch.ones(3), (field,), {}, Key())
    out = interrupted(torch.zeros(3), lambda: code.add_decoded(theirs, torch.zeros(3)))
    code.add_decoded((torch.ones(3),), out)
    for each in (field, out):
        each.other.join()
        assert each.tolist() == [1.0, 1.0, 1.0]


@together
@pytest.mark.parametrize("code", [Half().adapted(), TopK(0.1, "float16")], ids=str)
def test_an_element_that_float16_does_not_hold_makes_a_step_that_does_not_count(code):
    """Its infinity would arrive untold where payloads are gathered and nothing is kept."""
    flat = 7e4 * torch.ones(100)
    options = {"memory": "none", "strategy": "allgather", "force": True}
    exchange = Exchange(code, policy=Policy(min_numel=0), **options)
    exchange.begin_step()
    exchange.run(flat, [("w", (100,))])
    assert exchange.metrics()["nonfinite_steps"] == 1


@together
@pytest.mark.parametrize("bad", [0.5, -1.0, math.inf, True, "2"])
def test_a_headroom_out_of_range_is_named(bad):
    method = Half()
    method.headroom = bad
    with pytest.raises(ConfigError, match=r"Half\.headroom must be a finite number >= 1 in float32, got "):
        method.adapted()
