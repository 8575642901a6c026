"""Run ``pip install`` with these arguments, and show which kernels are being compiled.

pip says nothing for as long as a package is being built, here for a minute or more. What the build prints is in its
log, ``.venv/pip.log``, of which ninja's lines are shown.
"""

import contextlib
import re
import subprocess
import sys
import threading
from pathlib import Path

LINE = re.compile(r"(\[\d+/\d+\]) Building CXX object CMakeFiles/_kernels_?(\w*)\.dir/\S*?([^/ ]+/[^/ ]+)\.o\b")


def progress(line: str) -> str | None:
    """Say what ninja compiles, or None if the line is another.

    >>> progress("2026-01-02 [7/81] Building CXX object CMakeFiles/_kernels_avx2.dir/src/gradwire/kernels/shared.cc.o")
    '  [7/81] kernels/shared.cc for avx2'
    """
    found = LINE.search(line)
    return found and f"  {found[1]} {found[3]} for {found[2] or 'Python'}"


def follow(log: Path, ended: threading.Event) -> None:
    """Print the progress that is written to the log, until the end."""
    begun = False
    with log.open(errors="replace") as lines:
        while True:
            last = ended.is_set()
            for line in lines:
                if (shown := progress(line)) is None:
                    continue
                if not begun:
                    print("  Compiling the C++ kernels, once for each SIMD target: a minute on two idle cores.")
                begun = True
                print(shown, flush=True)
            if last:
                return
            ended.wait(0.2)


def main(arguments: list[str]) -> int:
    """Run pip, and return its exit status."""
    log = Path(sys.prefix) / "pip.log"
    log.write_text("")
    ended = threading.Event()
    watcher = threading.Thread(target=follow, args=(log, ended), daemon=True)
    pip = subprocess.Popen([sys.executable, "-m", "pip", "install", "--log", str(log), *arguments])
    status = None
    try:
        watcher.start()
    finally:
        while status is None:
            # A Ctrl-C is for pip, which has got it, too, and removes what it made.
            with contextlib.suppress(KeyboardInterrupt):
                status = pip.wait()
        ended.set()
        watcher.join()
    if status:
        # With a log pip leaves it to that to say why a build failed.
        print(f"  The end of {log}:", *log.read_text(errors="replace").splitlines()[-100:], sep="\n", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
