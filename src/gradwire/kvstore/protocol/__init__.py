"""The protocol of servers and workers: messages, names, where keys are, and the arithmetic that both sides do alike.

Nothing here opens a socket or knows who is at the other end.
"""
