"""Comparison of the ranks: of their settings before the first gradient is sent, and of their position before every
step.

Invariants:
    * Every step and every agreement begins with the same exchange: each rank sends a digest of 32 bytes to each other
      rank, in some steps with a small payload behind it. The digest covers the call that the rank is in and everything
      on which the sizes of messages depend.
    * All ranks see the same digests, so all of them raise the same error or none does. The descriptions themselves are
      sent only if the digests differ.
    * On Gloo nothing that could meet a message of another size is posted before the digests have been compared.

Why:
    Gloo ends a process that receives another size than it expects. Ranks that are in different calls, or would send
    different sizes, must find that out from messages of one size.

Failure modes:
    On NCCL a step must not wait for its host, so the digests are compared on the device and the result is read in a
    later step. There, ranks that differ in size may hang until NCCL's watchdog ends them, or receive wrong values in
    that one step.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire.errors import GroupError
from gradwire.transport.channel import Channel
from gradwire.transport.failures import named

__all__ = ["BUCKETS_BEFORE", "DECAY_BEFORE", "DIGEST", "FIRST_BUCKET", "RATES_BEFORE", "Opening", "agree"]

DIGEST = hashlib.sha256().digest_size

STEP = "step"
"""The call that is no call of the user's: the exchange of gradients."""

FIRST_BUCKET, BUCKETS_BEFORE = "the first bucket", "the buckets before"
"""The things in which ranks differ whose buckets are not the same: those of this step, or of the step before."""

_BUCKETS = "all ranks must have the same buckets in the same order, or gradients of different parameters are added up"

RATES_BEFORE, DECAY_BEFORE = "the learning rates since the last exchange", "the weight decay since the last exchange"
"""The things in which ranks differ that made other steps of their own since they last met."""

_RATES = (
    "each rank moves its parameters by it, so schedulers must do the same on all ranks: one that follows the loss must "
    "be given the mean loss of all ranks"
)

REMEDIES = {
    **dict.fromkeys(("betas", "eps", "lr", "weight_decay", RATES_BEFORE, DECAY_BEFORE), _RATES),
    "call": "every rank must make the same calls in the same order",
    "compressor": "a schedule must give the same values on all ranks",
    "first payload": "buckets must be the same on all ranks, and no error on one of them may keep its payload back",
    "generation": "load_state_dict and change must be called on all ranks, between the same two steps",
    "iteration": "a rank left out an exchange that others made; all ranks must skip the same steps",
    "shrunk_by": "learning rates and weight decay must be the same on all ranks; decay='inner' lets them differ",
    "step": "a rank left out an exchange that others made; all ranks must skip the same steps",
    FIRST_BUCKET: _BUCKETS,
    BUCKETS_BEFORE: _BUCKETS,
}
"""Advice for the first thing in which the ranks of a step differ."""


def agree(channel: Channel, call: str, describe: Callable[[], str], device: torch.device) -> None:
    """Raise the same error on every rank unless all ranks are in the same call and give the same description.

    A rank whose own description fails still takes part, so that the others learn of it instead of waiting for it.
    One exchange of 32 bytes; the descriptions themselves move only where they differ.

    Args:
        call: name of the user's call, the same on all ranks; two different calls are an error that ends the channel.
        describe: gives the JSON text of an object that must be equal everywhere; whatever it raises is told to all
            ranks.

    Raises:
        GroupError: the ranks differ; the message names the first difference and the ranks on each side.
        Exception: whatever ``describe`` raised, if it raised the same on every rank.
    """
    channel.doing = call
    comparison = Comparison(channel, call, describe, device)
    with channel.called(call):
        comparison.end()


class Opening:
    """The comparison of the ranks at the beginning of every step.

    Args:
        channel: channel whose next message waits until the ranks have been compared.
        device: device on which the rows travel.
    """

    def __init__(self, channel: Channel, device: torch.device) -> None:
        self.channel, self.device = channel, device
        self._unread: list[tuple[str, Tensor, Tensor, torch.cuda.Event]] = []

    def begin(self, number: int, describe: Callable[[], str]) -> None:
        """Start to compare; the channel finishes it before its next message.

        Args:
            number: number of the step, for messages.
            describe: function that gives the description of this rank, as for ``agree``.

        Raises:
            GroupError: the ranks differed in an earlier step, which NCCL shows late.
            Exception: whatever ``describe`` raised, on NCCL; elsewhere the channel raises it before its next message.
        """
        if self.channel.world == 1 or not self.channel.compares:
            return
        # The channel keeps one comparison: that of an earlier step without a message is made first.
        self.channel.settle()
        self.channel.doing = f"step {number}"
        if self.channel.is_nccl:
            self._look_back()
        started = Comparison(self.channel, STEP, describe, self.device, deferred=self.channel.opens_with_payload)
        if self.channel.is_nccl:
            self._look_later(started)
        else:
            self.channel.open(started)

    def _look_later(self, started: Comparison) -> None:
        # On NCCL this orders the streams and does not block the host.
        started.wait()
        flag = torch.empty((), dtype=torch.bool, pin_memory=True)
        flag.copy_((started.rows != started.rows[0]).any(), non_blocking=True)
        # The copy into pinned memory ends later; the event lets a later step ask whether it has, without a wait.
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._unread.append((self.channel.doing, started.rows, flag, event))
        if started.failure is not None:
            # The others have the digest of the error, and find in a later step that it is not theirs; where all ranks
            # fail alike the digests are equal, and nobody would ever know.
            self.channel.failed = GroupError(str(started.failure))
            raise started.failure

    def _look_back(self) -> None:
        # Only results that have arrived are read, because to wait for one would stop the host in every step.
        while self._unread and self._unread[0][3].query():  # type: ignore[no-untyped-call]
            doing, rows, flag, _ = self._unread.pop(0)
            if bool(flag):
                sides = _sides(
                    "what they compared", [bytes(row.tolist()).hex()[:8] for row in rows], self.channel.members
                )
                self.channel.failed = GroupError(
                    f"ranks came apart in {doing}: {sides}; all ranks must skip the same steps, and call "
                    "load_state_dict and change between the same two"
                )
                raise self.channel.failed


class Comparison:
    """One exchange of digests: under way, or, if it is ``deferred``, to be sent in front of the first payload.

    What fails on this rank is sent at once in any case.
    """

    def __init__(
        self,
        channel: Channel,
        call: str,
        describe: Callable[[], str],
        device: torch.device,
        deferred: bool = False,
    ) -> None:
        self.channel, self.call, self.device = channel, call, device
        self.failure: Exception | None = None
        try:
            self.text = describe()
        except Exception as error:
            # The rank still takes part: the others wait for its digest, and learn from it what failed here.
            self.failure, self.text = error, json.dumps({"error": f"{type(error).__name__}: {error}"})
        self.deferred = deferred and self.failure is None
        self.digest = hashlib.sha256(f"{call} {self.text}".encode()).digest()
        if not self.deferred:
            self.rows, self.wait = _begin(channel, self.digest, device, opens=True)

    def write(self, heads: Tensor, room: int) -> None:
        """Write the own digest, which tells how many bytes of payload are behind it."""
        self.deferred = False
        # The payload's size is compared, too, so that a payload of another size is an error on all ranks and no
        # timeout.
        self.text = f'{self.text[:-1]}, "first payload": {room}}}'
        self.digest = hashlib.sha256(f"{self.call} {self.text}".encode()).digest()
        heads[self.channel.rank].numpy()[:] = memoryview(self.digest)

    def end(self) -> None:
        """Wait for the digests of the others, and raise if one differs."""
        if self.deferred:
            self.deferred = False
            self.rows, self.wait = _begin(self.channel, self.digest, self.device, opens=True)
        self.wait()
        self.check(self.rows)

    def check(self, heads: Tensor) -> None:
        """Raise if the digest of another rank differs."""
        if heads.cpu().numpy().tobytes() != self.digest * self.channel.world:
            text = json.dumps({**json.loads(self.text), "call": self.call})
            # All ranks have the same rows and come here together, so this second exchange finds all of them.
            texts = _texts(self.channel, text, self.device)
            error = GroupError(_difference(texts, self.channel.members))
            if self.call == STEP or any(each["call"] != self.call for each in texts):
                # In a step, or in different calls, the ranks no longer know which message comes next. Ranks in one and
                # the same call do, and the user may correct it and go on.
                self.channel.failed = error
            raise error from self.failure
        if self.failure is not None:
            raise self.failure


def _begin(
    channel: Channel, data: bytes, device: torch.device, *, opens: bool = False
) -> tuple[Tensor, Callable[[], None]]:
    rows = torch.frombuffer(bytearray(data * channel.world), dtype=torch.uint8).view(channel.world, len(data))
    rows = rows.to(device)
    return rows, channel.begin_opening(rows) if opens else channel.begin_rows(rows)


def _gather(channel: Channel, data: bytes, device: torch.device) -> list[bytes]:
    rows, wait = _begin(channel, data, device)
    wait()
    return [row.tobytes() for row in rows.cpu().numpy()]


def _texts(channel: Channel, text: str, device: torch.device) -> list[Any]:
    sizes = [
        int.from_bytes(size, "little") for size in _gather(channel, len(text.encode()).to_bytes(16, "little"), device)
    ]
    # All rows of an exchange have one size, and Gloo ends a process that receives another; so the sizes were sent
    # first.
    padded = text.encode().ljust(max(sizes), b" ")
    return [json.loads(row) for row in _gather(channel, padded, device)]


_ABSENT = object()


def _difference(texts: list[Any], members: Sequence[int]) -> str:
    """The first difference of two descriptions, with the ranks that hold each value, as the default group counts."""
    calls = [text["call"] for text in texts]
    if len(set(calls)) > 1:
        return f"ranks came apart: {_sides('call', calls, members)}; {REMEDIES['call']}"
    for rank, text in zip(members, texts, strict=True):
        if "error" in text:
            return f"rank {rank} was configured wrongly: {text['error']}"
    path, values = _first(texts, "")
    remedy = REMEDIES.get(path.partition(".")[0], REMEDIES["call"])
    if all(isinstance(value, list) for value in values):
        path, values = f"the length of {path}", [len(value) for value in values]
    if calls[0] == STEP:
        return f"ranks came apart: {_sides(path, values, members)}; {remedy}"
    return f"ranks were configured differently: {_sides(path, values, members)}"


def _sides(path: str, values: list[Any], members: Sequence[int]) -> str:
    sides: dict[str, list[int]] = {}
    for rank, value in zip(members, values, strict=True):
        told = "not there" if value is _ABSENT else value if path == "call" else repr(value)
        sides.setdefault(told, []).append(rank)
    return f"{path} is {'; '.join(f'{value} on {named(ranks)}' for value, ranks in sides.items())}"


def _first(values: list[Any], path: str) -> tuple[str, list[Any]]:
    if all(isinstance(value, dict) for value in values):
        # The parameters of two methods differ because the methods do.
        keys = sorted({key for value in values for key in value}, key=lambda key: (key != "name", key))
        children = [(key, [value.get(key, _ABSENT) for value in values]) for key in keys]
    elif all(isinstance(value, list) for value in values) and all(values):
        children = [(str(i), [value[i] for value in values]) for i in range(min(map(len, values)))]
    else:
        return path, values
    for key, child in children:
        if any(value != child[0] for value in child):
            return _first(child, f"{path}.{key}" if path else key)
    return path, values
