"""Benchmarks of codecs, kernels and stores, side by side with other implementations.

What trains is in ``gradwire_lab.experiments``; ``gradwire_lab.report`` shows what came of it.
"""
