"""The benchmark's network: its published size, tensor by tensor, and its padding."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from gradwire_lab.experiments.models.resnet20 import BatchNormBeta, Conv3x3, ResNetV2, resnet20, resnet20_small


def sizes(model: nn.Module) -> tuple[int, int]:
    params = list(model.parameters())
    return sum(param.numel() for param in params), len(params)


def test_resnet20_has_the_papers_parameters_and_tensors() -> None:
    model = resnet20()
    assert sizes(model) == (269_467, 51)
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 11)
    stages = [sum(p.numel() for block in model.blocks[i : i + 3] for p in block.parameters()) for i in (0, 3, 6)]
    assert stages == [13_968, 50_960, 203_296]


def test_the_small_one_is_of_the_same_family() -> None:
    model = resnet20_small()
    assert sizes(model) == (19_026, 21)
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_every_parameter_gets_a_gradient() -> None:
    model = resnet20_small()
    model(torch.randn(4, 1, 8, 8)).square().sum().backward()
    assert all(param.grad is not None and bool(param.grad.any()) for param in model.parameters())


def test_stride_two_pads_at_the_bottom_right_like_tensorflow() -> None:
    conv = Conv3x3(1, 1, stride=2)
    nn.init.constant_(conv.weight, 1.0)
    out = conv(torch.ones(1, 1, 4, 4))
    assert out.tolist() == [[[[9.0, 6.0], [6.0, 4.0]]]]
    odd = conv(torch.ones(1, 1, 5, 5))
    assert odd.shape == (1, 1, 3, 3)
    assert odd[0, 0, 0, 0] == 4.0


def test_stride_one_is_the_ordinary_padding() -> None:
    conv, x = Conv3x3(2, 3), torch.randn(1, 2, 5, 5)
    torch.testing.assert_close(conv(x), F.conv2d(x, conv.weight, padding=1))


def test_offset_only_batch_norm_keeps_its_scale() -> None:
    norm = BatchNormBeta(3)
    assert [name for name, _ in norm.named_parameters()] == ["bias"]
    norm(torch.randn(8, 3, 2, 2)).sum().backward()
    assert norm.weight.tolist() == [1.0, 1.0, 1.0]


def test_a_wider_block_subsamples_and_pads_its_shortcut() -> None:
    model = ResNetV2(1, (1, 1), (2, 4), logits=2)
    block = model.blocks[1]
    nn.init.zeros_(block.conv2.weight)
    x = torch.randn(1, 2, 4, 4)
    out = block(x)
    assert torch.equal(out[:, 1:3], x[:, :, ::2, ::2])
    assert not out[:, [0, 3]].any()
