import pytest
import torch

from gradwire_lab.bench.triad import Triad


@pytest.mark.parametrize("nbytes", [0, 12, 12 * 17, 1_000_000])
def test_writes_every_element_and_moves_the_bytes_it_says(nbytes):
    triad = Triad(nbytes)
    triad.a.fill_(float("nan"))
    triad.b.normal_()
    triad.c.normal_()
    triad()
    assert torch.equal(triad.a, triad.b + triad.c * 3.0)
    assert abs(12 * triad.a.numel() - nbytes) <= 12
