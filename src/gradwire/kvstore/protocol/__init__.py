"""Protocol of servers and workers: messages, names, placement of keys, and the arithmetic that both sides share.

Nothing here opens a socket or knows who is at the other end.
"""
