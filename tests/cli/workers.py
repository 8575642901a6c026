"""Workers that ``gradwire launch`` starts in the tests: ``python workers.py WHAT FOLDER``."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

RANK = int(os.environ.get("GRADWIRE_RANK", "0"))


def say(line):
    """In one piece: several processes share the pipe."""
    os.write(1, f"{line}\n".encode())


def told(folder):
    """Say and write down who this is."""
    say(f"rank {RANK} of {os.environ['GRADWIRE_WORLD_SIZE']}: {os.environ.get('GRADWIRE_TEST', '')}")
    (folder / f"pid-{RANK}").write_text(str(os.getpid()))


def stay(folder):
    """Run for ever, with a child that does, too."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (folder / f"child-{RANK}").write_text(str(child.pid))
    told(folder)
    time.sleep(600)


def stubborn(folder):
    """Run for ever, whatever one is asked."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    stay(folder)


def leave(folder):
    """End in peace, with a child that goes on."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (folder / f"child-{RANK}").write_text(str(child.pid))


def fail(folder):
    """Rank 1 ends with 7, when rank 0 is there; the others stay."""
    if RANK != 1:
        stay(folder)
    while not (folder / "pid-0").exists():
        time.sleep(0.02)
    told(folder)
    sys.exit(7)


def killed(folder):
    """Rank 1 is killed."""
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    stay(folder)


def add(folder):
    """Each worker adds its rank + 1 to a key; all see the sum."""
    import torch

    from gradwire import kvstore

    torch.set_num_threads(1)
    kv, out = kvstore.create("dist_sync", timeout=50), torch.empty(3)
    kv.init("w", torch.zeros(3))
    kv.push("w", torch.full((3,), float(RANK + 1)))
    kv.pull("w", out)
    told(folder)
    say(f"sum {out.tolist()}")


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
