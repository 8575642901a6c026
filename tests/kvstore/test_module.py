"""MXNet's Module over torch modules: what ``fit`` computes, tells and keeps."""

import copy
import logging
import math

import pytest
import torch
from torch import nn

from gradwire import ConfigError
from gradwire.contrib.mxnet import eval_metric
from gradwire.contrib.mxnet.callback import Speedometer, do_checkpoint
from gradwire.kvstore import Module
from gradwire.kvstore.protocol.lr_scheduler import MultiFactorScheduler
from tests.kvstore.simulate import Simulated

NUMBERS = {"learning_rate": 0.1, "momentum": 0.9}


def net(seed=3, *extra):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), *extra, nn.Linear(8, 3))


def batches(count=5, size=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count * size, 6, generator=generator)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    return list(zip(x.split(size), y.split(size), strict=True))


def trained(model, epochs, data, lr=0.1):
    """Train by torch alone, on the mean of the loss over a batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for _ in range(epochs):
        for x, y in data:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model


def close(a, b):
    return all(torch.allclose(x, y, atol=1e-6) for x, y in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize("contexts", [1, 2, 4])
@pytest.mark.parametrize("store", [None, "local", "device"])
def test_fit_without_compression_is_plain_training_whatever_the_contexts(contexts, store):
    ours, theirs = net(), trained(net(), 2, batches())
    Module(ours, context=["cpu"] * contexts).fit(batches(), kvstore=store, optimizer_params=NUMBERS, num_epoch=2)
    assert close(ours, theirs)


def test_every_context_is_a_sender_with_its_own_residual():
    model = nn.Linear(4, 1, bias=False)
    nn.init.zeros_(model.weight)
    module = Module(
        model,
        context=["cpu", "cpu"],
        compression_params={"type": "2bit", "threshold": 0.5},
        loss=lambda output, label: (output * label).sum(),
    )
    module.init_optimizer("device", "sgd", {"learning_rate": 1.0, "rescale_grad": 1.0})
    senders, want = [Simulated("2bit", 0.5, (1, 4)) for _ in range(2)], torch.zeros(1, 4)
    for step in range(6):
        x = torch.randn(2, 4, generator=torch.Generator().manual_seed(step))
        module.forward_backward((x, torch.ones(2, 1)))
        module.update()
        total = sum(torch.from_numpy(s.send(x[i : i + 1].numpy())) for i, s in enumerate(senders))
        want -= total
        assert torch.equal(model.weight.data, want), f"step {step}"
    assert want.abs().sum() > 0


def test_all_copies_have_the_weights_that_are_trained():
    module = Module(net(), context=["cpu", "cpu"])
    module.fit(batches(), num_epoch=1, kvstore="device")
    first, second = (list(each.parameters()) for each in module._copies)
    assert all(torch.equal(a, b) and a.data_ptr() != b.data_ptr() for a, b in zip(first, second, strict=True))


def test_running_means_are_the_average_of_the_contexts():
    class Seen(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(()))
            self.linear = nn.Linear(6, 3)

        def forward(self, x):
            if self.training:
                self.mean.copy_(x.mean())
            return self.linear(x)

    model = Seen()
    (x, y), *_ = batches()
    Module(model, context=["cpu", "cpu"]).fit([(x, y)], num_epoch=1, kvstore="device")
    assert torch.allclose(model.mean, x.mean(), atol=1e-6)


def test_callbacks_and_scores_are_told_as_mxnet_tells_them():
    told = []
    data, module = batches(3), Module(net())
    module.fit(
        data,
        data,
        ["acc", "ce"],
        epoch_end_callback=lambda epoch, symbol, arg, aux: told.append(("epoch", epoch, symbol, sorted(arg), aux)),
        batch_end_callback=[lambda p: told.append(("batch", p.epoch, p.nbatch, p.locals["module"]))],
        eval_end_callback=lambda p: told.append(("score", p.epoch, dict(p.eval_metric.get_name_value()))),
        begin_epoch=4,
        num_epoch=6,
    )
    assert [each[:3] for each in told if each[0] == "batch"] == [("batch", e, n) for e in (4, 5) for n in range(3)]
    names = sorted(name for name, _ in module.symbol.named_parameters())
    assert [each[1:] for each in told if each[0] == "epoch"] == [(e, module.symbol, names, {}) for e in (4, 5)]
    assert told[-1][2] == dict(module.score(data, ["acc", "ce"]))


def test_score_is_the_share_of_right_answers_and_predict_the_outputs():
    data = batches(4)
    model = trained(net(), 20, data)
    module = Module(model)
    x, y = (torch.cat(parts) for parts in zip(*data, strict=True))
    outputs = module.predict(data)
    # A batch and the whole go through other products of the BLAS, whose last bits differ near zero.
    assert torch.allclose(outputs, model(x), atol=1e-6)
    right = (outputs.argmax(1) == y).float().mean().item()
    assert module.score(data, "acc") == [("accuracy", pytest.approx(right))]
    loss = nn.functional.cross_entropy(outputs, y).item()
    assert module.score(data, "ce") == [("cross-entropy", pytest.approx(loss))]
    assert module.score(data, lambda *_: 2.0)[0][1] == 2.0
    assert len(module.predict(data, num_batch=2, merge_batches=False)) == 2
    assert torch.equal(module.predict(x, always_output_list=True)[0], model(x))


@pytest.mark.parametrize(
    ("name", "want"), [("mse", 2.5), ("rmse", math.sqrt(2.5)), ("mae", 1.5), ("top_k_accuracy", 1.0), ("acc", 1.0)]
)
def test_metrics_of_two_samples(name, want):
    pred = torch.tensor([[1.0, 4.0], [3.0, 3.0]]) if name in ("mse", "rmse", "mae") else torch.tensor([[0, 1.0]] * 2)
    label = torch.tensor([[0.0, 2.0], [2.0, 1.0]]) if name in ("mse", "rmse", "mae") else torch.tensor([1, 1])
    metric = eval_metric.create(name)
    metric.update([label], [pred])
    assert metric.get_name_value()[0][1] == pytest.approx(want)
    metric.reset_local()
    assert math.isnan(metric.get_name_value()[0][1])
    assert metric.get_global_name_value()[0][1] == pytest.approx(want)


@pytest.mark.parametrize("shape", [(1, 3, 4), (2, 3, 4), (2, 3, 4, 2), (2, 3)])
def test_answers_at_many_places_are_compared_along_the_second_dimension(shape):
    generator = torch.Generator().manual_seed(1)
    pred = torch.randn(shape, generator=generator)
    label = torch.randint(0, 3, (shape[0], *shape[2:]), generator=generator)
    ranks = (pred.argsort(1, descending=True) == label.unsqueeze(1)).float().argmax(1)
    for top_k in (1, 2):
        metric = eval_metric.create("acc", top_k=top_k)
        metric.update([label], [pred])
        assert metric.get()[1] == pytest.approx((ranks < top_k).float().mean().item())
    metric = eval_metric.create("ce")
    metric.update([label], [pred])
    assert metric.get()[1] == pytest.approx(nn.functional.cross_entropy(pred, label).item())


def test_outputs_of_the_labels_shape_are_answers():
    metric = eval_metric.create("acc")
    metric.update(
        [torch.tensor([1, 0, 2]), torch.tensor([[1], [0]])], [torch.tensor([1.0, 1.0, 2.0]), torch.ones(2, 1)]
    )
    assert metric.get()[1] == pytest.approx(3 / 5)


def test_labels_of_another_number_of_places_are_named():
    for label, pred in (((4,), (4, 3, 2)), ((2,), (3,))):
        with pytest.raises(ConfigError, match=r"labels must be a label for each place of outputs of shape \("):
            eval_metric.create("acc").update([torch.zeros(label)], [torch.zeros(pred)])


@pytest.mark.parametrize("metric", [["acc"], lambda *_: 0.0, eval_metric.create("acc")])
def test_options_without_a_name_are_refused(metric):
    with pytest.raises(ConfigError, match=r"options must be left out unless eval_metric is a name, got \{'top_k': 5\}"):
        eval_metric.create(metric, top_k=5)


def test_a_scheduler_may_be_a_method_of_an_object():
    class Halving:
        def rate(self, update):
            return 0.5**update

    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    Module(model, loss=lambda output, _: -output.sum()).fit(
        [(torch.ones(1, 1), torch.ones(1))] * 2,
        num_epoch=1,
        eval_metric=lambda *_: 0.0,
        optimizer_params={"learning_rate": 8.0, "lr_scheduler": Halving().rate},
    )
    assert model.weight.item() == 0.75


def test_a_scheduler_changes_the_rate_of_the_update_that_mxnet_changes():
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    module, seen = Module(model, loss=lambda output, _: -output.sum()), []
    scheduler = MultiFactorScheduler([2, 3], factor=0.5)
    module.fit(
        [(torch.ones(1, 1), torch.ones(1))] * 5,
        num_epoch=1,
        eval_metric=lambda *_: 0.0,
        optimizer_params={"learning_rate": 8.0, "lr_scheduler": scheduler},
        batch_end_callback=lambda _: seen.append(model.weight.item()),
    )
    assert seen == [8.0, 16.0, 20.0, 22.0, 24.0]


@pytest.mark.parametrize("contexts", [1, 2])
def test_a_run_that_goes_on_from_a_checkpoint_is_one_that_was_not_stopped(contexts, tmp_path):
    data, prefix = batches(), str(tmp_path / "digits")
    whole = Module(net(), context=["cpu"] * contexts)
    whole.fit(data, num_epoch=4, optimizer="adam", optimizer_params={"learning_rate": 0.01})
    first = Module(net(), context=["cpu"] * contexts)
    first.fit(data, num_epoch=2, optimizer="adam", optimizer_params={"learning_rate": 0.01})
    first.save_checkpoint(prefix, 2, save_optimizer_states=True)
    second = Module.load(prefix, 2, True, symbol=net(seed=9), context=["cpu"] * contexts)
    second.fit(data, begin_epoch=2, num_epoch=4, optimizer="adam", optimizer_params={"learning_rate": 0.01})
    assert sorted(file.name for file in tmp_path.iterdir()) == ["digits-0002.safetensors", "digits-0002.states"]
    ours, theirs = second.get_params()[0], whole.get_params()[0]
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_checkpoint_of_another_model_or_none_is_refused(tmp_path):
    Module(net()).save_checkpoint(str(tmp_path / "a"), 1)
    with pytest.raises(ConfigError, match=r"a-0001.safetensors cannot be read into Linear"):
        Module.load(str(tmp_path / "a"), 1, symbol=nn.Linear(2, 2))
    with pytest.raises(ConfigError, match=r"a-0002.safetensors cannot be read"):
        Module.load(str(tmp_path / "a"), 2, symbol=net())
    with pytest.raises(ConfigError, match="in a folder that exists"):
        Module(net()).save_checkpoint(str(tmp_path / "no" / "a"), 1)


def test_shared_weights_survive_a_checkpoint(tmp_path):
    def tied():
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model[1].weight = model[0].weight
        return model

    model, fresh = tied(), tied()
    Module(model).save_checkpoint(str(tmp_path / "a"), 1)
    Module.load(str(tmp_path / "a"), 1, symbol=fresh)
    assert torch.equal(fresh[1].weight, model[0].weight)
    assert fresh[1].weight is fresh[0].weight


def test_checkpoints_come_every_so_many_epochs(tmp_path):
    Module(net()).fit(batches(), num_epoch=5, epoch_end_callback=do_checkpoint(str(tmp_path / "m"), 2))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m-0002.safetensors", "m-0004.safetensors"]


def test_the_speedometer_says_what_the_last_batches_were_like(caplog):
    with caplog.at_level(logging.INFO):
        Module(net()).fit(batches(6), num_epoch=2, batch_end_callback=Speedometer(8, 3))
    lines = [record.getMessage() for record in caplog.records]
    spans = [line.split("\t")[0] for line in lines if "samples/sec" in line]
    assert spans == [f"Epoch[{e}] Batch [{span}]" for e in (0, 1) for span in ("1-2", "3-5")]
    assert sum("Train-accuracy=" in line for line in lines) == 2


def test_a_fixed_parameter_stays_and_an_unused_one_does_not_stop_training():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(6, 3), nn.Linear(2, 2)

        def forward(self, x):
            return self.used(x)

    model = Two()
    before = copy.deepcopy(model)
    Module(model, fixed_param_names=["used.bias"]).fit(batches(), num_epoch=1)
    assert torch.equal(model.used.bias, before.used.bias)
    assert torch.equal(model.unused.weight, before.unused.weight)
    assert not torch.equal(model.used.weight, before.used.weight)


def test_parameters_to_start_from_are_taken_by_name():
    source = net(seed=5)
    arg = dict(source.named_parameters())
    module = Module(net(), context=["cpu", "cpu"])
    module.fit(batches(), num_epoch=1, arg_params=arg, kvstore="device", optimizer_params=NUMBERS)
    assert close(module.symbol, trained(source, 1, batches()))


BAD = [
    (lambda: Module(net(), context=[]), "context"),
    (lambda: Module(3), "symbol must be a torch module"),
    (lambda: Module(net(), fixed_param_names=["0.weigth"]), "did you mean '0.weight'"),
    (lambda: Module(net()).fit(batches(), num_epoch=0), "num_epoch"),
    (lambda: Module(net()).fit([], num_epoch=1), "got none in epoch 0"),
    (lambda: Module(net()).fit(iter(batches()), num_epoch=2), "got none in epoch 1"),
    (lambda: Module(net()).fit([torch.ones(3)], num_epoch=1), r"a batch must be \(data, label\)"),
    (lambda: Module(net()).fit(batches(), "acc", num_epoch=1, eval_metric="accurracy"), "did you mean 'accuracy'"),
    (lambda: Module(net(), context=["cpu"] * 3).fit(batches(1, 2), num_epoch=1), "at least 3 samples"),
    (lambda: Module(net()).update(), "and not before"),
    (lambda: Module(net()).predict([]), "at least one batch"),
    (lambda: Module(net()).set_params({}, {}), r"arg_params and aux_params lack \['0.bias'"),
    (lambda: Module(net()).set_params({"x": torch.ones(1)}, {}, allow_missing=True), "allow_extra=True"),
    (lambda: Module(net(), compression_params={"type": "2bit"}).fit(batches(), num_epoch=1), "does not compress"),
]


@pytest.mark.parametrize(("call", "message"), BAD)
def test_what_cannot_work_is_named(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def test_a_second_fit_goes_on_with_the_optimizer_of_the_first(caplog):
    module = Module(net())
    for _ in range(2):
        module.fit(batches(), num_epoch=1, optimizer_params=NUMBERS)
    assert close(module.symbol, trained(net(), 2, batches()))
    assert any("training goes on with it" in record.getMessage() for record in caplog.records)
