"""Predictions of whether compression pays, for a model, a network and a number of workers, from what is measured here.

    profile     when the backward pass hands out each bucket, and how long a step takes without any exchange
    advice      the candidates in order, or "do not compress"

The model itself, links, messages, codecs and how they make a step, is that of ``gradwire.auto``, which decides while it
trains.
Nothing here is fitted to the steps it predicts: ``gradwire check advise`` compares the two.
"""
