"""What the extra ``kvstore`` brings, imported before anything that needs it: a package that is missing has a remedy."""

from gradwire._extras import needs

with needs("kvstore"):
    import msgpack  # noqa: F401
    import safetensors  # noqa: F401
    import zmq  # noqa: F401
