"""Integration of JAX: gradients are averaged inside a compiled update, as the first link of an optax chain.

Invariants:
    * The callback is an ordered effect of the compiled program, which is neither dropped nor repeated nor moved past
      another. The residuals are in the state of the transformation object; optax's own state only counts.
    * The processes form a group of ``torch.distributed`` over Gloo, whatever devices JAX uses: gradients come to the
      host.

Why:
    A transformation of optax is a pure function, and an exchange is not.

Failure modes:
    A transformation that discards updates, as ``optax.MultiSteps`` does with those of its inner optimizer, discards
    what was sent. It shows as an update number that comes twice, and a warning says so.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from gradwire._extras import needs
from gradwire.errors import ConfigError, Verbatim, require
from gradwire.frontends.adapters._arrays import ArrayState, Spec, share_arrays
from gradwire.notices import log

with needs("jax"):
    import jax
    import optax
    from jax.experimental import io_callback

__all__ = ["GradwireTransformation", "broadcast", "compress", "corrected"]


class Counted(NamedTuple):
    """The state that optax keeps: the number of updates, an int32 scalar."""

    updates: Any


class GradwireTransformation(optax.GradientTransformation):
    """An optax transformation with the state of its exchange. Made by ``compress``."""

    state: ArrayState


def compress(
    params: Any, compressor: Any = "bf16", *, process_group: dist.ProcessGroup | None = None, **options: Any
) -> GradwireTransformation:
    """Replace gradients by their mean over the processes, exchanged compressed. All processes must call it.

    Args:
        params: the tree of parameters; only its names, shapes and dtypes are used.
        compressor: a registered name, a compressor, or a recipe of ``from_params``.
        process_group: group of ``torch.distributed``, over Gloo; None is the default group.
        options: ``bucket_mb`` (25), and those of ``compress_ddp`` but for ``scaler`` and ``lr_correction``.

    Returns:
        A ``GradientTransformation``; ``.state`` has ``metrics()``, ``state_dict()`` and the rest.

    Raises:
        ConfigError: a wrong option, or a parameter that is not a 16- or 32-bit float. From ``update``: another tree.
        GroupError: processes were given different options or parameters.

    Example:
        >>> import jax, jax.numpy as jnp, optax, torch.distributed as dist, gradwire.jax
        >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        >>> params = {"w": jnp.zeros((64, 64)), "b": jnp.zeros(64)}
        >>> wire = gradwire.jax.compress(params, "topk", ratio=0.01)
        >>> optimizer = optax.chain(wire, optax.adam(1e-3))
        >>> grads = jax.tree.map(jnp.ones_like, params)
        >>> updates, _ = jax.jit(optimizer.update)(grads, optimizer.init(params), params)
        >>> wire.state.metrics()["steps"]
        1
        >>> dist.destroy_process_group()
    """
    specs = specs_of(params)
    state, last = ArrayState(specs, compressor, options, process_group), [-1]

    def exchange(number: Any, *grads: Any) -> tuple[np.ndarray, ...]:
        last[:] = [warned_if_repeated(int(number), last[0])]
        means = state.exchange_arrays([from_dlpack(grad) for grad in grads])
        return tuple(as_numpy(mean) for mean in means if mean is not None)  # JAX gives zeros, never nothing.

    def update(updates: Any, counted: Counted, _: Any = None) -> tuple[Any, Counted]:
        leaves, tree = jax.tree.flatten(updates)
        check_tree(specs, specs_of(updates))
        shapes = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves)
        means = io_callback(exchange, shapes, counted.updates, *leaves, ordered=True)
        return jax.tree.unflatten(tree, means), Counted(counted.updates + 1)

    transformation = GradwireTransformation(lambda _: Counted(jax.numpy.zeros((), jax.numpy.int32)), update)
    transformation.state = state
    return transformation


def corrected(wire: GradwireTransformation, optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """Make ``optax.chain(wire, optimizer)`` whose steps are as long as without the noise of the code.

    update = factor optimizer(mean gradient),  factor = |what arrives| / |the exact mean|

    For an optimizer that divides by a mean of squares, as Adam does, and a code that is right on average: its noise
    makes such steps shorter by this factor, which is measured now and then, so a learning rate that was found without
    compression can be kept. Decay that is part of the optimizer is multiplied, too. All processes must call it before
    the first update.

    Args:
        wire: made by ``compress``; it must not be put into another chain, too.
        optimizer: transformation that makes steps of gradients, with its learning rate.

    Raises:
        ConfigError: a method whose error is not noise, or what ``compress`` did not make.

    Example:
        >>> import jax, jax.numpy as jnp, optax, torch.distributed as dist, gradwire.jax
        >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        >>> params = {"w": jnp.zeros((64, 64))}
        >>> wire = gradwire.jax.compress(params, "eden", bits=1)
        >>> optimizer = gradwire.jax.corrected(wire, optax.adam(1e-3))
        >>> grads = {"w": jax.random.normal(jax.random.key(0), (64, 64))}
        >>> updates, _ = jax.jit(optimizer.update)(grads, optimizer.init(params), params)
        >>> wire.state.factor > 1.1
        True
        >>> dist.destroy_process_group()
    """
    ours = isinstance(wire, GradwireTransformation)
    require(ours, "wire", "what gradwire.jax.compress makes", Verbatim(type(wire).__name__))
    state, chained = wire.state, optax.chain(wire, optimizer)
    state.measure_noise()

    def update(updates: Any, kept: Any, params: Any = None, **further: Any) -> tuple[Any, Any]:
        steps, kept = chained.update(updates, kept, params, **further)
        # Ordered callbacks: it is asked for after the exchange of this update.
        factor = io_callback(lambda: np.float32(state.factor), jax.ShapeDtypeStruct((), np.float32), ordered=True)
        return jax.tree.map(lambda step: step * factor.astype(step.dtype), steps), kept

    return optax.GradientTransformationExtraArgs(chained.init, update)


def broadcast(params: Any, process_group: dist.ProcessGroup | None = None) -> Any:
    """Copy the first process's parameters to all. All processes must call it, with the same tree.

    Args:
        params: a tree of arrays, of JAX or of NumPy, or numbers.
        process_group: group of ``torch.distributed``, over Gloo; None is the default group.
    """
    leaves, tree = jax.tree.flatten(jax.tree.map(jax.numpy.asarray, params))
    arrays = share_arrays(leaves, process_group)
    shared = [jax.device_put(array, leaf.sharding) for array, leaf in zip(arrays, leaves, strict=True)]
    return jax.tree.unflatten(tree, shared)


def warned_if_repeated(number: int, last: int) -> int:
    """The number of this update; it warns if that is the last one's, whose result was thrown away then."""
    if number == last:
        log.warning(
            "what was exchanged in update %d was thrown away, and the optimizer was asked for it again: "
            "gradients are lost. Put gradwire before optax.MultiSteps, not inside: optax.chain(wire, "
            "optax.MultiSteps(...).gradient_transformation())",
            number,
        )
    return number


def specs_of(tree: Any) -> dict[str, Spec]:
    """The shapes and dtypes of a tree's leaves by their path."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): Spec(tuple(leaf.shape), str(leaf.dtype))
        for path, leaf in leaves
    }


def check_tree(made_for: dict[str, Spec], given: dict[str, Spec]) -> None:
    """Refuse gradients of other parameters, while the update is traced.

    Raises:
        ConfigError: a gradient differs from its parameter; the message names the first.
    """
    for name in [*made_for, *given]:
        if made_for.get(name) != given.get(name):
            raise ConfigError(
                f"gradient of {name} must be {made_for.get(name)}, as when compress was called, got {given.get(name)}"
            )


def as_numpy(tensor: Tensor) -> np.ndarray:
    """View the tensor's memory as NumPy; bfloat16, which torch does not hand over, by its bits."""
    if tensor.dtype == torch.bfloat16:
        return cast(np.ndarray, tensor.view(torch.int16).numpy().view(jax.numpy.bfloat16))
    return tensor.numpy()
