import json
import re
from importlib import metadata

import pytest
import torch
from packaging.requirements import Requirement

from gradwire._extras import declared
from gradwire.kernels.native import kernel_info, kernels

# Processes that import torch: a busy machine takes minutes for each.
pytestmark = pytest.mark.timeout(400)

DOCTOR = "import sys; sys.argv = ['gradwire', 'doctor', '--json', '-']; from gradwire.cli.main import main; main()"


@pytest.fixture
def findings(gradwire):
    return json.loads(gradwire("doctor", "--json", "-").stdout)


def test_every_fact_has_a_value_and_a_reason(findings):
    for section, items in findings.items():
        for item, fact in items.items():
            assert set(fact) == {"value", "reason"}, (section, item)
            assert fact["reason"], (section, item)


def test_facts_are_those_of_this_process(findings):
    info = kernel_info()
    assert findings["kernels"]["in use"]["value"] == ("C++" if info["loaded"] else "torch reference")
    assert findings["kernels"]["target"]["value"] == info["target"]
    assert findings["kernels"]["targets"]["value"] == info["targets"]
    assert findings["versions"]["torch"]["value"] == torch.__version__
    assert findings["threads"]["torch"]["value"] == 1
    assert findings["threads"]["cores"]["value"] >= 1
    assert findings["backends"]["gloo"]["value"] is torch.distributed.is_gloo_available()
    assert findings["backends"]["nccl"]["value"] is torch.distributed.is_nccl_available()
    assert findings["gpu"]["cuda"]["value"] is torch.cuda.is_available()
    assert findings["extras"]["cli"] == {"value": True, "reason": "click, rich"}


def test_a_package_for_other_platforms_is_not_missed(findings):
    required = [Requirement(text) for text in metadata.requires("gradwire")]
    for extra, distributions in declared().items():
        for name, here in distributions.items():
            asked = [each for each in required if each.name == name and f'"{extra}"' in str(each.marker)]
            assert [each.marker.evaluate({"extra": extra}) for each in asked] == [here], (extra, name)
    assert not all(declared()["tensorflow"].values())
    elsewhere = {name for name, here in declared()["tensorflow"].items() if not here}
    assert not elsewhere & {*re.split("[ ,:]+", findings["extras"]["tensorflow"]["reason"])}


def test_the_table_says_the_same(gradwire, findings):
    shown = gradwire("doctor").stdout
    assert all(len(line) <= 80 or " " not in line.strip() for line in shown.splitlines())
    for section, items in findings.items():
        assert section in shown
        assert all(item.split()[0] in shown for item in items)


def test_the_reference_is_in_use_because_it_was_asked_for(python):
    found = json.loads(python("-c", DOCTOR, GRADWIRE_KERNELS="reference").stdout)["kernels"]
    assert found["in use"] == {
        "value": "torch reference",
        "reason": "torch reference in use because GRADWIRE_KERNELS=reference",
    }
    assert found["target"]["value"] is None


def test_a_forced_target_and_threads_are_explained_by_their_variables(python):
    found = json.loads(python("-c", DOCTOR, GRADWIRE_SIMD="scalar", OMP_NUM_THREADS="1").stdout)
    assert found["threads"]["torch"] == {"value": 1, "reason": "OMP_NUM_THREADS=1"}
    if kernels is not None:
        assert found["kernels"]["target"] == {"value": "scalar", "reason": "GRADWIRE_SIMD=scalar"}


def test_a_variable_that_cannot_work_is_named_and_the_import_goes_on(python):
    done = python("-c", DOCTOR, GRADWIRE_SIMD="foo", GRADWIRE_RANK="first", GRADWIRE_SMID="avx2", GRADWIRE_INSECURE="1")
    assert (done.returncode, done.stderr) == (1, "")
    found = json.loads(done.stdout)["environment"]
    assert found["GRADWIRE_RANK"] == {"value": "first", "reason": "GRADWIRE_RANK must be an integer >= 0, got 'first'"}
    assert "did you mean 'GRADWIRE_SIMD'?" in found["GRADWIRE_SMID"]["reason"]
    assert found["GRADWIRE_INSECURE"]["reason"] == "read from the environment"
    assert found["GRADWIRE_SIMD"]["reason"].startswith("GRADWIRE_SIMD")
    assert found["GRADWIRE_SIMD"]["value"] == "foo"
    assert json.loads(done.stdout)["kernels"]["in use"]["value"] is None


def test_a_variable_that_cannot_work_refuses_the_first_exchange_and_operation(python):
    code = "import gradwire, torch; print('imported'); gradwire.Exchange(gradwire.compressor('topk'))"
    done = python("-c", code, GRADWIRE_KERNELS="fast")
    assert done.stdout == "imported\n"
    assert done.stderr.splitlines()[-1].endswith("GRADWIRE_KERNELS must be auto or reference, got 'fast'")
