"""MXNet's quantisers in numpy: one rounding to float32 for each operation, as its operators do."""

import numpy as np
import torch


class Simulated:
    """One sender: adds the gradient to its residual and says what arrives."""

    def __init__(self, kind, threshold, shape):
        self.kind, self.threshold = kind, np.float32(threshold)
        self.residual = np.zeros(shape, np.float32)

    def send(self, grad):
        self.residual += np.asarray(grad, np.float32)
        decoded = self._two_bits() if self.kind == "2bit" else self._one_bit()
        self.residual -= decoded
        return decoded

    def _two_bits(self):
        t = self.threshold
        return np.where(self.residual >= t, t, np.where(self.residual <= -t, -t, np.float32(0)))

    def _one_bit(self):
        return np.where(self.residual > self.threshold, np.float32(1), np.float32(-1))


def summed(senders, grads):
    """Left to right, in float32."""
    total = np.zeros_like(senders[0].residual)
    for sender, grad in zip(senders, grads, strict=True):
        total += sender.send(grad)
    return torch.from_numpy(total)
