"""One model in each file, full size and as a small variant of the same family."""
