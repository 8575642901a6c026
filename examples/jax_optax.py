"""JAX and optax with gradients of 4 bits an element, inside one compiled step.

    torchrun --standalone --nproc-per-node 2 examples/jax_optax.py

Each process has its own JAX; they meet in a group of torch.distributed.
"""

import torch
import torch.distributed as dist

try:
    import jax
    import jax.numpy as jnp
    import optax

    import gradwire.jax
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}: pip install '.[jax]'") from None


STEPS = 40

Params = dict[str, jax.Array]


def loss(params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    """The mean squared error of a small network."""
    return jnp.mean((jnp.tanh(x @ params["in"]) @ params["out"] - y) ** 2)


def main() -> None:
    """Imitate a fixed linear map."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    params = {"in": jax.random.normal(jax.random.key(rank), (64, 256)) / 8, "out": jnp.zeros((256, 8))}
    params = gradwire.jax.broadcast(params)
    wire = gradwire.jax.compress(params, "qsgd", bits=4)
    optimizer = optax.chain(wire, optax.adam(3e-3))
    kept = optimizer.init(params)

    @jax.jit
    def step(params: Params, kept: optax.OptState, x: jax.Array, y: jax.Array) -> tuple[Params, optax.OptState]:
        grads = jax.grad(loss)(params, x, y)
        updates, kept = optimizer.update(grads, kept, params)
        return optax.apply_updates(params, updates), kept

    teacher = jnp.linspace(-1, 1, 512).reshape(64, 8)
    for number in range(STEPS):
        x = jax.random.normal(jax.random.key(2 * number + rank), (32, 64))
        params, kept = step(params, kept, x, x @ teacher)
    jax.block_until_ready(params)
    if rank == 0:
        metrics = wire.state.metrics()
        print(f"steps {metrics['steps']} ratio {metrics['ratio']:.1f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
