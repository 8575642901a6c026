"""What the ranks of the Keras tests do; TensorFlow is imported in them alone, once each."""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np
import torch

from tests.integrations.array_jobs import METHODS, OPTIONS, SHAPES, STEPS, Means, compared, gradients
from tests.integrations.jobs import answers

TOPK = {"ratio": 0.05, "min_numel": 64}


def everything(rank: int) -> dict[str, Any]:
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="2")
    return {"compared": compared(rank, lambda method: means(rank, method)), "trained": trained(rank),
            "config": config(), "refused": refused()}  # fmt: skip


def means(rank: int, method: str) -> tuple[Means, dict[str, Any]]:
    """What the inner optimizer is handed, in a compiled step and, for one method, in a plain one."""
    import keras
    import tensorflow as tf

    import gradwire.tensorflow

    class Keep(keras.optimizers.Optimizer):
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            variable.assign(gradient)

    variables = [keras.Variable(np.zeros(shape, np.float32), name=name) for name, shape in SHAPES.items()]
    optimizer = gradwire.tensorflow.DistributedOptimizer(Keep(0.0), compressor=method, **OPTIONS, **METHODS[method])
    optimizer.build(variables)

    def plain(grads: Any) -> None:
        optimizer.apply(grads, variables)

    apply = plain if method == "qsgd" else tf.function(plain)
    told = []
    for step in range(STEPS):
        apply([tf.constant(grad) for grad in gradients(step, rank).values()])
        told.append({variable.name: variable.numpy().copy() for variable in variables})
    return told, optimizer.state.metrics()


def trained(rank: int) -> dict[str, Any]:
    """Twenty steps of ``fit`` from different weights; then ten more, and the same ten resumed from a file."""
    import keras

    import gradwire.tensorflow

    def model_of(seed: int, weights: Any = None) -> Any:
        keras.utils.set_random_seed(seed)
        layers = [keras.layers.Dense(64, "tanh", name="one"), keras.layers.Dense(10, name="two")]
        model = keras.Sequential([keras.Input((32,)), *layers], name="model")
        optimizer = gradwire.tensorflow.DistributedOptimizer(keras.optimizers.SGD(0.3), compressor="topk", **TOPK)
        model.compile(optimizer=optimizer, loss="mse", jit_compile=False)
        if weights is not None:
            model.set_weights(weights)
        return model

    def fit(model: Any, first: int, steps: int) -> list[float]:
        x = np.random.default_rng([first, rank]).standard_normal((16 * steps, 32), np.float32)
        teacher = np.sin(np.arange(320, dtype=np.float32)).reshape(32, 10)
        return model.fit(x, x @ teacher / 5, batch_size=16, shuffle=False, verbose=0, epochs=2).history["loss"]

    model = model_of(rank)
    before = bits_of(model)
    losses = fit(model, 0, 10)
    file, half = io.BytesIO(), model.get_weights()
    torch.save(model.optimizer.state.state_dict(), file)
    fit(model, 1, 5)
    file.seek(0)
    again, without = model_of(7, half), model_of(7, half)
    again.optimizer.build(again.trainable_variables)
    again.optimizer.state.load_state_dict(torch.load(file, weights_only=True))
    fit(again, 1, 5)
    fit(without, 1, 5)
    return {"before": before, "end": bits_of(model), "resumed": bits_of(again), "without": bits_of(without),
            "losses": losses, "metrics": model.optimizer.state.metrics()}  # fmt: skip


def bits_of(model: Any) -> bytes:
    return b"".join(weight.tobytes() for weight in model.get_weights())


def config() -> list[Any]:
    """An optimizer that went through Keras's serialisation."""
    import keras

    import gradwire.tensorflow
    from gradwire.compressors.topk import TopK

    made = gradwire.tensorflow.DistributedOptimizer(keras.optimizers.Adam(0.25), TopK(ratio=0.5), min_numel=7)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(made))
    return [type(again).__name__, type(again.inner_optimizer).__name__, float(again.learning_rate.numpy()),
            again.compressor == made.compressor, dict(again.options)]  # fmt: skip


def refused() -> dict[str, str]:
    import keras

    import gradwire.tensorflow

    variable = keras.Variable(np.zeros((64, 64), np.float32), name="w")
    wrap = gradwire.tensorflow.DistributedOptimizer

    def mixed() -> None:
        keras.config.set_dtype_policy("mixed_float16")
        try:
            wrap(keras.optimizers.SGD(0.1)).build([variable])
        finally:
            keras.config.set_dtype_policy("float32")

    return answers({
        "torch": lambda: wrap(torch.optim.SGD([torch.zeros(1)])),
        "typo": lambda: wrap(keras.optimizers.SGD(0.1), "topk", ration=0.1).build([variable]),
        "dtype": lambda: wrap(keras.optimizers.SGD(0.1)).build([keras.Variable(np.zeros(3, np.float64), name="d",
                                                                               dtype="float64")]),
        "mixed": mixed,
    })  # fmt: skip
