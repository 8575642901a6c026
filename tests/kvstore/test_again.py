"""A worker that was killed (-9) and is started again: training ends as if nothing had happened."""

import os
import runpy
import signal
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from gradwire import GroupError, kvstore
from tests.kvstore.group import ROOT, finished, kill, start_workers, wait_for
from tests.kvstore.jobs import gradient

pytestmark = pytest.mark.timeout(400)
SIZE, STEPS, DIES = 200, 8, 4
NUMBERS = {"learning_rate": 0.1, "momentum": 0.9}
PATIENT = ["--dead-after", "200"]
"""A process that is started on a busy machine may be long in coming."""


def set_gradients(model, rank, step):
    for i, param in enumerate(model.parameters()):
        param.grad = gradient(rank, step, param.shape, i)


def model_of(seed):
    torch.manual_seed(seed)
    return torch.nn.Linear(SIZE, SIZE)


def training(rank, folder, pushed):
    """Steps of a Trainer; worker 1 dies once, when it has pushed some keys of a step and not the others."""
    kv, model, died = kvstore.create("dist_sync", timeout=250), model_of(rank), Path(folder) / "died"
    trainer = kvstore.Trainer(model.parameters(), "sgd", NUMBERS, kvstore=kv)
    trainer.start()
    began = trainer.steps
    for step in range(began, STEPS):
        set_gradients(model, rank, step)
        if rank == 1 and step == DIES and not died.exists():
            died.touch()
            for key in pushed:
                kv.push(key, list(model.parameters())[key].grad)
            kv._flush()
            os.kill(os.getpid(), signal.SIGKILL)
        trainer.step(2)
    kv.barrier()
    return began, [param.detach() for param in model.parameters()]


def undisturbed():
    """The parameters after the same steps in one process, without a store."""
    model = model_of(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        set_gradients(model, 0, step)
        for i, param in enumerate(model.parameters()):
            param.grad = (param.grad + gradient(1, step, param.shape, i)).mul_(0.5)
        optimizer.step()
    return list(model.parameters())


def example(rank, folder):
    """examples/kvstore_digits.py, with a file that says how many steps were made."""
    step = kvstore.Trainer.step

    def noted(trainer, batch_size):
        step(trainer, batch_size)
        (Path(folder) / f"step-{rank}").write_text(str(trainer.steps))

    kvstore.Trainer.step = noted
    sys.argv = ["kvstore_digits.py", "--gc-type", "2bit", "--num-epochs", "2"]
    runpy.run_path(str(ROOT / "examples" / "kvstore_digits.py"), run_name="__main__")
    return int((Path(folder) / f"step-{rank}").read_text())


def killed_and_started_again(killed, folder):
    """The steps that the workers of the example have made."""
    pytest.importorskip("sklearn")
    with start_workers(example, 2, 2, str(folder), folder=folder, options=PATIENT) as group:
        wait_for(folder, killed, 5)
        kill(group.workers[killed])
        (folder / f"step-{killed}").unlink()
        group.start_worker(killed)
        return finished(group, folder, 150)


@pytest.fixture(scope="module", autouse=True)
def digits(tmp_path_factory):
    """The example without its first worker and without its second, while the other tests run."""
    with ThreadPoolExecutor() as threads:
        yield [threads.submit(killed_and_started_again, rank, tmp_path_factory.mktemp("digits")) for rank in (0, 1)]


@pytest.mark.parametrize("pushed", [[], [0], [1], [0, 1]])
def test_a_trainer_goes_on_where_the_others_are(pushed, tmp_path):
    with start_workers(training, 2, 2, str(tmp_path), pushed, folder=tmp_path, options=PATIENT) as group:
        assert group.workers[1].wait(150) == -signal.SIGKILL
        group.start_worker(1)
        (_, first), (began, second) = finished(group, tmp_path, 150)
    # Of a step that was pushed whole the other worker's part may come before this one's first look, or after it.
    assert began in ({DIES, DIES + 1} if len(pushed) == 2 else {DIES})
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(first, undisturbed(), strict=True))


def cut(rank, folder):
    """Steps of a Trainer whose keys are cut over two servers; worker 1 dies when one of them has its push."""
    kv, model, died = kvstore.create("dist_sync", timeout=250, bound=100), model_of(rank), Path(folder) / "died"
    trainer = kvstore.Trainer(model.parameters(), "sgd", NUMBERS, kvstore=kv)
    trainer.start()
    began, ask = trainer.steps, kv._client.ask

    def first_alone(server, request):
        if server == 0:
            return ask(server, request)
        request.future = Future()
        request.future.set_result(0)
        return request.future

    for step in range(began, STEPS):
        set_gradients(model, rank, step)
        if rank == 1 and step == DIES and not died.exists():
            died.touch()
            kv._client.ask = first_alone
            kv.push(0, next(model.parameters()).grad)
            kv._flush()
            os.kill(os.getpid(), signal.SIGKILL)
        trainer.step(2)
    kv.barrier()
    return began, [param.detach() for param in model.parameters()]


def test_a_key_that_only_one_of_its_servers_was_pushed_is_pushed_to_the_others(tmp_path):
    with start_workers(cut, 2, 2, str(tmp_path), folder=tmp_path, options=PATIENT) as group:
        assert group.workers[1].wait(150) == -signal.SIGKILL
        group.start_worker(1)
        (_, first), (began, second) = finished(group, tmp_path, 150)
    assert began == DIES
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(first, undisturbed(), strict=True))


def summing(rank, folder):
    """A Trainer whose workers have the weights; worker 1 dies after its first step, and comes again."""
    kv, model, died = kvstore.create("dist_sync", timeout=60), model_of(rank), Path(folder) / "died"
    trainer = kvstore.Trainer(model.parameters(), "sgd", NUMBERS, kvstore=kv, update_on_kvstore=False)
    try:
        trainer.start()
    except GroupError as error:
        kv.close()
        return str(error)
    set_gradients(model, rank, 0)
    trainer.step(2)
    if rank == 1:
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    kv.close()
    return ""


def test_where_the_workers_have_the_weights_one_that_comes_again_is_told(tmp_path):
    with start_workers(summing, 2, 1, str(tmp_path), folder=tmp_path, options=PATIENT) as group:
        assert group.workers[1].wait(150) == -signal.SIGKILL
        group.start_worker(1)
        told = finished(group, tmp_path, 150)
    assert told[0] == ""
    assert "step 1 was made before this worker was started again" in told[1]
    assert "update_on_kvstore=True" in told[1]


@pytest.mark.parametrize("killed", [0, 1])
def test_the_example_of_digits_ends_though_a_worker_is_killed(killed, digits):
    assert digits[killed].result() == [2 * (1437 // 2 // 32)] * 2
