"""Training experiments: tasks with their models and data, runs of them on workers of one machine,
sweeps, and records.
"""
