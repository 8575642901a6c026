"""The server: a core that takes messages and gives messages, in a thin shell of ZeroMQ's."""
