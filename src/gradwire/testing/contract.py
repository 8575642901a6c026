"""Contract of a compressor as checks; run them on a method of your own.

    from gradwire.testing import contract, inputs
    for make in inputs.SPECIAL.values():
        contract.check_all(MyMethod(), make(1000))

Each check takes a compressor and a finite, contiguous float32 tensor of any shape, and raises ``AssertionError`` with
the compressor's parameters in the message. One that does not apply to what the compressor declares does nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor, MultiRound
from gradwire.errors import ConfigError, WireError
from gradwire.testing import bounds, feedback, ranks
from gradwire.testing._expect import POISON, decode, encode, expect, payload_for, same
from gradwire.vocabulary import Key

__all__ = [
    "BOUNDS",
    "CHECKS",
    "check_all",
    "check_bad_bytes",
    "check_config",
    "check_decoder",
    "check_determinism",
    "check_elementwise",
    "check_inputs",
    "check_layout",
    "check_many",
    "check_properties",
    "check_summable",
    "check_used",
]

_GUARD = 64


def check_config(compressor: Compressor, _x: Tensor) -> None:
    """Check that the configuration survives JSON, and that an equal compressor hashes equally.

    A ``SimpleCompressor`` (its name says where the class stands, as ``module:Class``) is not rebuilt from a
    configuration: only JSON has to carry it.
    """
    if ":" in compressor.name:
        json.dumps(compressor.to_config())
        return
    config = json.loads(json.dumps(compressor.to_config()))
    name = config.pop("name")
    nested = {key: value for key, value in config.items() if isinstance(value, dict) and "name" in value}
    config |= {key: registry.from_config("compressors", value) for key, value in nested.items()}
    again = type(compressor)(**config)
    expect(name == compressor.name and again == compressor, compressor, f"became {again!r} through JSON")
    expect(hash(again) == hash(compressor), compressor, "equal configurations must hash equally")


def check_properties(compressor: Compressor, x: Tensor) -> None:
    """Check that the declared properties are consistent."""
    json.dumps(capabilities.properties(compressor))
    n, delta = x.numel(), capabilities.delta(compressor, x.numel())
    expect(0 <= delta <= 1, compressor, f"delta({n}) must be in [0, 1], got {delta}")
    expect(capabilities.omega(compressor, n) >= 0, compressor, f"omega({n}) must be >= 0")
    expect(compressor.alignment >= 0, compressor, "alignment must be >= 0")
    if capabilities.contraction(compressor):
        expect(compressor.feedback != "unsafe", compressor, "feedback is safe with a contraction")
    if compressor.summable:
        dtypes = {field.dtype for field in compressor.layout(x.shape).fields}
        expect(len(dtypes) == 1 and dtypes.pop().is_floating_point, compressor, "summable fields share one float dtype")
    if isinstance(compressor, MultiRound):
        fields = len(compressor.layout(x.shape).fields)
        reductions = compressor.reductions or ("mean",) * fields
        expect(len(reductions) == fields, compressor, f"{fields} fields, but reductions {reductions}")
        check_sums(compressor, x, reductions)
    if not compressor.fixed_size:
        first, *_, last = compressor.layout(x.shape).fields
        form = (first.name, first.dtype, first.count, last.name, last.dtype)
        wanted = ("used", torch.int32, 1, "stream", torch.uint8)
        expect(form == wanted, compressor, f"a payload of variable size starts and ends with {wanted}, not {form}")


def check_sums(compressor: MultiRound, x: Tensor, reductions: Sequence[str]) -> None:
    """Check that sums of integers refuse a number of ranks for which they have no room."""
    summed = zip(compressor.layout(x.shape).fields, reductions, strict=True)
    if all(how != "sum" or field.dtype.is_floating_point for field, how in summed):
        return
    capabilities.check_world(compressor, 1)
    try:
        capabilities.check_world(compressor, 2**32)
    except ConfigError:
        return
    expect(False, compressor, "sums integers, so check_world must refuse more ranks than fit")


def check_layout(compressor: Compressor, x: Tensor) -> None:
    """Check that ``encode`` writes every byte that travels and none outside the layout, and leaves x alone."""
    layout, before, bodies = compressor.layout(x.shape), x.clone(), []
    for poison in (0, POISON):
        memory = torch.full((layout.nbytes + 2 * _GUARD,), poison, dtype=torch.uint8, device=x.device)
        body = memory[_GUARD : _GUARD + layout.nbytes]
        payload = layout.views(body)
        compressor.encode(x, payload, compressor.init_state(x.shape, Key(), x.device), Key())
        bodies.append(body[: layout.nbytes if compressor.fixed_size else layout.cut(int(payload[0])).nbytes])
        guards = torch.cat([memory[:_GUARD], memory[_GUARD + layout.nbytes :]])
        expect(bool((guards == poison).all()), compressor, "encode wrote outside its payload")
        expect(same(x, before), compressor, "encode changed its input")
    expect(same(*bodies), compressor, f"encode did not write each of the {len(bodies[0])} bytes that travel")


def check_determinism(compressor: Compressor, x: Tensor) -> None:
    """Check that the key decides the payload, which differs at another step or rank if the method is random.

    Payloads that are summed must not depend on the rank.
    """
    first = encode(compressor, x, Key(step=1))[0]
    torch.rand(1)  # A method that drew from the global generator would notice.
    expect(same(encode(compressor, x, Key(step=1))[0], first), compressor, "one key gave two payloads")
    differing = {
        word: [not same(encode(compressor, x, Key(**{"step": 1, word: value}))[0], first) for value in range(2, 5)]
        for word in ("step", "rank", "phase")
    }
    if not compressor.random and not capabilities.in_rounds(compressor):
        expect(not any(map(any, differing.values())), compressor, "is not declared random but depends on the key")
    elif compressor.random and _is_generic(x) and not (capabilities.factorises(compressor) and _is_low_rank(x)):
        if compressor.summable:
            same_on_ranks = not any(differing.pop("rank"))
            expect(same_on_ranks, compressor, "payloads of two ranks cannot be summed: they depend on the rank")
        # A method that leaves little to chance may draw the same for two keys, but not for all.
        expect(all(map(any, differing.values())), compressor, "step, rank or phase does not matter")


def check_decoder(compressor: Compressor, x: Tensor) -> None:
    """Check that ``add_decoded`` adds, scales what it adds, and adds what is finite where elements have headroom."""
    payload = encode(compressor, x)[1]
    decoded, out = decode(compressor, payload, x), x.flip(0) if x.dim() else x.clone()
    if bool((x * capabilities.headroom(compressor)).isfinite().all()):
        expect(bool(decoded.isfinite().all()), compressor, "finite elements decode to some that are not finite")
    expected = out + -0.5 * decoded
    compressor.add_decoded(payload, out, -0.5)
    slack = 1e-6 * float(decoded.nan_to_num().abs().amax()) if x.numel() else 0.0
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=slack + 2.0**-120, equal_nan=True)


def check_many(compressor: Compressor, x: Tensor) -> None:
    """Check ``add_decoded_many`` against a loop, where payloads are averaged one by one, and ``decode_many`` against
    adding to zeros, bit for bit.
    """
    layout = compressor.layout(x.shape)
    stride = -(-layout.nbytes // 8) * 8 + 8
    rows = torch.full((3, stride), POISON, dtype=torch.uint8, device=x.device)
    for rank, scale in enumerate((1.0, -0.5, 0.25)):
        rows[rank, : layout.nbytes] = encode(compressor, x * scale, Key(rank=rank))[0]
    payloads = layout.views(rows[:, : layout.nbytes])
    if capabilities.average(compressor):
        looped, at_once = x.clone(), x.clone()
        for rank in range(3):
            compressor.add_decoded(tuple(field[rank] for field in payloads), looped, 1 / 3)
        compressor.add_decoded_many(payloads, at_once, 1 / 3)
        expect(same(looped, at_once), compressor, "add_decoded_many differs from the loop")
    added, anew = torch.zeros_like(x), torch.full_like(x, math.nan)
    compressor.add_decoded_many(payloads, added, 1 / 3)
    capabilities.decode_many(compressor, payloads, anew, 1 / 3)
    expect(same(added, anew), compressor, "decode_many differs from add_decoded_many to zeros")


def check_used(compressor: Compressor, x: Tensor) -> None:
    """Check that the unused part of a payload of variable size need not travel: without it the payload is accepted, and
    it decodes alike whatever is there.
    """
    if compressor.fixed_size:
        return
    layout = compressor.layout(x.shape)
    buffer, payload = encode(compressor, x)
    used = int(payload[0])
    expect(0 <= used <= layout.fields[-1].count, compressor, f"uses {used} of {layout.fields[-1].count} bytes")
    cut = layout.cut(used)
    alone = buffer[: cut.nbytes].clone()
    try:
        compressor.check_payload(cut.views(alone), x.shape)
    except Exception as error:
        raise AssertionError(f"{compressor!r}: check_payload fails without the unused bytes: {error}") from error
    decoded = decode(compressor, cut.views(alone), x)
    for unused in (0, POISON, 0xFF):
        buffer[cut.nbytes :].fill_(unused)
        expect(
            same(decoded, decode(compressor, payload, x)), compressor, "decodes another tensor without the unused bytes"
        )


def check_summable(compressor: Compressor, x: Tensor) -> None:
    """Check that D(p + q) = D(p) + D(q) up to rounding, and that a scale may go in before the code."""
    if not compressor.summable:
        return
    buffer, payload = payload_for(compressor, x)
    given = x.clone()
    capabilities.encode_scaled(compressor, given, 0.25, payload, compressor.init_state(x.shape, Key(), x.device), Key())
    expect(same(given, x), compressor, "encode_scaled changes the gradient")
    expect(same(buffer, encode(compressor, x * 0.25)[0]), compressor, "encode_scaled differs from encode(scale * x)")
    other = encode(compressor, x * -0.125)[1]
    total = tuple(p + q for p, q in zip(payload, other, strict=True))
    separate = decode(compressor, payload, x) + decode(compressor, other, x)
    eps = torch.finfo(payload[0].dtype)
    torch.testing.assert_close(
        decode(compressor, total, x), separate, rtol=2 * eps.eps, atol=eps.smallest_normal, equal_nan=True
    )


def check_elementwise(compressor: Compressor, x: Tensor) -> None:
    """Check that two neighbours encoded as one decode to what they decode to alone, if the method says so."""
    if not compressor.elementwise or compressor.random:
        return
    flat = x.view(-1)
    cut = flat.numel() // 2 // compressor.alignment * compressor.alignment
    parts = [decode(compressor, encode(compressor, part)[1], part) for part in (flat[:cut], flat[cut:])]
    whole = decode(compressor, encode(compressor, flat)[1], flat)
    expect(same(torch.cat(parts), whole), compressor, f"a cut at {cut} changes what is decoded")


def check_inputs(compressor: Compressor, x: Tensor) -> None:
    """Check that ``compress`` takes strided and 16-bit tensors by their values, and refuses what is no gradient."""
    strided = torch.stack([x, x + 1], dim=-1)[..., 0]
    expect(same(compressor.compress(strided), compressor.compress(x)), compressor, "a strided tensor differs")
    for dtype in (torch.float16, torch.bfloat16):
        short = x.to(dtype)
        wide = compressor.compress(short.float())
        expect(same(compressor.compress(short), wide), compressor, f"{dtype} input differs from its float32 copy")
    for bad in (x.isnan().int(), torch.complex(x, x), x.to_sparse() if x.dim() else x.bool()):
        try:
            compressor.compress(bad)
        except ConfigError as error:
            expect(str(bad.dtype) in str(error), compressor, f"the refusal of {bad.dtype} does not name it: {error}")
        else:
            raise AssertionError(f"{compressor!r}: compress accepted {bad.dtype} with layout {bad.layout}")


def check_bad_bytes(compressor: Compressor, x: Tensor) -> None:
    """Check that bytes of a wrong length are a ``WireError``, and that those of the right one decode or are one."""
    buffer = compressor.compress(x)
    for wrong in (buffer[:-1], torch.cat([buffer, buffer.new_zeros(1)]), buffer.to(torch.int16)):
        if wrong.numel() == buffer.numel() and wrong.dtype == buffer.dtype:
            continue
        try:
            compressor.decompress(wrong, x.shape)
        except WireError:
            continue
        raise AssertionError(f"{compressor!r}: decoded {wrong.numel()} {wrong.dtype} instead of {buffer.numel()} uint8")
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        noise = torch.randint(0, 256, buffer.shape, dtype=torch.uint8, generator=generator)
        try:
            out = compressor.decompress(noise, x.shape)
        except WireError:
            continue
        expect(out.shape == x.shape, compressor, f"noise decoded to shape {tuple(out.shape)}")


def _is_generic(x: Tensor) -> bool:
    """Return whether a random method has something to decide: many different elements of moderate size."""
    if x.numel() < 64 or len(set(x.view(-1).tolist())) <= x.numel() // 2:
        return False
    return 1e-18 < float(x.abs().amax()) < 1e18


def _is_low_rank(x: Tensor) -> bool:
    """Return whether a few directions are the whole folded matrix, which a method of low rank may send."""
    side = math.isqrt(x.numel())
    folded = x.reshape(-1)[: side * side].view(side, side)
    return 2 * int(torch.linalg.matrix_rank(folded.double(), rtol=1e-6)) < side


CHECKS = (
    check_config,
    check_properties,
    check_layout,
    check_determinism,
    check_decoder,
    check_many,
    check_used,
    check_summable,
    check_elementwise,
    check_inputs,
    check_bad_bytes,
    feedback.check_feedback,
    feedback.check_undo,
    feedback.check_nonfinite,
    ranks.check_rounds,
)
"""The checks that hold exactly, in the order in which a failure says most."""

BOUNDS = (bounds.check_unbiased, bounds.check_omega, bounds.check_contraction)
"""The checks of an expectation; on a random method each encodes hundreds of times."""


def check_all(compressor: Compressor, x: Tensor) -> None:
    """Run every check of ``CHECKS`` and ``BOUNDS``.

    >>> from gradwire.compressors.ternary.twobit import TwoBit
    >>> check_all(TwoBit(threshold=0.5), torch.tensor([0.4, -0.7, 2.0]))
    """
    for check in CHECKS + BOUNDS:
        check(compressor, x)
