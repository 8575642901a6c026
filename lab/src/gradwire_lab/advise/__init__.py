"""Predictions of whether compression pays, for a model, a network and a number of workers, from what is measured here.

    profile     when the backward pass hands out each bucket, and how long a step takes without any exchange
    advice      the candidates in order, or "do not compress"

The model itself, links, messages, codecs and the queue that they make of a step, is that of ``gradwire.auto``, which
decides while it trains; ``pipeline`` adds how the threads of a worker share its processor.

Nothing here is fitted to the steps it predicts: ``gradwire check advise`` compares the two.
"""
