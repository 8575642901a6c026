"""Features of a distributed store, by real processes: groups of keys, rows, methods of several rounds, answers."""

import pytest
import torch

from gradwire import kvstore
from gradwire.kvstore.protocol.compression import parse
from gradwire.kvstore.protocol.keys import place
from gradwire.kvstore.protocol.merge import Merger
from gradwire.kvstore.protocol.payloads import sent
from gradwire.kvstore.protocol.replica import Replica
from gradwire.kvstore.protocol.sender import Sender
from tests.kvstore.feature_jobs import ALONE, BOUND, GROUP, MATRIX, PULLED, ROWS, ahead, everything, sparse
from tests.kvstore.group import finished, kill, run_workers, start_workers, wait_for
from tests.kvstore.jobs import gradient, slow_steps
from tests.kvstore.simulate import Simulated

WORKERS = 2


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """By worker, what happened."""
    folder = tmp_path_factory.mktemp("everything")
    return run_workers(everything, WORKERS, 2, str(folder), folder=folder, timeout=300)


def test_groups_of_keys_lists_of_tensors_and_priorities(told):
    for outs, grads in (each["groups"] for each in told):
        for shape, out, grad in zip(GROUP.values(), outs, grads, strict=True):
            want = torch.zeros(shape)
            for rank in range(WORKERS):
                total = torch.zeros(shape)
                for i in range(1 + len(shape)):
                    total += gradient(rank, i, shape)
                want += total
            assert torch.allclose(out, want, atol=1e-6)
            assert torch.equal(grad, gradient(0, 9, shape) + gradient(1, 9, shape)), "pushpull overwrites the gradients"


@pytest.mark.parametrize("name", ALONE)
def test_a_method_of_several_rounds_runs_alone_on_each_worker(told, name):
    compression, shape = parse({"type": name}), torch.Size(MATRIX)
    senders = [Sender(name, shape, seed=0, rank=rank) for rank in range(WORKERS)]
    for step in range(3):
        payloads = []
        for rank, sender in enumerate(senders):
            sender.use(compression)
            payloads.append(sent(compression.push, MATRIX, sender.encode(gradient(rank, step, MATRIX))[0]))
        want = Merger(shape).merge(compression, payloads)
        for each in told:
            assert torch.allclose(each["alone"][name][step], want, atol=1e-5)
    assert torch.equal(told[0]["alone"][name][2], told[1]["alone"][name][2])
    assert len(payloads[0]) < 4 * MATRIX[0] * MATRIX[1]


def test_a_method_that_saves_nothing_alone_is_refused(told):
    assert all("'gradiveq' needs rounds between the workers" in each["alone"]["refused"] for each in told)


@pytest.mark.parametrize("name", ["plain", "twobit"])
def test_row_sparse_pushes_and_pulls(told, name):
    residuals = torch.zeros(WORKERS, *ROWS)
    for step in range(3):
        want = torch.zeros(ROWS)
        for rank in range(WORKERS):
            grad = sparse(rank, step).coalesce()
            places, values = grad.indices()[0], grad.values()
            if name == "twobit":
                sender = Simulated("2bit", 0.5, values.shape)
                sender.residual[:] = residuals[rank][places]
                values = torch.from_numpy(sender.send(values.numpy()))
                residuals[rank][places] = torch.from_numpy(sender.residual)
            want[places] += values
        named = torch.zeros(ROWS)
        named[[step, 7 + step]] = want[[step, 7 + step]]
        for each in told:
            some, whole, picked = each["rows"][name][0][step]
            assert torch.equal(some, named)
            assert torch.equal(whole, want)
            if name == "plain":
                assert torch.equal(picked, want)
    assert all(torch.equal(each["rows"][name][1], torch.full(ROWS, 7.0)) for each in told), "ignore_sparse"
    assert told[0]["rows"][name][2] == [2] * 5


def test_thresholds_that_follow_the_gradients_need_no_agreement(told):
    delivered = told[0]["scales"][0]
    total = told[0]["scales"][1] + told[1]["scales"][1]
    assert torch.equal(delivered, told[1]["scales"][0])
    # Worker 1's threshold, a hundred times as large, would have kept all of worker 0's row back, or sent far too much.
    for got, want in zip(delivered, total, strict=True):
        assert 0.3 * want.mean() < got.mean() < 1.1 * want.mean()


@pytest.mark.parametrize("name", PULLED)
@pytest.mark.parametrize("kind", ["sums", "changes"])
def test_compressed_answers_are_the_same_for_all_workers_and_those_of_a_simulation(told, kind, name):
    pull = parse({"type": "none", "pull": PULLED[name]}).pull
    for i, shape in enumerate([(20, 30), (60, 40)]):
        parts = place(
            f"{kind}-{name}" + "-cut" * i, shape[0] * shape[1], 2, bound=BOUND, alignment=pull.alignment and 16
        )
        assert len(parts) == 1 + i * (name != "lowrank"), "what cannot be cut is not"
        simulated = Simulation(f"{kind}-{name}" + "-cut" * i, shape, parts, pull, optimizer=kind == "changes")
        for step in range(4):
            mine, theirs = (each[kind][name][step][i] for each in told)
            assert torch.equal(mine, theirs)
            assert torch.allclose(mine, simulated.step(step), atol=1e-5)
            assert kind == "sums" or not torch.equal(mine, simulated.value), "compressed"


class Simulation:
    """The servers in this process: two bits from each worker, an optimizer or none, and replicas of the parts."""

    def __init__(self, key, shape, parts, pull, optimizer):
        self.shape, self.parts, self.pull, self.optimizer = shape, parts, pull, optimizer
        self.senders = [Simulated("2bit", 0.5, shape) for _ in range(WORKERS)]
        self.value, self.momentum = torch.zeros(shape), None
        self.replicas = [Replica(key, self.piece(part)) for part in parts]

    def piece(self, part):
        flat = self.value.view(-1)[part.start : part.stop]
        return self.value if len(self.parts) == 1 else flat

    def step(self, step):
        merged = torch.zeros(self.shape)
        for rank, sender in enumerate(self.senders):
            merged += torch.from_numpy(sender.send(gradient(rank, step, self.shape).numpy()))
        if self.optimizer:
            self.momentum = merged if self.momentum is None else 0.9 * self.momentum + merged
            self.value -= 0.01 * self.momentum
        else:
            self.value.copy_(merged)
        for part, replica in zip(self.parts, self.replicas, strict=True):
            replica.follow(self.piece(part), self.pull, replaced=not self.optimizer)
        return torch.cat([replica.held.view(-1) for replica in self.replicas]).view(self.shape)


def test_optimizer_states_of_all_servers_go_through_a_file(told):
    for before, after, again in (each["states"] for each in told):
        for a, b, c in zip(before, after, again, strict=True):
            assert torch.allclose(c - b, b - a, atol=1e-5)
            assert (b - a).abs().max() > 0.01


def test_a_fast_worker_waits_for_the_slow_one_at_the_bound_until_its_deadline(tmp_path):
    (error, fast), (leads, _) = run_workers(ahead, 2, 1, str(tmp_path), 10, 2, folder=tmp_path)
    assert 1 <= max(leads) <= 2
    assert "was not answered within 2 s" in error
    assert "at most 2 steps ahead of the slowest worker" in error
    assert fast[0] >= 20


def undisturbed(steps, compression):
    """The result of ``slow_steps`` in a store of this process."""
    kv, out = kvstore.create("device"), torch.empty(50, 50)
    kv.set_gradient_compression(compression)
    kv.set_optimizer("sgd", learning_rate=0.1, momentum=0.9)
    kv.init("w", torch.zeros(50, 50))
    for step in range(steps):
        kv.push("w", [gradient(rank, step, (50, 50)) for rank in range(WORKERS)])
    kv.pull("w", out)
    return out


def test_a_killed_server_and_a_killed_worker_change_no_bit_of_the_answers(tmp_path):
    # The residual of what is pushed would die with a worker; that of the answers is the server's.
    compression = {"type": "none", "pull": {"type": "topk", "ratio": 0.02}}
    want = undisturbed(14, compression)
    options = ["--snapshot", str(tmp_path / "snapshot"), "--snapshot-every", "3", "--dead-after", "60"]
    arguments = (14, str(tmp_path), compression, 0.1)
    with start_workers(slow_steps, 2, 1, *arguments, folder=tmp_path, options=options) as group:
        wait_for(tmp_path, 0, 5)
        kill(group.servers[0])
        group.restart_server(0)
        wait_for(tmp_path, 1, 9)
        kill(group.workers[1])
        group.start_worker(1)
        ended = finished(group, tmp_path)
    for text, steps, value in ended:
        assert (text, steps) == ("", 14)
        assert torch.equal(value, want)
