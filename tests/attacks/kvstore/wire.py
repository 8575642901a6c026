"""Tools of an attacker: sockets, messages that nobody checked, and ZMTP by hand. It knows nothing of gradwire."""

import contextlib
import os
import socket
import struct
import time

import msgpack
import zmq

CHUNK = 1 << 20
VERSION = 7
"""The version of the protocol that the server speaks: an attacker with another one is refused before it can attack."""
CONTEXT = zmq.Context()
GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" + bytes(31)


def pack(op, **fields):
    return msgpack.packb({"op": op, **fields}, use_bin_type=True)


class Attacker:
    """A DEALER that sends what it likes.

    Args:
        endpoint: address of the server.
        rank: rank that it claims; None: it does not introduce itself.
        name: name of its connection, as the server sees it.
        patient: true: it comes again while the one before, with the same rank, is not gone.
    """

    def __init__(self, endpoint, rank=None, name=None, patient=True, **hello):
        self.socket = CONTEXT.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        if name is not None:
            self.socket.setsockopt(zmq.IDENTITY, name)
        self.socket.connect(endpoint)
        self.seq = 0
        if rank is not None:
            self.introduced = self.ask(introduction(rank, **hello))
            for pause in (0.02, 0.1, 0.3, 1.0, 3.0) if patient else ():
                if self.introduced["op"] == "welcome":
                    break
                time.sleep(pause)
                self.introduced = self.ask(introduction(rank, **hello))

    def ask(self, *frames, seconds=10):
        """Send a message; the header of the next answer, None if there is none."""
        self.socket.send_multipart(frames)
        return self.answer(seconds)

    def answer(self, seconds=10):
        if not self.socket.poll(1000 * seconds):
            return None
        return msgpack.unpackb(self.socket.recv_multipart()[0])

    def request(self, op, *frames, **fields):
        self.seq += 1
        return self.ask(pack(op, seq=self.seq, **fields), *frames)

    def close(self):
        self.socket.close(0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def introduction(rank, world=2, version=VERSION, sync=False, session=None):
    return pack(
        "hello",
        version=version,
        rank=rank,
        world=world,
        server=0,
        servers=1,
        sync=sync,
        session=session or os.urandom(16),
    )


def push(key="own", step=1, nbytes=16, chunk=0, chunks=1, config=0, optimizer=0, rows=-1):
    return {
        "items": [[key, step, nbytes, rows]],
        "chunk": chunk,
        "chunks": chunks,
        "config": config,
        "optimizer": optimizer,
    }


def pull(key="own", step=0):
    return {"items": [[key, step]]}


def init(key="own", shape=(4,), dtype="float32", start=0, total=4, chunk=0, chunks=0, sparse=False):
    return {
        "key": key,
        "shape": list(shape),
        "dtype": dtype,
        "start": start,
        "total": total,
        "chunk": chunk,
        "chunks": chunks,
        "sparse": sparse,
    }


def config(push="twobit", memory="residual", pull=None, **params):
    return {"push": {"name": push, **params}, "memory": {"name": memory}, "pull": pull}


def raw(endpoint):
    """A TCP connection, and nothing said."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def zmtp(endpoint, name):
    """A connection that has said in ZMTP 3.0 that it is a DEALER, without the library that keeps the rules."""
    connection = raw(endpoint)
    connection.sendall(GREETING)
    ready = b"\x05READY" + b"".join(
        struct.pack("B", len(key)) + key + struct.pack(">I", len(value)) + value
        for key, value in ((b"Socket-Type", b"DEALER"), (b"Identity", name))
    )
    connection.sendall(b"\x04" + struct.pack("B", len(ready)) + ready)
    return connection


def part(data, more):
    """A frame of ZMTP."""
    return struct.pack(">BQ", 2 | more, len(data)) + data


def send_while_taken(connection, data, most):
    """Send the same bytes until so many are gone, or the server takes no more; how many went."""
    sent = 0
    connection.settimeout(2)
    with contextlib.suppress(OSError):
        while sent < most:
            connection.sendall(data)
            sent += len(data)
    return sent
