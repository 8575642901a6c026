"""Loading of the kernels, which survive what processes do to them."""

import os
import signal
import subprocess
import sys

import pytest
import torch

from gradwire.compressors.ternary.ops import twobit_encode
from gradwire.kernels import kernel_info
from gradwire.kernels.native import kernels
from tests.cases import together
from tests.once import once
from tests.ops.harness import TARGETS, dispatched, torch_threads
from tests.ops.interpreters import Told, interpret

needs_kernels = pytest.mark.skipif(kernels is None, reason="the C++ extension is not built")
ENCODE = """
import torch
from gradwire.compressors.ternary.ops import twobit_encode
from gradwire.kernels import kernel_info
codes = torch.empty(4, dtype=torch.uint8)
twobit_encode(torch.tensor([0.5, -0.5, 0.49, 1.3]), codes, 0.5)
info = kernel_info()
print(bytes(codes.tolist()).hex(), info["loaded"], info["target"], info["reason"])
"""


LIBRARIES = "print(len({line.split()[-1] for line in open('/proc/self/maps') if 'libgomp' in line}))"
MODULES = "print([m for m in ('triton', 'gradwire.kernels.triton') if m in sys.modules])"
CASES = {
    "scalar": (ENCODE, {"GRADWIRE_SIMD": "scalar"}),
    "one OpenMP": (f"import gradwire.kernels\n{LIBRARIES}", {}),
    "avx9": (ENCODE, {"GRADWIRE_SIMD": "avx9"}),
    "reference": (ENCODE, {"GRADWIRE_KERNELS": "reference"}),
    "fast": (ENCODE, {"GRADWIRE_KERNELS": "fast"}),
    "none": ("import sys; sys.modules['gradwire._kernels'] = None" + ENCODE, {}),
    "lean": (f"import gradwire.kernels, sys; {MODULES}", {}),
}


@once
def told() -> dict[str, Told]:
    """The output of each of ``CASES``."""
    return dict(zip(CASES, interpret(list(CASES.values())), strict=True))


@needs_kernels
def test_the_extension_is_loaded():
    info = kernel_info()
    assert info["loaded"]
    assert info["reason"] is None
    assert info["target"] == TARGETS[0] or os.environ.get("GRADWIRE_SIMD")


@needs_kernels
def test_a_target_can_be_forced():
    assert told()["scalar"].stdout.split() == ["e3000000", "True", "scalar", "None"]


@needs_kernels
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_one_openmp_runtime_serves_torch_and_the_kernels():
    assert int(told()["one OpenMP"].stdout) <= 1


@needs_kernels
def test_an_unknown_target_is_refused():
    error = told()["avx9"].stderr.splitlines()[-1]
    assert "ConfigError: GRADWIRE_SIMD: the SIMD target must be one of" in error
    assert "scalar" in error
    assert "got 'avx9'" in error
    with pytest.raises(ValueError, match=r"must be one of .*scalar.* on this CPU, got 'avx9'"):
        kernels.set_target("avx9")


def test_the_reference_can_be_forced():
    out = told()["reference"].stdout
    assert out.split() == ["e3000000", "False", "None", "GRADWIRE_KERNELS=reference"]


def test_an_unknown_choice_of_kernels_is_refused():
    error = told()["fast"].stderr
    assert "ConfigError: GRADWIRE_KERNELS must be auto or reference, got 'fast'" in error


def test_without_the_extension_the_reference_runs():
    out = told()["none"].stdout
    assert out.startswith("e3000000 False None ")
    assert "not built" in out


def test_importing_the_operations_is_lean():
    assert told()["lean"].stdout.strip() == "[]"


@needs_kernels
def test_null_addresses_and_negative_sizes_are_refused():
    with pytest.raises(ValueError, match="null"):
        kernels.swap(0, 0, 1, 1)
    with pytest.raises(ValueError, match="negative"):
        kernels.swap(0, 0, -1, 1)


@together
@needs_kernels
@pytest.mark.parametrize("target", TARGETS)
def test_triad(target):
    for n in (1, 16, 1000, 1 << 21):
        a, b, c = torch.zeros(n), torch.randn(n), torch.randn(n)
        with dispatched(target):
            kernels.triad(a.data_ptr(), b.data_ptr(), c.data_ptr(), 0.5, n, 2)
        assert torch.equal(a, b + 0.5 * c)


@needs_kernels
def test_a_forked_child_does_not_hang():
    n = 1 << 20
    x, codes = torch.randn(n), torch.empty(n // 4, dtype=torch.uint8)
    with torch_threads(2):
        twobit_encode(x, codes, 0.5)
        expected = codes.numpy().tobytes()
        codes.zero_()
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            twobit_encode(x, codes, 0.5)
            os._exit(codes.numpy().tobytes() != expected)
        assert os.waitpid(child, 0)[1] == 0


@needs_kernels
@together
@pytest.mark.parametrize("given", [None, "8", 0.5, [1], object()])
def test_a_wrong_argument_of_a_kernel_is_named(given):
    with pytest.raises(TypeError, match=r"^swap: argument 1 must be an address, got "):
        kernels.swap(given, 0, 0, 1)
    with pytest.raises(TypeError, match=r"^swap: argument 3 must be an integer of 64 bits, got "):
        kernels.swap(0, 0, given, 1)


@needs_kernels
@together
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, RuntimeError])
def test_what_an_argument_itself_raises_is_not_hidden(error):
    class Number:
        def __index__(self):
            raise error

    with pytest.raises(error):
        kernels.swap(0, 0, Number(), 1)


ENDING = """
import threading, time, torch
from gradwire.kernels.native import kernels
x, y = torch.zeros(1 << 16), torch.zeros(1 << 16)
places = x.data_ptr(), y.data_ptr()
def work():
    while True:
        kernels.swap(*places, 1 << 16, 1)
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
print("ended")
"""


@needs_kernels
def test_a_process_ends_in_peace_while_a_daemon_thread_is_in_a_kernel():
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=110)
    assert (done.returncode, done.stdout.split()) == (0, ["ended"]), done
