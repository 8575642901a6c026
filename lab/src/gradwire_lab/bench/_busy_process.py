"""A process that computes without pause on request: ``1`` on standard input begins, any other byte ends it.

At the end of its input, which comes also when whoever started it was killed, it exits.
"""

import os
import select
import sys

_STEPS = 20_000  # between two looks at the input, some milliseconds


def main() -> None:
    """Follow the requests until the input ends."""
    source = sys.stdin.fileno()
    while order := os.read(source, 1):
        while order == b"1" and not select.select([source], [], [], 0)[0]:
            for _ in range(_STEPS):
                pass


if __name__ == "__main__":
    main()
