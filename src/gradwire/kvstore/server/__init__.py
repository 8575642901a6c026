"""Server: a core that takes and returns messages, in a thin shell of ZeroMQ sockets."""
