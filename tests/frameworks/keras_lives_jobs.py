"""Work of the ranks in the Keras tests: models that are made late, saved, loaded, copied and frozen."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.frameworks.array_jobs import Said
from tests.integrations.jobs import answers

TOPK = {"ratio": 0.05, "min_numel": 64}


def lives(rank: int, folder: str) -> dict[str, Any]:
    return {
        "late": {way: late(rank, way) for way in ("before", "by fit", "in a loop")},
        "began": began(rank),
        "saved": saved(rank, folder),
        "half": half(rank, folder),
        "own variables": own_variables(rank),
        "refused": refused(rank),
    }


def wrap(inner: Any, *compressor: Any, **options: Any) -> Any:
    import gradwire.tensorflow

    return gradwire.tensorflow.DistributedOptimizer(inner, *(compressor or ("topk",)), **(options or TOPK))


def model_of(optimizer: Any, seed: int, made: bool = True, **options: Any) -> Any:
    """A model with a frozen layer and statistics, with its variables or without them yet."""
    import keras

    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(64, "tanh", trainable=False), keras.layers.BatchNormalization()]
    layers += [keras.layers.Dense(64, "tanh"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((32,)), *layers] if made else layers)
    model.compile(optimizer=optimizer, loss="mse", **{"jit_compile": False, **options})
    return model


def fit(model: Any, rank: int, seed: int = 0, steps: int = 4) -> None:
    x = np.random.default_rng([seed, rank]).standard_normal((16 * steps, 32), np.float32)
    model.fit(x, np.tanh(x[:, :10]), batch_size=16, shuffle=False, verbose=0)


def bits(variables: Any) -> list[bytes]:
    return [variable.numpy().tobytes() for variable in variables]


def late(rank: int, way: str) -> dict[str, Any]:
    """The weights after four steps of processes that begin with other ones.

    Args:
        rank: seed of this process.
        way: moment at which the variables are made: before the training, by ``fit``, or by the step of a loop.
    """
    import keras
    import tensorflow as tf

    optimizer, said = wrap(keras.optimizers.SGD(0.3)), Said()
    model = model_of(optimizer, rank, way == "before")
    logging.getLogger("gradwire").addHandler(said)
    if way == "in a loop":
        loss, x = (
            keras.losses.MeanSquaredError(),
            np.random.default_rng([0, rank]).standard_normal((64, 32), np.float32),
        )

        @tf.function
        def step(x: Any) -> None:
            with tf.GradientTape() as tape:
                value = loss(tf.tanh(x[:, :10]), model(x, training=True))
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(value, variables), variables, strict=True))

        for part in np.split(x, 4):
            step(tf.constant(part))
    else:
        fit(model, rank)
    logging.getLogger("gradwire").removeHandler(said)
    return {
        "said": said.lines,
        "frozen": bits(model.layers[0].weights),
        "trained": bits(model.trainable_variables),
        "steps": optimizer.state.metrics()["steps"],
    }


def began(rank: int) -> dict[str, Any]:
    """The messages where processes begin with other weights, and an eager step finds it out or a call did before."""
    import keras
    import tensorflow as tf

    told = {}
    for way in ("asked", "not asked"):
        keras.utils.set_random_seed(rank)
        layers = [keras.layers.Dense(8, trainable=False), keras.layers.Dense(8)]
        model, said = keras.Sequential([keras.Input((8,)), *layers]), Said()
        optimizer = wrap(keras.optimizers.SGD(0.1))
        logging.getLogger("gradwire").addHandler(said)
        if way == "asked":
            optimizer.build(model.weights)
        optimizer.apply([tf.ones((8, 8)), tf.ones(8)], model.trainable_variables)
        logging.getLogger("gradwire").removeHandler(said)
        told[way] = {"frozen": bits(layers[0].weights), "trained": bits(layers[1].weights), "said": said.lines}
    return told


def saved(rank: int, folder: str) -> dict[str, Any]:
    """Four steps, and four more: unbroken, and of models that Keras saved, copied or made again."""
    import keras

    from gradwire.compressors.sparse.topk import TopK
    from gradwire.memory.residual import Residual

    def optimizer_of() -> Any:
        overrides = {"*dense*/kernel": TopK(ratio=0.1)}
        inner = keras.optimizers.SGD(0.3, momentum=0.9)
        return wrap(inner, "topk", ratio=0.05, min_numel=64, memory=Residual(), overrides=overrides, force=True)

    model, file = model_of(optimizer_of(), rank), Path(folder, f"model-{rank}.keras")
    fit(model, rank)
    model.save(file)
    state, weights = copy.deepcopy(model.optimizer.state.state_dict()), model.get_weights()
    torch.save(state, Path(folder, f"state-{rank}.pt"))
    names = list(model.optimizer.state.sizes)
    loaded = keras.saving.load_model(file)
    momenta = bits(loaded.optimizer.variables)
    # Keras has built it; who calls it as in other cases must not lose what was loaded.
    loaded.optimizer.build(loaded.weights)
    again, compiled = copy.deepcopy(model), keras.saving.load_model(file, compile=False)
    compiled.compile(optimizer=optimizer_of(), loss="mse", jit_compile=False)
    # Of each process's own weights those that are not trained stay.
    compiled.optimizer.build(compiled.trainable_variables)
    for one, other in zip(compiled.optimizer.variables, model.optimizer.variables, strict=True):
        one.assign(other)
    ways = {"loaded": loaded, "copied": again, "compiled again": compiled}
    told: dict[str, Any] = {
        "momenta": momenta == bits(model.optimizer.variables) == bits(loaded.optimizer.variables),
        "names": {way: list(each.optimizer.state.sizes) == names for way, each in ways.items()},
    }
    fit(model, rank, seed=1)
    told["unbroken"] = bits(model.weights)
    for way, each in ways.items():
        each.optimizer.state.load_state_dict(state)
        fit(each, rank, seed=1)
        told[way] = bits(each.weights)
    without = keras.saving.load_model(file)
    fit(without, rank, seed=1)
    told["without"] = bits(without.weights)
    other = model_of(wrap(keras.optimizers.SGD(0.3)), 0)
    other.set_weights(weights)
    other.pop()
    other.add(keras.layers.Dense(9))
    other.compile(optimizer=wrap(keras.optimizers.SGD(0.3)), loss="mse", jit_compile=False)
    other.optimizer.build(other.weights)
    told["another model"] = answers({"": lambda: other.optimizer.state.load_state_dict(state)})[""]
    return told


def continued(rank: int, folder: str) -> list[bytes]:
    """The weights after the second four steps in another process, which has nothing but the files of ``saved``."""
    import keras

    import gradwire.tensorflow  # noqa: F401  Keras knows the optimizer's class by this.

    loaded = keras.saving.load_model(Path(folder, f"model-{rank}.keras"))
    loaded.optimizer.state.load_state_dict(torch.load(Path(folder, f"state-{rank}.pt")))
    fit(loaded, rank, seed=1)
    return bits(loaded.weights)


def half(rank: int, folder: str) -> dict[str, Any]:
    """A model under mixed_float16, loaded by a process that has another policy."""
    import keras

    keras.config.set_dtype_policy("mixed_float16")
    try:
        inner = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.3), initial_scale=1024.0)
        model = model_of(wrap(inner), rank)
        fit(model, rank)
    finally:
        keras.config.set_dtype_policy("float32")
    file = Path(folder, f"half-{rank}.keras")
    model.save(file)
    loaded = keras.saving.load_model(file)
    loaded.optimizer.state.load_state_dict(copy.deepcopy(model.optimizer.state.state_dict()))
    ends = []
    for each in (model, loaded):
        fit(each, rank, seed=1)
        ends.append(bits(each.weights))
    kinds = [type(each).__name__ for each in (loaded.optimizer, loaded.optimizer.inner_optimizer)]
    return {"kinds": kinds, "same": ends[0] == ends[1]}


def own_variables(rank: int) -> list[Any]:
    """TensorFlow's own variables, which have no path, and these have one name."""
    import keras
    import tensorflow as tf

    variables = [tf.Variable(tf.fill((16, 16), float(rank + 1))) for _ in range(2)]
    optimizer = wrap(keras.optimizers.SGD(1.0), "topk", ratio=1.0, min_numel=8)
    optimizer.build(variables)
    tf.function(lambda: optimizer.apply([tf.fill((16, 16), float(rank)), tf.ones((16, 16))], variables))()
    return [list(optimizer.state.sizes), *(sorted(set(each.numpy().ravel().tolist())) for each in variables)]


def refused(rank: int) -> dict[str, str]:
    import keras
    import tensorflow as tf

    import gradwire

    variable = keras.Variable(np.zeros((64, 64), np.float32), name="w")

    def in_a_loop() -> None:
        optimizer = wrap(keras.optimizers.SGD(0.1))
        optimizer.build([variable])
        tf.function(lambda: optimizer.apply([tf.ones((64, 64))], [variable]), jit_compile=True)()

    def unfrozen() -> None:
        model = model_of(wrap(keras.optimizers.SGD(0.1)), 0)
        fit(model, rank)
        model.layers[0].trainable = True
        model.compile(optimizer=model.optimizer, loss="mse", jit_compile=False)
        fit(model, rank)

    def frozen_apart() -> None:
        frozen = keras.Variable(np.zeros(4 + rank, np.float32), trainable=False, name="f")
        wrap(keras.optimizers.SGD(0.1)).build([variable, frozen])

    def scheduled() -> None:
        ratio = gradwire.schedules.linear(0.1, 0.01, 9)
        copy.deepcopy(wrap(keras.optimizers.SGD(0.1), "topk", schedule={"ratio": ratio}))

    def copied() -> None:
        optimizer = wrap(keras.optimizers.SGD(0.1))
        optimizer.build([variable])
        copy.deepcopy(optimizer.state)

    return answers(
        {
            "xla": lambda: fit(model_of(wrap(keras.optimizers.SGD(0.1)), 0, jit_compile=True), rank),
            "xla in a loop": in_a_loop,
            "unfrozen": unfrozen,
            "frozen apart": frozen_apart,
            "schedule": scheduled,
            "copied state": copied,
        }
    )
