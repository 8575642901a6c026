import dataclasses

import pytest

from gradwire import registry
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire_lab.bench import codec, verify
from gradwire_lab.bench.steps import STEPS
from gradwire_lab.bench.verify import Checks, WrongResultError, check

SIZES = (1, 17, 1000)
STEP = {step.name: step for step in STEPS}


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
@pytest.mark.parametrize("name", registry.names("compressors"))
def test_every_method_agrees_with_the_contract_in_plain_torch(name, step):
    compressor = registry.build("compressors", name)
    assert [check(step, compressor, n) for n in SIZES] == list(SIZES)


WRONG = {
    "encode": (
        "    def encode(self, x, payload, state, key):\n        pass\n",
        r"encode of 1000 elements: payload codes differs .* at \d+ of 252 places, first at 0",
    ),
    "encode_feedback": (
        "    def encode_feedback(self, grad, residual, payload, state, key, status=None):\n"
        "        super().encode_feedback(grad, residual, payload, state, key, status)\n"
        "        residual[-1, -1] += 1e-6\n",
        "encode_feedback of 1000 elements: residual differs .* at 1 of 1000 places, first at 999",
    ),
    "encode_feedback_undo": (
        "    def encode_feedback(self, grad, residual, payload, state, key, status=None):\n"
        "        super().encode_feedback(grad, residual, payload, state, key)\n",
        "encode_feedback_undo of 1000 elements: grad differs",
    ),
    "decode8": (
        "    def add_decoded_many(self, payloads, out, scale=1.0):\n"
        "        super().add_decoded_many(tuple(field[:7] for field in payloads), out, scale)\n",
        "decode8 of 1000 elements: out differs",
    ),
}


@pytest.mark.parametrize("step", WRONG)
def test_a_wrong_result_is_found_and_not_timed(broken, step):
    body, message = WRONG[step]
    rows = codec.rows([broken(body)], [1000], repeats=1)
    timed = []
    with pytest.raises(WrongResultError, match=message):
        timed.extend(row["op"] for row in rows)
    names = list(STEP)
    assert timed == names[: names.index(step)]


def test_a_kernel_that_disagrees_with_its_reference_is_found(broken):
    compressor = broken(
        "    def encode(self, x, payload, state, key):\n"
        "        import torch\n"
        "        from torch.utils._python_dispatch import _get_current_dispatch_mode\n"
        "        super().encode(x, payload, state, key)\n"
        "        if _get_current_dispatch_mode() is None:\n"
        "            payload[0][3] ^= 1\n"
    )
    with pytest.raises(WrongResultError, match="at 1 of 252 places, first at 3"):
        check(STEP["encode"], compressor, 1000)


@pytest.mark.parametrize(("patience", "compared", "largest"), [(0.0, [1000], 1000), (1e9, [1000, 1001, 4000], 4000)])
def test_a_size_above_is_compared_where_the_reference_is_fast_and_what_was_compared_is_not_again(
    monkeypatch, patience, compared, largest
):
    monkeypatch.setattr(verify, "ALWAYS", 1000)
    monkeypatch.setattr(verify, "PATIENCE", patience)
    seen = []

    def plain(work):
        seen.append(work.n)
        STEP["encode"].plain(work)

    step, checks = dataclasses.replace(STEP["encode"], plain=plain), Checks()
    assert [checks(step, TwoBit(), n) for n in (1000, 1001, 4000)] == [1000, min(1001, largest), largest]
    assert seen == compared
    assert checks(step, TwoBit(), 999) == 999


def test_a_decoder_that_writes_into_its_payload_is_found(broken):
    compressor = broken(
        "    def add_decoded(self, payload, out, scale=1.0):\n"
        "        from torch.utils._python_dispatch import _get_current_dispatch_mode\n"
        "        super().add_decoded(payload, out, scale)\n"
        "        if _get_current_dispatch_mode() is None:\n"
        "            payload[0][5] ^= 1\n"
    )
    with pytest.raises(WrongResultError, match=r"decode of 1000 elements: payload codes differs .* first at 5"):
        check(STEP["decode"], compressor, 1000)
