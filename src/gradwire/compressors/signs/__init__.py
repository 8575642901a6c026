"""One bit an element: its sign alone, its side of a threshold, or its sign with the means of its block."""
