"""Methods that send some of the elements with their indices: the largest, those beyond a threshold,
or a random choice.
"""
