"""Compressors, one in each file, which has the compressor's name. The contract is in ``base``.

What belongs to one family is in a folder: its methods, their operations and the kernels of these.
"""
