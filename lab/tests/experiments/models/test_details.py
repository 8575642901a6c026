"""Particulars of single models that would change their results and not their size."""

from __future__ import annotations

import torch
from torch import nn

from gradwire_lab.experiments import models
from gradwire_lab.experiments.models.lstm import LSTMLayer
from gradwire_lab.experiments.models.unet import Up


def test_an_lstm_layer_is_torchs_with_one_matrix_and_one_bias() -> None:
    torch.manual_seed(1)
    ours, theirs = LSTMLayer(5, 7), nn.LSTM(5, 7, batch_first=True)
    nn.init.normal_(ours.kernel)
    nn.init.normal_(ours.bias)
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(ours.kernel[:, :5])
        theirs.weight_hh_l0.copy_(ours.kernel[:, 5:])
        theirs.bias_ih_l0.copy_(ours.bias)
        theirs.bias_hh_l0.zero_()
    x, state = torch.randn(3, 4, 5), (torch.randn(1, 3, 7), torch.randn(1, 3, 7))
    out, after = ours(x, state)
    wanted, wanted_after = theirs(x, state)
    torch.testing.assert_close(out, wanted)
    torch.testing.assert_close(after, wanted_after)
    out.square().sum().backward()
    wanted.square().sum().backward()
    torch.testing.assert_close(ours.kernel.grad, torch.cat([theirs.weight_ih_l0.grad, theirs.weight_hh_l0.grad], 1))
    torch.testing.assert_close(ours.bias.grad, theirs.bias_ih_l0.grad)


def test_the_language_model_carries_its_state_until_it_is_reset() -> None:
    torch.manual_seed(1)
    model, tokens = models.build("lstm", small=True).eval(), torch.randint(1000, (2, 12))
    whole = model(tokens)
    model.reset()
    parts = [model(tokens[:, :5]), model(tokens[:, 5:])]
    torch.testing.assert_close(torch.cat(parts, 1), whole)
    assert not torch.allclose(model(tokens), whole)


def test_a_transformer_sees_no_later_word() -> None:
    torch.manual_seed(1)
    model, tokens = models.build("gpt2", small=True), torch.randint(1000, (1, 9))
    before = model(tokens)
    tokens[0, 6] += 1
    after = model(tokens % 1000)
    torch.testing.assert_close(after[:, :6], before[:, :6])
    assert not torch.allclose(after[:, 6:], before[:, 6:])
    assert model.words.weight.data_ptr() not in {
        p.data_ptr() for n, p in model.named_parameters() if n != "words.weight"
    }


def test_a_vision_transformer_sees_all_patches() -> None:
    torch.manual_seed(1)
    model, image = models.build("vit", small=True), torch.randn(1, 1, 8, 8)
    before = model(image)
    image[0, 0, 7, 7] += 1
    assert not torch.allclose(model(image), before)


def test_the_recommender_multiplies_the_first_part_of_its_tables() -> None:
    model, pairs = models.build("ncf", small=True), torch.tensor([[3, 4]])
    nn.init.zeros_(model.out.weight)
    nn.init.ones_(model.out.weight[:, :8])
    wanted = (model.users.weight[3, :8] * model.items.weight[4, :8]).sum()
    torch.testing.assert_close(model(pairs), wanted[None])


def test_an_even_kernel_is_padded_right_and_below() -> None:
    up = Up(1, 1)
    nn.init.ones_(up.conv.weight)
    nn.init.zeros_(up.conv.bias)
    assert up(torch.ones(1, 1, 1, 1)).tolist() == [[[[4.0, 2.0], [2.0, 1.0]]]]


def test_the_last_pool_of_vgg16_keeps_the_upper_left_pixel() -> None:
    pool = models.build("vgg16_cifar", small=True).conv[-1]
    assert pool(torch.tensor([[[[1.0, 9.0], [9.0, 9.0]]]])).tolist() == [[[[1.0]]]]


def test_the_stem_of_resnet50_pools_like_tensorflow() -> None:
    """At the right and at the bottom with minus infinity."""
    pool = models.build("resnet50", device="meta").stem[-1]
    assert pool(-torch.arange(16.0).view(1, 1, 4, 4)).tolist() == [[[[0.0, -2.0], [-8.0, -10.0]]]]


def test_logits_of_resnet9_are_scaled() -> None:
    model = models.build("resnet9", small=True).eval()
    nn.init.zeros_(model.head.weight)
    with torch.no_grad():
        model.head.weight[3] = 1.0
    x = torch.randn(2, 1, 8, 8)
    features = torch.nn.functional.adaptive_max_pool2d(model.body(x), 1).flatten(1)
    torch.testing.assert_close(model(x)[:, 3], features.sum(1) / 8)
