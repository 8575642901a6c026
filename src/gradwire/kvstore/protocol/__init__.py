"""What servers and workers agree on: messages, names, where keys are, and the arithmetic that both sides do alike.

Nothing here opens a socket or knows who is at the other end.
"""
