"""A training script that was not written for gradwire, watched or compressed without a change of its code.

    gradwire run --watch -- torchrun --nproc-per-node 2 train.py     (docs/run.md)

    child       the command as a child of ``gradwire run``: its signals, its exit status, one line about what was seen
    __main__    ``python -m gradwire.run train.py``, for ``torchrun -m``
    start       the beginning in each process: hooks that wait until the script imports a module of torch
    session     what a process has seen, and how it ends
    holds       the models that were found: their hook, or the lines to add
    sentinel    now and then an exact mean beside the compressed one
    report      the paragraph, ``gradwire-report.json``, and the page

Invariants:
    A process that was only started pays nothing: torch is imported by the script alone, and the parts of gradwire that
    need it when the first model is held.

Failure modes:
    Whatever fails here leaves the script as it is, and one line says so.
"""
