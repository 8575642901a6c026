"""One memory in each file; the file's name is the memory's name. The contract is in ``base``."""
