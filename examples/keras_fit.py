"""Keras on TensorFlow with gradients of 4 bits an element.

    torchrun --standalone --nproc-per-node 2 examples/keras_fit.py

Each process has its own TensorFlow; they meet in a group of torch.distributed.
"""

# Before TensorFlow, which otherwise clashes with Triton.
try:
    import gradwire.tensorflow
except ImportError as error:
    raise SystemExit(str(error)) from None

import keras
import numpy as np
import torch
import torch.distributed as dist


def main() -> None:
    """Imitate a fixed linear map."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    layers = [keras.layers.Dense(256, "tanh"), keras.layers.Dense(8)]
    model = keras.Sequential([keras.Input((64,)), *layers])
    optimizer = gradwire.tensorflow.DistributedOptimizer(keras.optimizers.Adam(3e-3), compressor="qsgd", bits=4)
    model.compile(optimizer=optimizer, loss="mse", jit_compile=False)
    x = np.random.default_rng(rank).standard_normal((640, 64), np.float32)
    teacher = np.linspace(-1, 1, 512, dtype=np.float32).reshape(64, 8)
    model.fit(x, x @ teacher, batch_size=32, epochs=2, verbose=0)
    if rank == 0:
        metrics = optimizer.state.metrics()
        print(f"steps {metrics['steps']} ratio {metrics['ratio']:.1f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
