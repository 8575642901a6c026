"""Integration of Keras 3 on TensorFlow 2: an optimizer around an optimizer.

Invariants:
    * Gradients are averaged before the inner optimizer sees them, in a Python function inside Keras's compiled step.
      They come through DLPack without a copy and go back as one.
    * The processes form a group of ``torch.distributed`` over Gloo.
    * Keras gives a variable another path when a model is loaded, cloned or made a second time, and recognises it by its
      place among the model's variables; so does a saved state.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from types import FrameType
from typing import Any

import torch.distributed as dist
from torch.utils.dlpack import from_dlpack, to_dlpack  # type: ignore[attr-defined]

from gradwire import registry
from gradwire._extras import needs
from gradwire.compat import MethodChoice
from gradwire.compressors.base import Compressor
from gradwire.engine.checkpoint import OnResize
from gradwire.engine.strategies.base import Strategy
from gradwire.errors import require
from gradwire.frontends.adapters._arrays import ArrayState, Spec, share_arrays
from gradwire.memory.base import Memory
from gradwire.notices import log

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


class KerasState(ArrayState):
    """The state of an exchange of gradients of Keras, which finds what was saved by the places of the variables."""

    def state_dict(self) -> dict[str, Any]:
        """Return what ``ArrayState`` does, and the variables in their order."""
        return {**super().state_dict(), "variables": json.dumps(list(self.sizes.items()))}

    def fitted(self, state: Mapping[str, Any], on_resize: OnResize) -> Mapping[str, Any]:
        """Rename the variables of a state to those of the same places, if they have other paths here."""
        # A state without them was saved when two variables of one path were told apart by another sign.
        before = dict(json.loads(state.get("variables", "[]"))) or {
            name.replace(AGAIN, "#"): size for name, size in self.sizes.items()
        }
        if before == self.sizes or list(before.values()) != list(self.sizes.values()) or "ranks" not in state:
            return state
        names = dict(zip(before, self.sizes, strict=True))
        return {**state, "ranks": {rank: renamed(kept, names) for rank, kept in state["ranks"].items()}}


@keras.saving.register_keras_serializable(package="gradwire")
class DistributedOptimizer(keras.optimizers.Optimizer):
    """An optimizer that averages gradients over the processes, compressed, and hands them to another Keras optimizer.

    All processes must make one, with the same arguments, and train the same model. When it is built, which ``fit`` and
    ``load_model`` do, it gives all of them the first process's weights, frozen layers and statistics among them;
    statistics such as those of batch normalisation are their own from then on. In a loop of your own call
    ``optimizer.build(model.weights)`` before the first step. A gradient of an embedding is made dense. A variable that
    got no gradient in any process is left alone, and what is kept for it waits; one that got none in this process
    counts as zero, which a compiled step cannot do and refuses.

    XLA cannot call Python: ``model.compile(optimizer=..., jit_compile=False)``. Under ``mixed_float16`` wrap a
    ``LossScaleOptimizer``: then all processes skip the same steps, a step that is skipped leaves every residual as it
    was, and residuals follow the scale.

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
            built: a wrong option, variables that are not 16- or 32-bit floats, mixed precision without the above. In a
            step: XLA compiles it, or it trains other variables than those that it was built for.
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

    def __new__(cls, optimizer: Any = None, *_: Any, **__: Any) -> Any:
        scaled = cls is DistributedOptimizer and isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        return super().__new__(ScaledDistributedOptimizer if scaled else cls)

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
        keras.optimizers.Optimizer.__init__(self, learning_rate=0.0, name=name)
        self.variance_correction = variance_correction
        self.inner_optimizer, self.compressor, self.options = optimizer, compressor, options
        self.process_group = process_group
        self.state: KerasState | None = None
        self._names: tuple[str, ...] = ()
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
        allowed = "around a LossScaleOptimizer, not in one: DistributedOptimizer(LossScaleOptimizer(...))"
        require(not inside, "optimizer", allowed, "LossScaleOptimizer(...)")

    def build(self, variables: Sequence[Any]) -> None:
        """Set up the exchange with the other processes, and copy the first one's variables. All must call it.

        Args:
            variables: a model's ``weights``; those that are not trained are only copied.
        """
        self._prepare([variable for variable in variables if variable.trainable])
        self._meet([variable for variable in variables if not variable.trainable])

    def _prepare(self, trained: Sequence[Any]) -> None:
        """Make the inner optimizer's variables on the first call, and compare on further ones."""
        if self.built:
            known = self._trainable_variables_indices
            strange = [path_of(variable) for variable in trained if self._var_key(variable) not in known]
            allowed = "those that the optimizer was built for: make another one where layers are frozen or unfrozen"
            require(not strange, "variables", allowed, strange[:3])
            return
        half = keras.config.dtype_policy().compute_dtype == "float16"
        allowed = "a LossScaleOptimizer under mixed_float16"
        require(self._loss_scale is not None or not half, "optimizer", allowed, type(self.inner_optimizer).__name__)
        self.inner_optimizer.build(trained)
        keras.optimizers.Optimizer.build(self, trained)

    def _meet(self, untrained: Sequence[Any] = (), step: bool = False) -> KerasState | None:
        """Set up the exchange unless that was done, and copy the first process's variables.

        Args:
            untrained: variables to be copied, besides those of the model that makes the call.
            step: true: the call is a part of a step, whose gradients were computed before.

        Returns:
            The exchange's state; None while TensorFlow traces a step that makes its variables, which have no values
            yet. TensorFlow traces such a step again when they have, and runs that.
        """
        trained, eager = self._trainable_variables, tf.executing_eagerly()
        # Built while a step is traced, it must still happen now.
        with tf.init_scope():
            if self.state is not None or not all(map(is_initialized, trained)):
                return self.state
            model = model_in_call(self)
            ours = {id(variable) for variable in trained}
            others = [*untrained, *(() if model is None else model.weights)]
            others = [each for each in {id(each): each for each in others}.values() if id(each) not in ours]
            specs = named(trained)
            if len(self._names) == len(specs):
                specs = dict(zip(self._names, specs.values(), strict=True))
            self.state = KerasState(
                specs,
                self.compressor,
                self.options,
                self.process_group,
                self._loss_scale,
                adaptive(self.inner_optimizer),
                corrected=self.variance_correction,
                untrained=[spec_of(variable) for variable in others],
            )
            differs = copy_start([*trained, *others], self.process_group)
        late = ["its gradient of this step is of its own"] if eager else []
        late += ["those that are not trained are still its own"] if model is None else []
        if step and differs and late:
            log.warning(
                "this process began with other weights than the first, and %s: call optimizer.build(model.weights) "
                "before the first step",
                ", and ".join(late),
            )
        return self.state

    @tf.autograph.experimental.do_not_convert
    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Average the gradients, and let the inner optimizer step."""
        allowed = "False in model.compile or tf.function, because XLA cannot call Python"
        require(tf.executing_eagerly() or not in_xla(), "jit_compile", allowed, True)
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        self._prepare(variables)
        self._meet(step=True)
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
        if tf.executing_eagerly():
            factor = tf.constant(self._factor(), tf.float32)
        else:
            # A function of Python runs in the order of the step: after the exchange.
            factor = tf.py_function(self._factor, [], tf.float32)
            factor.set_shape(())
        for variable, was in zip(variables, before, strict=True):
            now = tf.convert_to_tensor(variable)
            variable.assign(was + tf.cast(factor, now.dtype) * (now - was))
            # The inner optimizer has done this, too, before its step became longer.
            constraint = getattr(variable, "constraint", None)
            if constraint is not None:
                variable.assign(constraint(variable))

    def _factor(self) -> float:
        assert self.state is not None
        return self.state.factor

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
            path_of(variable)
            for variable, mean, gone in zip(self._trainable_variables, means, missing, strict=True)
            if gone and mean is not None
        ]
        allowed = "given by all processes or by none in a compiled step; else compile(run_eagerly=True)"
        require(not given, "gradients", allowed, f"none of {given[:3]} in this process")
        return [grad if mean is None else mean for mean, grad in zip(means, grads, strict=False)]

    def _exchange(self, missing: Sequence[bool], *grads: Any) -> list[Any]:
        state = self._meet()
        assert state is not None
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
            for mean in state.exchange_arrays(own)
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
        """Return the configuration for ``from_config``; a process group and a schedule are not saved."""
        inner = keras.saving.serialize_keras_object(self.inner_optimizer)
        own = {"variance_correction": True} if self.variance_correction else {}
        names = {} if self.state is None else {"names": list(self.state.sizes)}
        compressor, options = plain(self.compressor), plain(self.options)
        return {"name": self.name, "optimizer": inner, "compressor": compressor, **own, **names, **options}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Any:
        """Make an optimizer from the configuration of ``get_config``.

        Raises:
            ConfigError: the optimizer has a schedule.
        """
        rest = dict(config)
        inner = keras.saving.deserialize_keras_object(rest.pop("optimizer"), custom_objects=custom_objects)
        compressor, names = rest.pop("compressor"), rest.pop("names", ())
        if isinstance(compressor, Mapping):
            # One that was saved before other objects were has no kind.
            compressor = rebuilt({"gradwire": "compressors", **compressor})
        rest = {name: rebuilt(value) for name, value in rest.items()}
        allowed = "left out, because functions are not saved: load with compile=False, and compile with a new optimizer"
        require(not rest.get("schedule"), "schedule of a saved optimizer", allowed, rest.get("schedule"))
        made = (DistributedOptimizer if cls is ScaledDistributedOptimizer else cls)(inner, compressor, **rest)
        # Patterns and random streams go by the names with which the run began.
        made._names = tuple(names)
        return made


@keras.saving.register_keras_serializable(package="gradwire")
class ScaledDistributedOptimizer(DistributedOptimizer, keras.optimizers.LossScaleOptimizer):
    """A ``DistributedOptimizer`` around a ``LossScaleOptimizer``, which to Keras is one, too.

    Else ``compile`` would put another around it under ``mixed_float16``, which ``auto_scale_loss=False`` prevents, and
    ``load_model``, which does not know of that, would in any case.
    """


KINDS: dict[type[Any], str] = {Compressor: "compressors", Memory: "memory", Strategy: "strategies"}


def plain(value: Any) -> Any:
    """Convert objects of gradwire, also those within mappings, to their configuration, and functions to their names."""
    if isinstance(value, MethodChoice):
        return {"gradwire": "recipe", **{name: plain(part) for name, part in vars(value).items()}}
    if isinstance(value, Mapping):
        return {name: plain(part) for name, part in value.items()}
    kind = next((name for base, name in KINDS.items() if isinstance(value, base)), None)
    if kind is None:
        return repr(value) if inspect.isfunction(value) else value
    return {"gradwire": kind, **registry.to_config(value)}


def rebuilt(value: Any) -> Any:
    """Make what ``plain`` was given."""
    if not isinstance(value, Mapping):
        return value
    rest = dict(value)
    kind = rest.pop("gradwire", "recipe")
    # The word that files had for strategies before.
    kind = "strategies" if kind == "comm" else kind
    if kind != "recipe":
        return registry.from_config(kind, rest)
    parts = {name: rebuilt(part) for name, part in rest.items()}
    return MethodChoice(**parts) if "gradwire" in value else parts


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


AGAIN = "~"
"""The sign before the number of a variable whose path another one has, too."""


def named(variables: Sequence[Any]) -> dict[str, Spec]:
    """Map the variables to their paths; those of the same path are numbered."""
    specs: dict[str, Spec] = {}
    for variable in variables:
        path = path_of(variable)
        same = sum(name.partition(AGAIN)[0] == path for name in specs)
        specs[f"{path}{AGAIN}{same}" if same else path] = spec_of(variable)
    return specs


def path_of(variable: Any) -> str:
    """The path of a variable of Keras, or the name of TensorFlow's own."""
    return str(getattr(variable, "path", variable.name))


def spec_of(variable: Any) -> Spec:
    return Spec(tuple(variable.shape), keras.backend.standardize_dtype(variable.dtype))


def renamed(kept: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The tensors that a rank has kept, with other names of the parameters."""

    def named_anew(entries: Mapping[str, Any]) -> dict[str, Any]:
        return {names.get(name, name): entry for name, entry in entries.items()}

    worker = {buffer: named_anew(tensors) for buffer, tensors in kept.get("worker", {}).items()}
    others = {part: named_anew(kept[part]) for part in ("states", "sessions", "owned") if part in kept}
    return {**kept, "worker": worker, **others}


def is_initialized(variable: Any) -> bool:
    """Return whether a variable has a value; one that is made while a step is traced has none at first."""
    inner = variable.value if isinstance(variable, keras.Variable) else variable
    return bool(inner.is_initialized())


def copy_start(variables: Sequence[Any], group: dist.ProcessGroup | None) -> bool:
    """Give all processes the first one's values; return whether this one had others."""
    own, differs = [variable.numpy() for variable in variables], False
    for variable, before, now in zip(variables, own, share_arrays(own, group), strict=True):
        if before.tobytes() != now.tobytes():
            variable.assign(now)
            differs = True
    return differs


def model_in_call(optimizer: Any) -> Any:
    """The Keras model that has this optimizer and is making the present call, as ``fit`` does; None if none is.

    Keras tells an optimizer nothing of its model but what is trained.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, keras.Model) and any(each is optimizer for each in vars(caller).values()):
            return caller
        frame = frame.f_back
    return None


def in_xla() -> bool:
    """Return whether XLA is to compile what is traced now."""
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        context = graph._get_control_flow_context()
        while context is not None:
            if context.IsXLAContext():
                return True
            context = context.outer_context
        graph = getattr(graph, "outer_graph", None)
    return False
