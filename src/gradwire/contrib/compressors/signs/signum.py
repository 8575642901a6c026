"""Signs of a momentum, and the vote of the majority."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gradwire.compressors import capabilities
from gradwire.compressors.signs.votes import SignCode
from gradwire.contrib.compressors.signs import ops
from gradwire.vocabulary import Key, Payload, State

__all__ = ["Signum"]


@dataclass(frozen=True)
class Signum(SignCode):
    """Send the sign of each worker's running mean of gradients; the optimizer gets the sign of the majority.

    u = beta u + (1 - beta) g;  C(u) = +1 where u >= 0, else -1;  result = sign(sum over the ranks of C(u)).

    The running mean is the memory ``momentum``, which has beta: pass ``memory=Momentum(beta=0.99)`` for another than
    0.9. It starts from zero, so the first step is that of ``signsgd``. Let the optimizer have no momentum of its own.
    What is said there about the learning rate and small parameters holds here too.

    Args:
        ties: value of zeros and of even votes, as in ``signsgd``: "positive", or "zero" for 2 bits an element.

    Raises:
        ConfigError: another rule for ties.

    Example:
        >>> code = Signum()
        >>> code.memory, code.layout((17,)).nbytes
        ('momentum', 3)

    Source:
        J. Bernstein, J. Zhao, K. Azizzadenesheli, A. Anandkumar, "signSGD with Majority Vote is Communication Efficient
        and Fault Tolerant", ICLR 2019.
    """

    name = "signum"
    reference = "J. Bernstein, J. Zhao, K. Azizzadenesheli, A. Anandkumar, Signum with majority vote, ICLR 2019"
    memory = "momentum"
    takes_pieces = True

    def encode_momentum(
        self,
        grad: Tensor,
        momentum: Tensor,
        beta: float,
        payload: Payload,
        state: State,
        key: Key,
        status: Tensor | None = None,
    ) -> None:
        if self.ties == "zero":
            capabilities.encode_momentum.default(self, grad, momentum, beta, payload, state, key, status)
        else:
            ops.signum_encode(grad, momentum, payload[0], beta, status)
