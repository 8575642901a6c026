"""Methods with codes of +t, 0 and -t: a fixed threshold, one that follows the gradient, random
draws, or run lengths.
"""
