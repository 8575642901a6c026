import re

import torch

from gradwire.bench.machine import commit, environment, machine


def test_environment_says_where_a_figure_was_measured():
    columns = environment()
    assert columns["threads"] == torch.get_num_threads() == 1
    assert columns["torch"] == torch.__version__
    assert columns["machine"] == machine()
    assert re.search(r"\d+ cores", machine())
    assert columns["target"] in {"avx512", "avx2", "neon", "scalar", "reference"}


def test_commit_is_a_full_hash_or_nothing():
    assert commit() is None or re.fullmatch(r"[0-9a-f]{40}(-dirty)?", commit())
