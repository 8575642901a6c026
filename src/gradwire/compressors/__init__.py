"""One compressor in each file; the file's name is the compressor's name. The contract is in ``base``."""
