"""The same pushes and pulls for MXNet's stores and ours: this file runs in both interpreters, and needs numpy alone.

python mxnet_rounds.py PLANS RESULTS      in MXNet's interpreter; the environment says who it is in a group
"""

import json
import sys

import numpy as np


def gradients(number, rank, step, size, senders, scale):
    """Each sender's, float32; now and then a value that is exactly the threshold, or nothing."""
    random = np.random.RandomState(100_000 * number + 1000 * rank + step)
    drawn = [(random.standard_normal(size) * 2 * scale).astype(np.float32) for _ in range(senders)]
    for grad in drawn:
        grad[::7] = np.float32(scale)
        grad[::11] = 0
    return drawn


def run(kv, plan, rank, array, read):
    """Every round of a plan on a store.

    Args:
        plan: compression, sizes of keys, number of senders and of steps for each round.
        array: makes a tensor of a numpy array.
        read: makes a numpy array of a tensor.

    Returns:
        The values that a pull gave after each step, by name.
    """
    values = {}
    for number, each in enumerate(plan):
        kv.set_gradient_compression(each["compression"])
        scale = abs(each["compression"]["threshold"]) or 0.5
        for i, size in enumerate(each["sizes"]):
            key = 100 * number + i
            kv.init(key, array(np.zeros(size, np.float32)))
            for step in range(each["steps"]):
                pushed = [array(grad) for grad in gradients(number, rank, step, size, each["senders"], scale)]
                kv.push(key, pushed if len(pushed) > 1 else pushed[0])
                out = array(np.full(size, 7, np.float32))
                kv.pull(key, out=out)
                values[f"{number}/{size}/{step}"] = read(out).copy()
    return values


def main():
    import mxnet  # A scheduler and a server stay in this line until the workers have ended.

    for number, plan in enumerate(json.loads(sys.argv[1])):
        kv = mxnet.kv.create(plan["store"])
        if plan["rescale"] is not None:
            # From 2.0 on its optimizer for tests subtracts, and multiplies by a learning rate.
            name = "rescale_grad" if mxnet.__version__.startswith("1.") else "learning_rate"
            rescale = plan["rescale"] if name == "rescale_grad" else -plan["rescale"]
            kv.set_optimizer(mxnet.optimizer.create("test", **{name: rescale}))
        values = run(kv, plan["rounds"], kv.rank, mxnet.nd.array, lambda array: array.asnumpy())
        np.savez(f"{sys.argv[2]}-{number}-{kv.rank}.npz", **values)


if __name__ == "__main__":
    main()
