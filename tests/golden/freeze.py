"""Freeze payloads: ``python tests/golden/freeze.py NAME... [--replace]``; see ``gradwire.testing.golden``."""

import argparse
from pathlib import Path

from gradwire.testing.golden import freeze

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", metavar="NAME", help="registered compressors")
    parser.add_argument("--replace", action="store_true", help="overwrite frozen payloads: a change of the wire format")
    arguments = parser.parse_args()
    for name in arguments.names:
        count = freeze(Path(__file__).parent, name, replace=arguments.replace)
        print(f"{name}: {count} cases frozen")
