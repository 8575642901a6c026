"""Codes of +t, 0 and -t: with a fixed threshold, with one that follows the gradient, drawn at random, run by run."""
