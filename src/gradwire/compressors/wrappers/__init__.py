"""Methods that wrap others: entropy coding of a payload, two methods in one, and a method on the
change of an estimate.
"""
