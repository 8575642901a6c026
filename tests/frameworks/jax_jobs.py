"""Work of the ranks in the JAX tests; JAX is imported in them alone."""

from __future__ import annotations

import copy
import io
import logging
from typing import Any

import numpy as np
import torch

from tests.frameworks.array_jobs import METHODS, OPTIONS, SHAPES, STEPS, Means, Said, compared, gradients
from tests.integrations.jobs import answers


def everything(rank: int) -> dict[str, Any]:
    return {
        "compared": compared(rank, lambda method: means(rank, method)),
        "trained": trained(rank),
        "refused": refused(),
        "bfloat16": bfloat16(rank),
        "accumulated": accumulated(rank),
        "corrected": corrected(rank),
        "mixed": mixed(rank),
        "shared": shared(rank),
    }


def means(rank: int, method: str) -> tuple[Means, dict[str, Any]]:
    import jax
    import jax.numpy as jnp

    import gradwire.jax

    params = {name: jnp.zeros(shape) for name, shape in SHAPES.items()}
    wire = gradwire.jax.compress(params, method, **OPTIONS, **METHODS[method])
    update = jax.jit(wire.update)
    given = [jax.tree.map(jnp.asarray, gradients(step, rank)) for step in range(STEPS)]
    told = [jax.tree.map(np.array, update(grads, wire.init(params))[0]) for grads in given]
    for step, grads in enumerate(given):
        assert all(np.array_equal(grads[name], grad) for name, grad in gradients(step, rank).items()), "written into"
    return told, wire.state.metrics()


def trained(rank: int) -> dict[str, Any]:
    """Forty steps of Adam in compiled loops of twenty, unbroken and resumed halfway; workers begin differently."""
    import jax
    import jax.numpy as jnp
    import optax

    import gradwire.jax

    teacher = jnp.sin(jnp.arange(320.0)).reshape(32, 10)
    fresh = {"in": jax.random.normal(jax.random.key(rank), (32, 64)) / 6, "out": jnp.zeros((64, 10))}
    fresh = gradwire.jax.broadcast(fresh)

    def loss(params: Any, x: Any) -> Any:
        return jnp.mean((jnp.tanh(x @ params["in"]) @ params["out"] - x @ teacher) ** 2)

    def training(options: dict[str, Any]) -> tuple[Any, Any, Any]:
        wire = gradwire.jax.compress(fresh, "topk", **options)
        optimizer = optax.chain(wire, optax.adam(3e-2))

        @jax.jit
        def loop(params: Any, kept: Any, first: Any) -> Any:
            def step(carry: Any, index: Any) -> Any:
                params, kept = carry
                x = jax.random.normal(jax.random.key(1000 * index + rank), (64, 32))
                value, grads = jax.value_and_grad(loss)(params, x)
                updates, kept = optimizer.update(grads, kept, params)
                return (optax.apply_updates(params, updates), kept), value

            return jax.lax.scan(step, (params, kept), first + jnp.arange(20))

        return wire.state, optimizer.init(fresh), loop

    options = {"ratio": 0.05, "min_numel": 64}
    state, kept, loop = training(options)
    (half, half_kept), losses = loop(fresh, kept, 0)
    jax.block_until_ready(half)
    file = io.BytesIO()
    torch.save(state.state_dict(), file)
    (whole, _), later = loop(half, half_kept, 20)
    again, _, resumed_loop = training(options)
    file.seek(0)
    again.load_state_dict(torch.load(file, weights_only=True))
    (resumed, _), _ = resumed_loop(half, half_kept, 20)
    _, _, without_loop = training(options)
    (without, _), _ = without_loop(half, half_kept, 20)
    end, metrics = bits_of(whole), state.metrics()
    return {
        "start": bits_of(fresh),
        "end": end,
        "resumed": bits_of(resumed) == end,
        "without": bits_of(without) == end,
        "losses": [float(losses[0]), float(later[-1])],
        "metrics": metrics,
    }


def shared(rank: int) -> list[Any]:
    """Parameters as files have them, in arrays of NumPy and numbers."""
    import gradwire.jax

    params = {"frozen": np.full((2, 2), rank, np.float32), "steps": 3 + rank, "scale": 0.5 + rank}
    return [np.asarray(leaf).tolist() for leaf in gradwire.jax.broadcast(params).values()]


def bits_of(params: Any) -> bytes:
    return b"".join(np.asarray(params[name]).tobytes() for name in sorted(params))


def bfloat16(rank: int) -> list[Any]:
    """Gradients of 16 bits go out and come back as such; the mean of 1 and 2 on two ranks."""
    import jax.numpy as jnp

    import gradwire.jax

    params = {"w": jnp.zeros((64, 64), jnp.bfloat16)}
    wire = gradwire.jax.compress(params, "topk", ratio=1.0)
    mean = wire.update({"w": jnp.full((64, 64), 1.0 + rank, jnp.bfloat16)}, wire.init(params))[0]["w"]
    return [str(mean.dtype), sorted(set(np.asarray(mean, np.float32).ravel().tolist()))]


def accumulated(rank: int) -> dict[str, Any]:
    """Four gradients, two for a step, in a compiled update: exchanged before they are added up, and after."""
    import jax
    import jax.numpy as jnp
    import optax

    import gradwire.jax

    params, told = {"w": jnp.zeros((64, 64))}, {}
    for way in ("before", "inside"):
        wire = gradwire.jax.compress(params, "topk", ratio=0.05)
        if way == "before":
            optimizer = optax.chain(wire, optax.MultiSteps(optax.sgd(1.0), 2).gradient_transformation())
        else:
            optimizer = optax.MultiSteps(optax.chain(wire, optax.sgd(1.0)), 2).gradient_transformation()
        update, kept, moved, given, said = jax.jit(optimizer.update), optimizer.init(params), 0.0, 0.0, Said()
        logging.getLogger("gradwire").addHandler(said)
        for step in range(4):
            grad = jax.random.normal(jax.random.key(10 * step + rank), (64, 64))
            updates, kept = update({"w": grad}, kept, params)
            moved, given = moved - np.array(updates["w"]), given + np.array(grad)
        logging.getLogger("gradwire").removeHandler(said)
        (own,) = wire.state.state_dict()["ranks"].values()
        told[way] = {
            "moved": moved,
            "given": given,
            "waits": own["worker"]["residual"]["w"].view(64, 64).numpy(),
            "said": said.lines,
        }
    return told


def corrected(rank: int) -> list[tuple[float, float, bytes]]:
    """The factor of three compiled updates, by how much longer they are than without it, and their bits."""
    import jax
    import jax.numpy as jnp
    import optax

    import gradwire.jax

    params = {"w": jnp.zeros((64, 64))}
    wires = [gradwire.jax.compress(params, "qsgd", bits=2, block=64) for _ in range(2)]
    chains = [optax.chain(wires[0], optax.adam(1e-2)), gradwire.jax.corrected(wires[1], optax.adam(1e-2))]
    kept, told = [chain.init(params) for chain in chains], []
    for step in range(3):
        grads, made = {"w": jax.random.normal(jax.random.key(10 * step + rank), (64, 64))}, []
        for which, chain in enumerate(chains):
            updates, kept[which] = jax.jit(chain.update)(grads, kept[which], params)
            made.append(np.array(updates["w"]))
        moved = made[0] != 0
        told.append((wires[1].state.factor, float(np.median(made[1][moved] / made[0][moved])), made[1].tobytes()))
    return told


def mixed(rank: int) -> dict[str, str]:
    """One process corrects and the other does not."""
    import jax.numpy as jnp
    import optax

    import gradwire.jax

    params = {"w": jnp.zeros((64, 64))}
    wire = gradwire.jax.compress(params, "qsgd", bits=2, timeout=20.0)
    chain = gradwire.jax.corrected(wire, optax.adam(1e-2)) if rank == 0 else optax.chain(wire, optax.adam(1e-2))
    return answers({"mixed": lambda: chain.update({"w": jnp.ones((64, 64))}, chain.init(params), params)})


def refused() -> dict[str, str]:
    import jax.numpy as jnp
    import optax

    import gradwire.jax

    params = {"w": jnp.zeros((64, 64))}
    wire = gradwire.jax.compress(params, "topk")
    return answers(
        {
            "shape": lambda: wire.update({"w": jnp.zeros((64, 65))}, wire.init(params)),
            "name": lambda: wire.update({"v": jnp.zeros((64, 64))}, wire.init(params)),
            "dtype": lambda: gradwire.jax.compress({"w": jnp.zeros((64, 64), jnp.int32)}),
            "typo": lambda: gradwire.jax.compress(params, "topk", ration=0.1),
            "empty": lambda: gradwire.jax.compress({}),
            "bucket": lambda: gradwire.jax.compress(params, bucket_mb=0),
            "residual": lambda: gradwire.jax.corrected(gradwire.jax.compress(params, "topk"), optax.adam(1e-3)),
            "copied": lambda: copy.deepcopy(wire),
            "wire": lambda: gradwire.jax.corrected(optax.adam(1e-3), optax.adam(1e-3)),
        }
    )
