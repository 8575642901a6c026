"""Methods that send matrices as products of thin factors or by a few directions: power iteration, regression, sampled
singular values.
"""
