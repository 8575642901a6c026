import pytest
import torch

from gradwire.compressors.casts.ops import cast_add_decoded, cast_encode, cast_encode_feedback
from gradwire.errors import ConfigError
from tests.cases import together
from tests.ops.harness import TARGETS, Case, assert_same_bits, check_against_reference, dispatched, gradient, sweep

HALVES = (torch.float16, torch.bfloat16)
CASTS = (*HALVES, torch.float32)


@sweep
@pytest.mark.parametrize("dtype", CASTS)
def test_encode(n, threads, offset, dtype):
    for scale in (1.0, 1 / 3, 1e-6):
        case = Case(cast_encode, {"x": gradient(n, 1, finite=False)}, {"out": ((n,), dtype)}, {"scale": scale})
        check_against_reference(case, threads, offset)


@sweep
@pytest.mark.parametrize("dtype", CASTS)
@pytest.mark.parametrize("ranks", [0, 1, 3])
def test_add_decoded(n, threads, offset, dtype, ranks):
    payloads = gradient(n * ranks, 2, finite=False).to(dtype).view(ranks, n)
    case = Case(cast_add_decoded, {"payloads": payloads}, {"out": gradient(n, 3)}, {"scale": -1 / 3}, pitch=3)
    check_against_reference(case, threads, offset)


@sweep
@pytest.mark.parametrize("dtype", CASTS)
@pytest.mark.parametrize("watched", [True, False])
def test_encode_feedback(n, threads, offset, dtype, watched):
    for finite in (True, False):
        written = {"grad": gradient(n, 2, finite=finite), "residual": gradient(n, 3), "out": ((n,), dtype)}
        if watched:
            written["status"] = torch.tensor([2], dtype=torch.int32)
        case = Case(cast_encode_feedback, {}, written, {} if watched else {"status": None})
        check_against_reference(case, threads, offset)


@together
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("dtype", "flagged"), [(torch.float16, 1), (torch.bfloat16, 0), (torch.float32, 0)])
def test_a_code_that_overflows_is_reported(target, dtype, flagged):
    status = torch.zeros(1, dtype=torch.int32)
    with dispatched(target):
        cast_encode_feedback(torch.tensor([1.0, 7e4]), torch.zeros(2), torch.empty(2, dtype=dtype), status)
    assert status.item() == flagged


def test_other_formats_are_refused():
    allowed = (
        r"^cast_encode\.out must be a flat contiguous torch.float16 or torch.bfloat16 or torch.float32 .* torch.float64"
    )
    with pytest.raises(ConfigError, match=allowed):
        cast_encode(torch.zeros(2), torch.zeros(2, dtype=torch.float64), 1.0)


@together
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", HALVES)
def test_every_value_decodes_exactly(target, dtype):
    values = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)
    decoded, encoded = torch.zeros(65536), torch.empty(65536, dtype=dtype)
    with dispatched(target):
        cast_add_decoded(values[None], decoded, 1.0)
        cast_encode(decoded, encoded, 1.0)
    assert_same_bits(decoded, torch.zeros(65536) + values.float(), "decoded")
    assert_same_bits(encoded, torch.where(values == 0, 0, values), "encoded")


@together
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", HALVES)
def test_ties_round_to_even(target, dtype):
    lower = torch.arange(0, 0x7800, 7, dtype=torch.int16).view(dtype)
    upper = (lower.view(torch.int16) + 1).view(dtype)
    even = torch.where(lower.view(torch.int16) % 2 == 0, lower, upper)
    between = ((lower.double() + upper.double()) / 2).float()
    encoded = torch.empty_like(lower)
    with dispatched(target):
        cast_encode(between, encoded, 1.0)
    assert_same_bits(encoded, even, "ties")
