"""Benchmark tasks, one in each file: data, model, recipe and the measure of quality. The contract is in ``base``."""
