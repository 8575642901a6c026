"""Front ends, one in each file: where a training meets the exchange. Other frameworks have theirs in ``adapters``."""
