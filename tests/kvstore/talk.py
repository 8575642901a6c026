"""A worker's side of the protocol by hand, for tests of the server's core."""

import torch

from gradwire.kvstore.protocol.compression import parse
from gradwire.kvstore.protocol.messages import CHUNK, REPLIES, VERSION, chunk_count, pack, unpack
from gradwire.kvstore.server.core import ServerCore
from gradwire.kvstore.server.journal import Journal
from gradwire.kvstore.server.rules import Rules
from gradwire.kvstore.server.snapshot import load_core, save_core

SESSION = b"0123456789abcdef"


def hello(core, rank, world=2, sync=True, session=None, now=0.0):
    """Introduce a worker, again if it has to wait for a snapshot; its name."""
    peer = b"peer-%d" % rank
    token = session or bytes([rank]) * 16
    fields = {"version": VERSION, "rank": rank, "world": world, "server": 0, "servers": 1}
    introduction = [pack("hello", **fields, sync=sync, session=token)]
    replies = core.receive(peer, introduction, now)
    if core.wanted and core.journal is not None:
        # What the process before it pushed is saved first.
        save_core(core)
        replies = core.receive(peer, introduction, now)
    assert ops(replies)[0] == "welcome", replies
    return peer


def save(core, path):
    """Write a snapshot, after which the server keeps its file there."""
    core.journal = Journal(path)
    save_core(core)


def load(path, rules):
    """A server that continues from a file."""
    return load_core(Journal(path), rules)


def ask(core, peer, op, seq, data=None, now=0.0, **fields):
    """Send a request, in pieces if it has data; all that the server sends because of it."""
    if data is None:
        return core.receive(peer, [pack(op, seq=seq, **fields)], now)
    raw = data.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    replies = []
    for i in range(chunk_count(len(raw))):
        header = pack(op, seq=seq, chunk=i, chunks=chunk_count(len(raw)), **fields)
        replies += core.receive(peer, [header, raw[i * CHUNK : (i + 1) * CHUNK]], now)
    return replies


def init(core, peer, seq, key, value=None, shape=(4,)):
    value = torch.zeros(shape) if value is None else value
    fields = {
        "key": key,
        "shape": list(value.shape),
        "dtype": str(value.dtype).removeprefix("torch."),
        "start": 0,
        "total": value.numel(),
        "sparse": False,
    }
    return ask(core, peer, "init", seq, value, **fields)


def push(core, peer, seq, key, step, value, config=0, optimizer=0, rows=-1, now=0.0):
    return push_units(core, peer, seq, [(key, step, value)], config, optimizer, rows, now)


def push_units(core, peer, seq, units, config=0, optimizer=0, rows=-1, now=0.0):
    """Push several units, each (name, step, tensor)."""
    items = [[unit, step, value.nbytes, rows] for unit, step, value in units]
    data = laid_out([value for _, _, value in units])
    return ask(core, peer, "push", seq, data, now, items=items, config=config, optimizer=optimizer)


def laid_out(tensors):
    """The bytes of tensors, each from a multiple of 8."""
    data = b""
    for tensor in tensors:
        data += bytes(-len(data) % 8) + tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def pull(core, peer, seq, key, step, now=0.0):
    return pull_units(core, peer, seq, [(key, step)], now)


def pull_units(core, peer, seq, units, now=0.0):
    """Pull several units, each (name, step)."""
    return ask(core, peer, "pull", seq, now=now, items=[list(each) for each in units])


def compressed(core, peer, seq, number, params):
    """Tell the server of a compression."""
    assert ops(ask(core, peer, "config", seq, number=number, config=parse(params).to_config())) == ["done"]


def messages(replies):
    """(to whom, op, fields, bytes) of each."""
    told = []
    for peer, frames in replies:
        op, fields, rest = unpack(frames, REPLIES)
        told.append((peer, op, fields, b"".join(bytes(frame) for frame in rest)))
    return told


def ops(replies):
    return [op for _, op, _, _ in messages(replies)]


def values(replies, dtype=torch.float32):
    """The values that each peer was sent."""
    return {
        peer: torch.frombuffer(bytearray(raw), dtype=dtype).tolist()
        for peer, op, _, raw in messages(replies)
        if op == "value"
    }


def pair(**rules):
    """A server, its two workers, and a key "w" of four zeros."""
    core = ServerCore(Rules(workers=2, **rules))
    peers = [hello(core, rank) for rank in range(2)]
    for peer in peers:
        init(core, peer, 1, "w")
    return core, *peers
