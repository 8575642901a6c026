"""Exchange strategies, one in each file, which has the strategy's name. The contract is in ``base``."""
