"""Compressors, one in each file, which has the compressor's name. The contract is in ``base``.

What belongs to one family is in a folder: its methods, their operations and the kernels of these.
"""

import sys

from gradwire._moved import Moved, as_attributes, in_folders

# The last of all: it is asked for names that are nowhere.
_find = in_folders(__name__, __path__[0])
sys.meta_path.append(Moved(__name__, _find))
__getattr__ = as_attributes(__name__, _find)
