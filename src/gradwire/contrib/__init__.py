"""Second tier: methods that a survey or a comparison needs, and what few trainings use today.

They are in the same package and found by the same registry, under the same names. Each has golden bytes, the checks of
the contract and its section in the documentation, as those of the first tier have. Not promised are an engine for each
device: a method here has its reference, in plain torch, and at most one fast engine of its own, in C++; nor are its
defaults, which may change where a better choice is measured. Nothing outside of this package imports it. It uses of the
first tier only what a method of another package may use, too: public modules.

Beside methods, with their memories and strategies, there are MXNet's training loops (``mxnet``) and FSDP1.
"""
