"""Work of the ranks in the Keras tests; TensorFlow is imported in them alone, once each."""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np
import torch

from tests.frameworks.array_jobs import METHODS, OPTIONS, SHAPES, STEPS, Means, compared, gradients
from tests.frameworks.keras_lives_jobs import TOPK, lives
from tests.integrations.jobs import answers


def everything(rank: int, folder: str) -> dict[str, Any]:
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="2")
    return {
        "compared": compared(rank, lambda method: means(rank, method)),
        "trained": trained(rank),
        "scaled": scaled(rank),
        "half": half(rank),
        "config": config(),
        "refused": refused(),
        "unused": unused(rank),
        "corrected": corrected(rank),
        "lives": lives(rank, folder),
    }


def means(rank: int, method: str) -> tuple[Means, dict[str, Any]]:
    """The gradients that the inner optimizer is handed, in a compiled step and, for one method, in a plain one."""
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
    return {
        "before": before,
        "end": bits_of(model),
        "resumed": bits_of(again),
        "without": bits_of(without),
        "losses": losses,
        "metrics": model.optimizer.state.metrics(),
    }


def corrected(rank: int) -> dict[str, Any]:
    """By how much longer Adam's steps are with the factor than without it, in a plain step and in a compiled one."""
    import keras
    import tensorflow as tf

    import gradwire.tensorflow

    def way(compiled: bool, correct: bool) -> tuple[np.ndarray, Any]:
        variable = keras.Variable(np.ones((64, 64), np.float32), name="w")
        optimizer = gradwire.tensorflow.DistributedOptimizer(
            keras.optimizers.Adam(1e-2), compressor="qsgd", bits=2, block=64, variance_correction=correct
        )
        optimizer.build([variable])

        def step(grad: Any) -> None:
            optimizer.apply([grad], [variable])

        grad = np.random.default_rng(rank).standard_normal((64, 64), np.float32)
        (tf.function(step) if compiled else step)(tf.constant(grad))
        return variable.numpy() - 1, optimizer

    told: dict[str, Any] = {}
    for how in ("plain", "compiled"):
        (short, _), (long, optimizer) = (way(how == "compiled", correct) for correct in (False, True))
        told[how] = (optimizer.state.factor, float(np.median(long[short != 0] / short[short != 0])), long.tobytes())
    inside = keras.Variable(np.full((64, 64), 0.02, np.float32), name="v")
    inside.constraint = keras.constraints.NonNeg()
    bounded = gradwire.tensorflow.DistributedOptimizer(
        keras.optimizers.Adam(1e-2), compressor="eden", variance_correction=True
    )
    for step in range(4):
        grad = np.random.default_rng(10 * step + rank).standard_normal((64, 64), np.float32)
        bounded.apply([tf.constant(grad)], [inside])
    told["least"] = float(inside.numpy().min())
    again = gradwire.tensorflow.DistributedOptimizer.from_config(optimizer.get_config())
    told["config"] = again.variance_correction
    return told


def model_of(inner: Any, seed: int = 0) -> Any:
    import keras

    import gradwire.tensorflow

    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(64, "tanh", name="one"), keras.layers.Dense(10, name="two")]
    model = keras.Sequential([keras.Input((32,)), *layers], name="model")
    optimizer = gradwire.tensorflow.DistributedOptimizer(inner, compressor="topk", **TOPK)
    model.compile(optimizer=optimizer, loss="mse", jit_compile=False)
    return model


def data_of(rank: int, steps: int) -> np.ndarray:
    return np.random.default_rng(rank).standard_normal((16 * steps, 32), np.float32)


def scaled(rank: int) -> list[bytes]:
    """The weights after ten steps without a loss scale, and with one that doubles after every third."""
    import keras

    ends = []
    for scale in (None, 4.0):
        inner = keras.optimizers.SGD(0.3)
        if scale is not None:
            inner = keras.optimizers.LossScaleOptimizer(inner, initial_scale=scale, dynamic_growth_steps=3)
        model, x = model_of(inner), data_of(rank, 10)
        model.fit(x, x[:, :10], batch_size=16, shuffle=False, verbose=0)
        ends.append(bits_of(model))
    assert float(inner.dynamic_scale.numpy()) == 32.0
    return ends


def half(rank: int) -> dict[str, Any]:
    """Six steps under mixed_float16; in the fourth the second process overflows."""
    import keras

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            (kept,) = self.model.optimizer.state.state_dict()["ranks"].values()
            told["residuals"].append(
                b"".join(tensor.numpy().tobytes() for tensor in kept["worker"]["residual"].values())
            )
            told["weights"].append(bits_of(self.model))
            told["scales"].append(float(inner.dynamic_scale.numpy()))

    keras.config.set_dtype_policy("mixed_float16")
    try:
        inner = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.3), initial_scale=1024.0)
        model, x = model_of(inner), data_of(rank, 6)
    finally:
        keras.config.set_dtype_policy("float32")
    if rank == 1:
        x[3 * 16] = 1e30
    told: dict[str, Any] = {"residuals": [], "weights": [], "scales": []}
    model.fit(x, np.tanh(x[:, :10]), batch_size=16, shuffle=False, verbose=0, callbacks=[Watch()])
    return {**told, "metrics": model.optimizer.state.metrics()}


def unused(rank: int) -> dict[str, Any]:
    """Train three variables: the second gets no gradient anywhere, and the third none on rank 1."""
    import keras
    import tensorflow as tf

    import gradwire.tensorflow

    def run(case: str) -> dict[str, Any]:
        variables = [keras.Variable(np.ones((48, 48), np.float32), name=name) for name in "abc"]
        inner = keras.optimizers.AdamW(0.1, weight_decay=0.5)
        optimizer = gradwire.tensorflow.DistributedOptimizer(inner, compressor="topk", **TOPK)
        optimizer.build(variables)
        apply = optimizer.apply if case == "plain" else tf.function(lambda grads: optimizer.apply(grads, variables))
        grad = tf.ones((48, 48))
        everywhere = [grad, grad, grad]
        apply(everywhere, variables) if case == "plain" else apply(everywhere)
        start = [variable.numpy().copy() for variable in variables]
        kept = optimizer.state.exchange.residuals.worker["residual"]["b"].clone()
        last = None if rank == 1 and case != "compiled" else grad
        grads = [grad, None, last]
        error = answers({"": lambda: apply(grads, variables) if case == "plain" else apply(grads)})[""]
        moved = [bool((variable.numpy() != before).any()) for variable, before in zip(variables, start, strict=True)]
        same = torch.equal(kept, optimizer.state.exchange.residuals.worker["residual"]["b"])
        return {"moved": moved, "kept": same and bool(kept.any()), "error": error}

    return {case: run(case) for case in ("compiled", "plain", "apart")}


def bits_of(model: Any) -> bytes:
    return b"".join(weight.tobytes() for weight in model.get_weights())


def config() -> list[Any]:
    """An optimizer that went through Keras's serialisation."""
    import keras

    import gradwire.tensorflow
    from gradwire.compressors.sparse.topk import TopK

    made = gradwire.tensorflow.DistributedOptimizer(keras.optimizers.Adam(0.25), TopK(ratio=0.5), min_numel=7)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(made))
    return [
        type(again).__name__,
        type(again.inner_optimizer).__name__,
        float(again.learning_rate.numpy()),
        again.compressor == made.compressor,
        dict(again.options),
    ]


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

    def wrapped(inner: Any) -> None:
        """Train under mixed_float16, where ``compile`` wraps the optimizer by itself."""
        keras.config.set_dtype_policy("mixed_float16")
        try:
            model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(10)])
        finally:
            keras.config.set_dtype_policy("float32")
        model.compile(optimizer=wrap(inner), loss="mse", jit_compile=False)

    return answers(
        {
            "torch": lambda: wrap(torch.optim.SGD([torch.zeros(1)])),
            "typo": lambda: wrap(keras.optimizers.SGD(0.1), "topk", ration=0.1).build([variable]),
            "dtype": lambda: wrap(keras.optimizers.SGD(0.1)).build(
                [keras.Variable(np.zeros(3, np.float64), name="d", dtype="float64")]
            ),
            "mixed": mixed,
            "correction": lambda: wrap(keras.optimizers.SGD(0.1), "qsgd", variance_correction=True),
            "averaged": lambda: wrap(keras.optimizers.Adam(0.1, use_ema=True), "qsgd", variance_correction=True),
            "residual": lambda: wrap(keras.optimizers.Adam(0.1), "topk", variance_correction=True).build([variable]),
            "scaled outside": lambda: wrapped(keras.optimizers.SGD(0.1)),
        }
    )
