"""Integration of Keras 3 on TensorFlow 2: an optimizer around an optimizer.

Law: gradients are averaged before the inner optimizer sees them, in a Python function inside Keras's compiled step;
they come through DLPack without a copy and go back as one. The processes form a group of ``torch.distributed`` over
Gloo.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.dlpack import from_dlpack, to_dlpack  # type: ignore[attr-defined]

from gradwire import registry
from gradwire._extras import needs
from gradwire.compressors.base import Compressor
from gradwire.errors import require
from gradwire.integrations._arrays import ArrayState, Spec
from gradwire.integrations.setup import share_start

if "tensorflow" not in sys.modules and importlib.util.find_spec("triton"):
    # Both bring LLVM, and TensorFlow 2.20 and later make theirs visible to all: Triton, which torch loads when it likes
    # to, crashes the process unless it was there before (tensorflow/tensorflow#124205).
    import triton  # noqa: F401

with needs("tensorflow"):
    import keras
    import tensorflow as tf

__all__ = ["DistributedOptimizer"]


class LossScale:
    """The factor by which this step's loss was multiplied, in the form of torch's scalers."""

    def __init__(self) -> None:
        self.now = 1.0

    def is_enabled(self) -> bool:
        return True

    def get_scale(self) -> float:
        return self.now


@keras.saving.register_keras_serializable(package="gradwire")
class DistributedOptimizer(keras.optimizers.Optimizer):
    """An optimizer that averages gradients over the processes, compressed, and hands them to another Keras optimizer.

    All processes must make one, with the same arguments, and train the same model. When it is built it gives all of
    them the first process's trainable variables; statistics such as those of batch normalisation stay their own. A
    gradient of an embedding is made dense. A variable that got no gradient in any process is left alone, and what is
    kept for it waits; one that got none in this process counts as zero, which a compiled step cannot do and refuses.

    XLA cannot call Python: ``model.compile(optimizer=..., jit_compile=False)``. Under ``mixed_float16`` wrap a
    ``LossScaleOptimizer`` and say ``auto_scale_loss=False``: then all processes skip the same steps, a step that is
    skipped leaves every residual as it was, and residuals follow the scale.

    Args:
        optimizer: a Keras optimizer.
        compressor: a registered name, a compressor, or a recipe of ``from_params``.
        process_group: group of ``torch.distributed``, over Gloo; None is the default group.
        name: name of this optimizer.
        variance_correction: multiply each step of an optimizer such as Adam by what the noise of the code makes it too
            short; it is measured now and then. Decay that is part of the step is multiplied, too. 4 bytes an element
            more, for the variables as they were before the step.
        options: ``bucket_mb`` (25), and those of ``compress_ddp`` but for ``scaler`` and ``lr_correction``.

    Raises:
        ConfigError: another backend of Keras than TensorFlow; a ``LossScaleOptimizer`` around this one. When it is
            built: a wrong option, variables that are not 16- or 32-bit floats, mixed precision without the above.
        GroupError: processes were given different options or models; raised when it is built.

    Example:
        >>> import keras, torch.distributed as dist, gradwire.tensorflow
        >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        >>> model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
        >>> optimizer = gradwire.tensorflow.DistributedOptimizer(keras.optimizers.SGD(0.1), compressor="topk")
        >>> model.compile(optimizer=optimizer, loss="mse", jit_compile=False)
        >>> data = keras.ops.ones((8, 64))
        >>> _ = model.fit(data, data, batch_size=4, verbose=0)
        >>> optimizer.state.metrics()["steps"]
        2
        >>> dist.destroy_process_group()
    """

    def __init__(
        self,
        optimizer: Any,
        compressor: Any = "bf16",
        *,
        process_group: dist.ProcessGroup | None = None,
        name: str | None = None,
        variance_correction: bool = False,
        **options: Any,
    ) -> None:
        backend = keras.backend.backend()
        allowed = "tensorflow; under torch use gradwire.compress_ddp, under jax gradwire.jax.compress"
        require(backend == "tensorflow", "Keras's backend", allowed, backend)
        keras_optimizer = isinstance(optimizer, keras.optimizers.Optimizer)
        require(keras_optimizer, "optimizer", "a Keras optimizer", type(optimizer).__name__)
        known = isinstance(variance_correction, bool)
        require(known, "variance_correction", "True or False", variance_correction)
        divides = not variance_correction or adaptive(optimizer) is not None or not of_keras(optimizer)
        allowed = "False with an optimizer that does not divide by a mean of squares"
        require(divides, "variance_correction", allowed, type(optimizer).__name__)
        averaged = variance_correction and bool(getattr(inner_of(optimizer), "use_ema", False))
        require(not averaged, "variance_correction", "False with use_ema, which averages the shorter steps", True)
        super().__init__(learning_rate=0.0, name=name)
        self.variance_correction = variance_correction
        self.inner_optimizer, self.compressor, self.options = optimizer, compressor, options
        self.process_group = process_group
        self.state: ArrayState | None = None
        scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        self._loss_scale = LossScale() if scaled else None

    @property
    def loss_scale_factor(self) -> float:
        """Return 1, because a scaled loss is scaled by the inner optimizer."""
        return 1.0

    @loss_scale_factor.setter
    def loss_scale_factor(self, value: object) -> None:
        # A LossScaleOptimizer sets it in what it is put around. It would decide on each process alone which steps to
        # skip, and then not all of them would come to the exchange.
        inside = hasattr(self, "inner_optimizer")
        allowed = "around a LossScaleOptimizer, not in one: DistributedOptimizer(LossScaleOptimizer(...)), and "
        require(not inside, "optimizer", f"{allowed}compile(auto_scale_loss=False)", "LossScaleOptimizer(...)")

    def build(self, variables: Sequence[Any]) -> None:
        """Set up the exchange with the other processes, and copy the first one's variables."""
        half = keras.config.dtype_policy().compute_dtype == "float16"
        allowed = "a LossScaleOptimizer under mixed_float16, with compile(auto_scale_loss=False)"
        require(self._loss_scale is not None or not half, "optimizer", allowed, type(self.inner_optimizer).__name__)
        self.inner_optimizer.build(variables)
        super().build(variables)
        specs = named(variables)
        # Built while a step is traced, it must still happen now.
        with tf.init_scope():
            self.state = ArrayState(
                specs,
                self.compressor,
                self.options,
                self.process_group,
                self._loss_scale,
                adaptive(self.inner_optimizer),
                corrected=self.variance_correction,
            )
            start = [torch.from_numpy(variable.numpy().copy()) for variable in variables]
            share_start(start, self.process_group)
            for variable, value in zip(variables, start, strict=True):
                variable.assign(value.numpy())

    @tf.autograph.experimental.do_not_convert
    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Average the gradients, and let the inner optimizer step."""
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        if self.state is None:
            self.build(variables)
            self.built = True
        indices = [self._get_variable_index(variable) for variable in variables]
        own = [None] * len(self._trainable_variables)
        for index, grad in zip(indices, grads, strict=True):
            own[index] = grad
        means = self._average(own)
        # Keras would warn of variables without a gradient, and refuse to step if there is no other.
        found = [
            (means[index], variable)
            for index, variable in zip(indices, variables, strict=True)
            if means[index] is not None
        ]
        before = [tf.identity(variable) for _, variable in found] if self.variance_correction else []
        self.inner_optimizer.apply([mean for mean, _ in found], [variable for _, variable in found])
        if before:
            self._lengthen([variable for _, variable in found], before)

    def _lengthen(self, variables: Sequence[Any], before: Sequence[Any]) -> None:
        """Multiply the change of each variable in this step."""
        assert self.state is not None
        state = self.state
        if tf.executing_eagerly():
            factor = tf.constant(state.factor, tf.float32)
        else:
            # A function of Python runs in the order of the step: after the exchange.
            factor = tf.py_function(lambda: state.factor, [], tf.float32)
            factor.set_shape(())
        for variable, was in zip(variables, before, strict=True):
            now = tf.convert_to_tensor(variable)
            variable.assign(was + tf.cast(factor, now.dtype) * (now - was))
            # The inner optimizer has done this, too, before its step became longer.
            constraint = getattr(variable, "constraint", None)
            if constraint is not None:
                variable.assign(constraint(variable))

    def _average(self, grads: Sequence[Any]) -> Sequence[Any]:
        """Average each gradient, None if no process has one; one call of Python serves all of them."""
        missing = [grad is None for grad in grads]
        pairs = zip(grads, self._trainable_variables, strict=True)
        dense = [tf.zeros(v.shape, v.dtype) if grad is None else tf.convert_to_tensor(grad) for grad, v in pairs]
        scale = [] if self._loss_scale is None else [tf.convert_to_tensor(self.inner_optimizer.dynamic_scale)]
        if tf.executing_eagerly():
            return self._exchange(missing, *dense, *scale)
        call = partial(self._exchange_compiled, missing)
        means: Sequence[Any] = tf.py_function(call, [*dense, *scale], [grad.dtype for grad in dense])
        for mean, grad in zip(means, dense, strict=True):
            mean.set_shape(grad.shape)
        return [None if gone else mean for mean, gone in zip(means, missing, strict=True)]

    def _exchange_compiled(self, missing: Sequence[bool], *grads: Any) -> list[Any]:
        """Exchange with zeros for missing gradients, which were determined when tracing."""
        means = self._exchange(missing, *grads)
        given = [
            variable.path
            for variable, mean, gone in zip(self._trainable_variables, means, missing, strict=True)
            if gone and mean is not None
        ]
        allowed = "given by all processes or by none in a compiled step; else compile(run_eagerly=True)"
        require(not given, "gradients", allowed, f"none of {given[:3]} in this process")
        return [grad if mean is None else mean for mean, grad in zip(means, grads, strict=False)]

    def _exchange(self, missing: Sequence[bool], *grads: Any) -> list[Any]:
        assert self.state is not None
        if self._loss_scale is not None:
            *grads, scale = grads  # type: ignore[assignment]
            self._loss_scale.now = float(scale)
        own = [
            None if gone else from_dlpack(tf.experimental.dlpack.to_dlpack(grad))
            for grad, gone in zip(grads, missing, strict=True)
        ]
        # A copy, because the next step overwrites the means, and TensorFlow wants its memory aligned.
        return [
            None if mean is None else tf.experimental.dlpack.from_dlpack(to_dlpack(mean.clone()))
            for mean in self.state.exchange_arrays(own)
        ]

    @property
    def variables(self) -> list[Any]:
        """Return its own variables and the inner optimizer's, which Keras saves."""
        return [*self._variables, *self.inner_optimizer.variables]

    @property
    def learning_rate(self) -> Any:
        """The inner optimizer's learning rate."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.inner_optimizer.learning_rate = value

    @property
    def iterations(self) -> Any:
        """The inner optimizer's number of iterations."""
        return self.inner_optimizer.iterations

    def scale_loss(self, loss: Any) -> Any:
        return self.inner_optimizer.scale_loss(loss)

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        self.inner_optimizer.finalize_variable_values(var_list)

    def get_config(self) -> dict[str, Any]:
        """Return the configuration for ``from_config``; a process group is not saved."""
        compressor = self.compressor.to_config() if isinstance(self.compressor, Compressor) else self.compressor
        inner = keras.saving.serialize_keras_object(self.inner_optimizer)
        own = {"variance_correction": True} if self.variance_correction else {}
        return {"name": self.name, "optimizer": inner, "compressor": compressor, **own, **self.options}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Any:
        """Make an optimizer from the configuration of ``get_config``."""
        rest = dict(config)
        inner = keras.saving.deserialize_keras_object(rest.pop("optimizer"), custom_objects=custom_objects)
        compressor = rest.pop("compressor")
        if isinstance(compressor, Mapping):
            compressor = registry.from_config("compressors", compressor)
        return cls(inner, compressor, **rest)


def inner_of(optimizer: Any) -> Any:
    """The optimizer that makes the step."""
    return optimizer.inner_optimizer if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) else optimizer


def of_keras(optimizer: Any) -> bool:
    """Return whether the inner optimizer is one of Keras's own, whose divisor is known."""
    return type(inner_of(optimizer)).__module__.startswith("keras")


def adaptive(optimizer: Any) -> str | None:
    """The name of a Keras optimizer that divides by a mean of squares."""
    inner = inner_of(optimizer)
    names = ("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Lamb", "Nadam", "RMSprop")
    classes = tuple(getattr(keras.optimizers, name) for name in names if hasattr(keras.optimizers, name))
    return type(inner).__name__ if isinstance(inner, classes) else None


def named(variables: Sequence[Any]) -> dict[str, Spec]:
    """Map the variables to their paths; those of the same path are numbered."""
    specs: dict[str, Spec] = {}
    for variable in variables:
        same = sum(name.partition("#")[0] == variable.path for name in specs)
        specs[f"{variable.path}#{same}" if same else variable.path] = Spec(tuple(variable.shape), str(variable.dtype))
    return specs
