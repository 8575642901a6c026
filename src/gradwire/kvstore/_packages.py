"""Packages of the extra ``kvstore``, imported before anything that needs them, so that a missing one has a remedy."""

from gradwire._extras import needs

with needs("kvstore"):
    import msgpack  # noqa: F401
    import safetensors  # noqa: F401
    import zmq  # noqa: F401
