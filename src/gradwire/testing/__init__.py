"""Tools for authors of new methods: the contract as checks, gradients to try, and ranks that are threads.

``inputs``      gradients that break compressors, by name
``strategies``  the same and more for Hypothesis (needs the package ``hypothesis``)
``contract``    every check of the contract: ``check_all(MyMethod(), x)``
``adaptive``    whether Adam ends with a method where it ends without: ``check_fine(MyMethod())``
``sync``        whether an encode waits for its device
``ranks``       run ranks as threads; average a method of several rounds
"""
