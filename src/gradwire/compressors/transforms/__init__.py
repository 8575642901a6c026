"""Methods that change the basis of blocks: rotated at random and rounded to a grid, or as the few largest of their
cosine waves.
"""
