"""Meeting of workers that come and go: rounds over a ``torch.distributed`` store, without a process group."""

from gradwire.meeting.meeting import Meeting

__all__ = ["Meeting"]
