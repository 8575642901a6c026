"""Methods that send one bit an element: its sign, its side of a threshold, or its sign with the means of its block."""
