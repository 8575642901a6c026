"""Compressed gradients for JAX and optax; ``pip install 'gradwire[jax]'``."""

from gradwire.frontends.adapters.jax import GradwireTransformation, broadcast, compress, corrected

__all__ = ["GradwireTransformation", "broadcast", "compress", "corrected"]
