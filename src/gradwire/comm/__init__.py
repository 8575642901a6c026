"""One exchange strategy in each file; the file's name is the strategy's name. The contract is in ``base``."""
