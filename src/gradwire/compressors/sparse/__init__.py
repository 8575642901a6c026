"""Some of the elements and their places: the largest, those beyond a threshold, those that a draw keeps."""
