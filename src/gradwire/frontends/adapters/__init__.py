"""Adapters for other frameworks, one in each file."""
