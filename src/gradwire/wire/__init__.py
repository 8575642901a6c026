"""Forms of bytes: the message inside a group (``packing``), and the frame for bytes that leave it (``frames``)."""

from gradwire.wire.frames import MAX_BYTES, Frame, Reader, frame, unframe
from gradwire.wire.header import MAX_DIMS, MAX_HEADER
from gradwire.wire.packing import Packing, nbytes_in_use, sent_nbytes, used_of

__all__ = [
    "MAX_BYTES",
    "MAX_DIMS",
    "MAX_HEADER",
    "Frame",
    "Packing",
    "Reader",
    "frame",
    "nbytes_in_use",
    "sent_nbytes",
    "unframe",
    "used_of",
]
