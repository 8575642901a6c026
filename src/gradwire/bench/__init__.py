"""Benchmarks of codecs, kernels and stores, side by side with other implementations.

What trains is in ``gradwire.experiments``; ``gradwire.report`` shows what came of it.
"""
