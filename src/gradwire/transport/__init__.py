"""Transport: bytes between the ranks of a group, what the ranks compare first, and the thread that waits for them."""
