"""Compressed gradients for JAX and optax; ``pip install 'gradwire[jax]'``."""

from gradwire.integrations.jax import GradwireTransformation, broadcast, compress

__all__ = ["GradwireTransformation", "broadcast", "compress"]
