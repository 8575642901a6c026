"""Ternary methods: a fixed threshold, and run lengths of groups of five."""
