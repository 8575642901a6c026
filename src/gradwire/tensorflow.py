"""Compressed gradients for Keras 3 and TensorFlow 2; ``pip install 'gradwire[tensorflow]'``."""

from gradwire.frontends.adapters.tensorflow import DistributedOptimizer

__all__ = ["DistributedOptimizer"]
