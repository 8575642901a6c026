"""No memory: what is not sent is lost, and nothing is kept."""

import torch

from gradwire.compressors.sparse.topk import TopK
from gradwire.memory.none import NoMemory
from gradwire.vocabulary import Key


def test_the_payload_is_of_the_gradient_itself() -> None:
    memory, compressor = NoMemory(), TopK(ratio=0.25)
    grad = torch.tensor([1.0, -5.0, 3.0, -2.0])
    layout, status = compressor.layout(grad.shape), torch.zeros(1, dtype=torch.int32)
    buffer = torch.zeros(layout.nbytes, dtype=torch.uint8)
    memory.encode(compressor, grad, {}, layout.views(buffer), {}, Key(), status)
    assert compressor.decompress(buffer, grad.shape).tolist() == [0.0, -5.0, 0.0, 0.0]
    assert status.item() == 0
    assert memory.buffers == ()


def test_a_value_that_is_not_finite_is_told() -> None:
    compressor, status = TopK(ratio=0.5), torch.zeros(1, dtype=torch.int32)
    grad = torch.tensor([1.0, float("nan")])
    buffer = torch.zeros(compressor.layout(grad.shape).nbytes, dtype=torch.uint8)
    NoMemory().encode(compressor, grad, {}, compressor.layout(grad.shape).views(buffer), {}, Key(), status)
    assert status.item() == 1
