"""A program that delays what workers send, for kernels without ``netem``.

    python -I -S _delay_line.py SECONDS PORT:DEVICE ...

Invariants:
    This file imports the standard library alone, so that the process is small and starts at once. It runs in the
    namespace of a lab's bridge, so that it ends with the lab.

Between each worker's port and the bridge it puts a device of its own (TAP). What comes out of the port is given to that
device after the delay, and what the bridge gives to the device goes to the port at once; so a frame waits once on its
way from one worker to another. Frames keep the kernel's header of segmentation and checksums (``virtio_net``), so a
large one stays whole. It prints a line when all devices are there; they vanish when it ends.

It costs some 10 us of a processor for each frame and direction. A link of 100 Mbit/s has 8,300 full frames a second
each way, and a processor carries some 30,000 in all, whatever the number of workers: four such links. With more, frames
are late.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import struct
import sys
import time
from collections import deque
from contextlib import suppress

__all__: list[str] = []

_SOL_PACKET, _PACKET_VNET_HDR = 263, 15
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
_ETH_P_ALL = 3
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4, _TUN_F_TSO_ECN = 0x01, 0x02, 0x08

_LARGEST = 70_000
"""Bytes of the largest frame: 64 KiB that the kernel has not segmented yet, and the headers."""

_KEPT = 64 << 20
"""Bytes that a port keeps while this process does not run: the queue of the link decides what is dropped, not this."""

_AT_ONCE = 64
"""Frames read from one device before the others, and those that are due, have their turn."""


def port_socket(device: str) -> socket.socket:
    """Open a socket that reads what arrives at a device and sends what leaves it, which it does not read itself."""
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    opened.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _KEPT)
    opened.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _KEPT)
    opened.setblocking(False)
    opened.bind((device, _ETH_P_ALL))
    return opened


def tap(name: str) -> int:
    """Make a device whose other end is the descriptor that is returned."""
    made = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(made, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR))
    fcntl.ioctl(made, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4 | _TUN_F_TSO_ECN)
    return made


def waiting(source: int) -> list[bytes]:
    """Read the frames that wait on a descriptor, up to a number that is fair to the others.

    Raises:
        OSError: the device is gone.
    """
    frames: list[bytes] = []
    try:
        while len(frames) < _AT_ONCE:
            frames.append(os.read(source, _LARGEST))
    except OSError as error:
        if error.errno == errno.EBADFD:
            raise
        # Nothing waits any more, or the device is not up.
    return frames


def put(target: int, frame: bytes) -> None:
    """Write a frame; a device that has no room or is not up loses it, as a cable does."""
    with suppress(OSError):
        os.write(target, frame)


def carry(delay: float, pairs: list[tuple[int, int]]) -> None:
    """Move frames between ports and devices, for ever.

    Args:
        delay: seconds, from port to device.
        pairs: descriptors of a port and of its device.
    """
    device_of, port_of = dict(pairs), {device: port for port, device in pairs}
    sources = [*device_of, *port_of]
    late: deque[tuple[float, int, bytes]] = deque()  # The delay is the same for all, so this is in the order of time.

    def deliver() -> None:
        now = time.monotonic()
        while late and late[0][0] <= now:
            _, target, frame = late.popleft()
            put(target, frame)

    while True:
        pause = max(0.0, late[0][0] - time.monotonic()) if late else None
        for source in select.select(sources, [], [], pause)[0]:
            if source in device_of:
                due = time.monotonic() + delay
                late.extend((due, device_of[source], frame) for frame in waiting(source))
            else:
                for frame in waiting(source):
                    put(port_of[source], frame)
            deliver()
        deliver()


def main(delay: float, names: list[str]) -> None:
    with suppress(OSError):
        os.nice(-20)  # A cable does not wait for the workers' computations, and neither does the kernel's netem.
    ports = [port_socket(name.partition(":")[0]) for name in names]
    devices = [tap(name.partition(":")[2]) for name in names]
    print("ready", flush=True)
    carry(delay, [(port.fileno(), device) for port, device in zip(ports, devices, strict=True)])


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
