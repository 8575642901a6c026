"""Workers as threads of the test, of servers that are processes: a store is a worker wherever it is."""

import threading

import torch

from gradwire.kvstore.protocol.environment import WorkerPlace
from gradwire.kvstore.worker.store import DistStore
from tests.kvstore.jobs import gradient
from tests.kvstore.simulate import Simulated

SHAPE = (50, 50)
NUMBERS = {"learning_rate": 0.1, "momentum": 0.9}


class Worker:
    """Makes steps of one key in a thread, each when it is allowed to; of two in one call where they are small.

    Args:
        endpoints: addresses of the servers.
        rank: rank of the worker.
        steps: number of steps.
        world: number of workers.
        compression: compression of its pushes; None: none.
        shape: shape of the key.
        server_timeout: seconds, as for the store; a server that a test starts again may be long in coming.
    """

    def __init__(self, endpoints, rank, steps, world=2, compression=None, shape=SHAPE, server_timeout=60, **options):
        place = WorkerPlace(tuple(endpoints), rank, world)
        self.store = DistStore("dist_sync", place, timeout=60, server_timeout=server_timeout, **options)
        self.rank, self.steps, self.shape, self.compression = rank, steps, shape, compression
        self.out, self.error, self.step = torch.empty(shape), None, 0
        self.keys = ["w", "twin of w"] if shape == SHAPE else ["w"]
        self.outs = [self.out, torch.empty(shape)][: len(self.keys)]
        self._allowed, self._changed = steps, threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self, allowed=None):
        """Run, at first for so many steps."""
        self._allowed = self.steps if allowed is None else allowed
        self._thread.start()
        return self

    def go_on(self):
        with self._changed:
            self._allowed = self.steps
            self._changed.notify_all()

    def wait(self, step):
        """Until it has made so many steps, or met with an error."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.step >= step or self.error is not None, 60), self.step
        return self

    def join(self):
        """Its last value, or the error it met with."""
        self._thread.join(90)
        assert not self._thread.is_alive(), f"worker {self.rank} is stuck after step {self.step}"
        self.store.close()
        return self.out if self.error is None else self.error

    def _run(self):
        try:
            if self.compression is not None:
                self.store.set_gradient_compression(self.compression)
            self.store.set_optimizer("sgd", **NUMBERS)
            self.store.init(self.keys, [torch.zeros(self.shape) for _ in self.keys])
            for step in range(self.store.version("w"), self.steps):
                with self._changed:
                    assert self._changed.wait_for(lambda step=step: step < self._allowed, 60)
                self.store.push(self.keys, [gradient(self.rank, step, self.shape)] * len(self.keys))
                self.store.pull(self.keys, self.outs)
                assert torch.equal(self.out, self.outs[-1]), f"step {step} of one key differs from its twin's"
                self._told(step + 1)
            self.store.finish()
        except Exception as error:
            self.error = error
        self._told(self.step)

    def _told(self, step):
        with self._changed:
            self.step = step
            self._changed.notify_all()


def undisturbed(steps, compression=None, ranks=range(2), shape=SHAPE):
    """The value after so many steps of all ranks, computed without a store."""
    weights = torch.nn.Parameter(torch.zeros(shape))
    optimizer = torch.optim.SGD([weights], lr=NUMBERS["learning_rate"], momentum=NUMBERS["momentum"])
    senders = [Simulated("2bit", (compression or {}).get("threshold", 0.5), shape) for _ in ranks]
    for step in range(steps):
        grads = [gradient(rank, step, shape) for rank in ranks]
        sent = (
            [torch.from_numpy(s.send(g.numpy())) for s, g in zip(senders, grads, strict=True)] if compression else grads
        )
        weights.grad = torch.zeros(shape)
        for grad in sent:
            weights.grad += grad
        optimizer.step()
    return weights.detach()
