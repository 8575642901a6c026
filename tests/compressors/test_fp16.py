import torch

from gradwire.compressors import capabilities
from gradwire.compressors.casts.fp16 import FP16
from gradwire.testing.inputs import gaussian
from gradwire.vocabulary import Key


def test_is_the_cast_of_torch():
    x = gaussian(1001) * 100
    assert torch.equal(FP16().decompress(FP16().compress(x), (1001,)), x.half().float())


def test_rounds_to_nearest_and_ties_to_even():
    x = torch.tensor([2049.0, 2051.0, -2049.0, 2.0**-25, 1.5 * 2.0**-24])
    assert FP16().decompress(FP16().compress(x), (5,)).tolist() == [2048.0, 2052.0, -2048.0, 0.0, 2.0**-23]


def test_the_scale_of_a_mean_goes_in_before_the_sum_can_overflow():
    ranks, x = 4, torch.full((5,), 40000.0)
    payloads = [torch.empty(5, dtype=torch.float16) for _ in range(ranks)]
    for payload in payloads:
        capabilities.encode_scaled(FP16(), x.clone(), 1 / ranks, (payload,), {}, Key())
    out = torch.zeros(5)
    FP16().add_decoded((torch.stack(payloads).sum(0, dtype=torch.float16),), out)
    assert torch.equal(out, x)


def test_an_overflow_is_reported_and_the_residual_can_be_had_back():
    grad, residual, status = torch.tensor([1.0, 70000.0]), torch.tensor([0.5, 0.25]), torch.zeros(1, dtype=torch.int32)
    FP16().encode_feedback(grad, residual, (torch.empty(2, dtype=torch.float16),), {}, Key(), status)
    assert status.item() == 1
    assert grad.tolist() == [0.5, 0.25]


def test_what_underflows_waits_in_the_residual():
    residual, payload, sent = torch.zeros(1), (torch.empty(1, dtype=torch.float16),), torch.zeros(1)
    for _ in range(100):
        FP16().encode_feedback(torch.tensor([1e-8]), residual, payload, {}, Key())
        FP16().add_decoded(payload, sent)
    assert abs(sent.item() - 1e-6) <= 2**-24
