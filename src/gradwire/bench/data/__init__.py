"""One data set in each file."""
