"""Methods around others: their payloads in fewer bits, two of them in one, one on the change of an estimate."""
