"""Tagged streams: every target against the reference, the form that is the tensor itself, bytes that are missing."""

import pytest
import torch

from gradwire.contrib.compressors.casts.ops import (
    capacity,
    inceptionn_add_decoded,
    inceptionn_encode,
    inceptionn_encode_feedback,
)
from gradwire.errors import ConfigError
from tests.cases import together
from tests.ops.harness import Case, check_against_reference, gradient, random_bytes, sweep, torch_threads

bounds = pytest.mark.parametrize("bound", [1, 6, 10, 15])
scales = pytest.mark.parametrize("scale", [1e-3, 0.3, 1e3])


def outputs(n):
    return {"used": ((1,), torch.int32), "stream": ((capacity(n),), torch.uint8)}


def streams(n, bound):
    for scale in (1e-3, 0.3, 1e3):
        used, stream = torch.empty(1, dtype=torch.int32), torch.empty(capacity(n), dtype=torch.uint8)
        inceptionn_encode(gradient(n, 3, finite=False) * scale, used, stream, bound)
        yield stream
        yield stream[: int(used)]


@sweep
@bounds
@scales
def test_encode(n, threads, offset, bound, scale):
    x = gradient(n, 1, finite=False) * scale
    check_against_reference(Case(inceptionn_encode, {"x": x}, outputs(n), {"bound": bound}), threads, offset)


@sweep
@bounds
@scales
@pytest.mark.parametrize("watched", [True, False])
def test_encode_feedback(n, threads, offset, bound, scale, watched):
    written = {"grad": gradient(n, 1) * scale, "residual": gradient(n, 2, finite=False) * scale, **outputs(n)}
    arguments = {"bound": bound} | ({} if watched else {"status": None})
    if watched:
        written["status"] = torch.tensor([2], dtype=torch.int32)
    check_against_reference(Case(inceptionn_encode_feedback, {}, written, arguments), threads, offset)


@sweep
@bounds
def test_add_decoded(n, threads, offset, bound):
    found = list(streams(n, bound))
    # One rank with the part in use, and several with the whole capacity, codes and tensors as they are among them.
    for rows in (*(stream[None] for stream in found[1::2]), torch.stack(found[::2])):
        arguments = {"bound": bound, "scale": -1 / 3}
        case = Case(inceptionn_add_decoded, {"streams": rows}, {"out": gradient(n, 6)}, arguments, pitch=3)
        check_against_reference(case, threads, offset)


@sweep
@pytest.mark.parametrize("form", [0, 1, 200])
@pytest.mark.parametrize("length", ["none", "one", "an eighth", "half", "three times"])
def test_any_bytes_decode_alike(n, threads, offset, form, length):
    lengths = {"none": 0, "one": 1, "an eighth": n // 8, "half": n // 2, "three times": 3 * n}
    rows = random_bytes((2, lengths[length]), 7)
    rows[:, :1] = form
    arguments = {"bound": 10, "scale": 1.0}
    case = Case(inceptionn_add_decoded, {"streams": rows}, {"out": gradient(n, 6)}, arguments)
    check_against_reference(case, threads, offset)


def test_threads_agree():
    x = gradient(200_000, 7)
    results = []
    for threads in (1, 2):
        used, stream = torch.empty(1, dtype=torch.int32), torch.empty(capacity(200_000), dtype=torch.uint8)
        with torch_threads(threads):
            inceptionn_encode(x, used, stream, 10)
        results.append(stream[: int(used)])
    assert torch.equal(*results)


@together
@pytest.mark.parametrize("bad", [0, 16, -1])
def test_a_wrong_bound_is_named(bad):
    used, stream = torch.empty(1, dtype=torch.int32), torch.empty(17, dtype=torch.uint8)
    with pytest.raises(ConfigError, match=f"^inceptionn_encode.bound must be an integer from 1 to 15, got {bad}$"):
        inceptionn_encode(torch.ones(4), used, stream, bad)
