"""INCEPTIONN, which tags each element with the form of its code."""
