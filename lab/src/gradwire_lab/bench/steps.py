"""Operations that are timed: each as it runs, as the contract describes it, and with the fewest bytes it must move.

The contract's wording of a fused operation is the default of ``Compressor``: encode, then decode with a minus sign.
A compressor that overrides it must give the same bits. A method that is defined with a memory of its own encodes
through that memory in an exchange, so with feedback the memory's ``encode`` is timed, which can always be undone.

Fewest bytes, for n float32 elements and w bytes of payload: the gradient is read once (4n), a residual is read and
written (8n), as is whatever else a memory keeps and changes, in the bytes in which it is stored, with 4n for its
undo; an accumulator likewise, a payload crosses once. In a method of several rounds a round must be complete
before the next can begin, so each one reads the gradient again, and the residual is finished in a pass of its own.
A payload that names its elements ("indices"), or whose size depends on them, touches, when decoded, at most one cache
line for each. Of a payload of variable size w is what is in use, so these figures hold once it was written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire_lab.bench.workload import Workload, filled

__all__ = ["STEPS", "Step"]

RANKS = 8
_LINE_READ_AND_WRITTEN = 2 * 64


@dataclass(frozen=True)
class Step:
    """One operation of a compressor.

    Args:
        name: name in the rows.
        run: function to time.
        plain: the same in the contract's own words.
        fewest_bytes: bytes that must cross between memory and processor.
        decodes: needs payloads to begin with.
        ranks: payloads.
    """

    name: str
    run: Callable[[Workload], None]
    plain: Callable[[Workload], None]
    fewest_bytes: Callable[[Workload], int]
    decodes: bool = False
    ranks: int = 1

    def refusal(self, compressor: Compressor) -> str | None:
        """The reason why there is no such operation; None if there is one. Several payloads of a method of rounds are
        never decoded together.
        """
        if self.ranks > 1 and capabilities.in_rounds(compressor):
            return "the payload is the mean over all ranks already"
        return None

    def workload(
        self, compressor: Compressor, n: int, poison: int = 0, *, own: bool = False, device: str = "cpu"
    ) -> Workload:
        """Make the tensors that ``run`` and ``plain`` expect.

        Args:
            compressor: compressor to measure.
            n: elements.
            poison: byte of new memory, as for ``Workload``; of no use to a step that decodes.
            own: payloads in memory of its own, where others of these arguments share it.
            device: device of all tensors.
        """
        if not self.decodes:
            return Workload(compressor, n, self.ranks, poison, device=device)
        rows = filled(compressor, n, self.ranks)
        return Workload(compressor, n, self.ranks, rows=rows.clone() if own else rows, device=device)


def _encode(work: Workload) -> None:
    work.compressor.encode(work.grad, work.payload, work.state, work.key)


def _encode_bytes(work: Workload) -> int:
    return 4 * work.n * capabilities.rounds_needed(work.compressor) + round(work.sent)


def _feedback(work: Workload) -> None:
    if work.memory is not None:
        _remember(work)
        return
    work.compressor.encode_feedback(work.grad, work.residual, work.payload, work.state, work.key)


def _remember(work: Workload) -> None:
    assert work.memory is not None
    work.memory.encode(work.compressor, work.grad, work.kept, work.payload, work.state, work.key, work.status)


def _plain_feedback(work: Workload) -> None:
    if work.memory is not None:
        _remember(work)
        return
    Compressor.encode_feedback(work.compressor, work.grad, work.residual, work.payload, work.state, work.key)


def _feedback_bytes(work: Workload) -> int:
    if work.memory is not None:
        return 4 * work.n + work.changed() * (2 * work.memory.form.nbytes(work.n) + 4 * work.n) + round(work.sent)
    rounds = capabilities.rounds_needed(work.compressor)
    later = 0 if rounds == 1 else 4 * (rounds - 1) + 8
    return (12 + later) * work.n + round(work.sent)


def _undo(work: Workload) -> None:
    if work.memory is not None:
        _remember(work)
        return
    work.compressor.encode_feedback(work.grad, work.residual, work.payload, work.state, work.key, work.status)


def _plain_undo(work: Workload) -> None:
    if work.memory is not None:
        _remember(work)
        return
    code, status = work.compressor, work.status
    Compressor.encode_feedback(code, work.grad, work.residual, work.payload, work.state, work.key, status)


def _undo_bytes(work: Workload) -> int:
    return _feedback_bytes(work) + (4 * work.n if work.memory is None else 0)


def _decode(work: Workload) -> None:
    work.compressor.add_decoded(work.payload, work.out, 1 / RANKS)


def _decode_many(work: Workload) -> None:
    work.compressor.add_decoded_many(work.payloads, work.out, 1 / RANKS)


def _plain_decode_many(work: Workload) -> None:
    Compressor.add_decoded_many(work.compressor, work.payloads, work.out, 1 / RANKS)


def _decode_bytes(work: Workload) -> int:
    return min(8 * work.n, _LINE_READ_AND_WRITTEN * work.touched) + round(work.ranks * work.sent)


STEPS = (
    Step("encode", _encode, _encode, _encode_bytes),
    Step("encode_feedback", _feedback, _plain_feedback, _feedback_bytes),
    Step("encode_feedback_undo", _undo, _plain_undo, _undo_bytes),
    Step("decode", _decode, _decode, _decode_bytes, decodes=True),
    Step(f"decode{RANKS}", _decode_many, _plain_decode_many, _decode_bytes, decodes=True, ranks=RANKS),
)
"""The steps, in the order in which they are checked and timed: what decodes comes after what encodes."""
