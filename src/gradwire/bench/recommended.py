"""How each method is best used on a task: what differs from its defaults, and why. Here those of the digits.

A method that is not here trains with its own defaults and the common recipe; one may be here a second time, with
parameters behind its name. Everything was tried on 2 workers, where
dense training reaches 98 to 99 %.
"""

from __future__ import annotations

from gradwire import registry
from gradwire.bench.method import Method
from gradwire.bench.othertasks import GPT, LANGUAGE, RECOMMENDATION, SEGMENTATION
from gradwire.bench.setup import Setup
from gradwire.compressors.topk import TopK

__all__ = ["BY_TASK", "DIGITS", "MIN_NUMEL", "MIN_NUMEL_OF", "RECOMMENDED", "labels", "recommended", "setup_of"]

MIN_NUMEL = 256
"""Compresses 18,752 of the 19,026 elements of the digits' network; what is left are biases, norms and the 72 elements
of the stem."""

MIN_NUMEL_OF: dict[str, int] = {"segmentation": 1024}
"""Tasks on which it is another. Segmentation has seven convolutions of 256 to 864 elements, 3 % of the network, at full
and half resolution; with codes of one or two bits on these, training ends lower, and with some seeds learns nothing."""


DIGITS = "classification"


RECOMMENDED: dict[str, Setup] = {
    "demo": Setup(
        "DeMo as in its paper: every tensor, plain SGD without momentum, and the learning rate of sign descent: 0.003 "
        "(98.1 %; 0.001: 87.8 %)",
        options={"min_numel": 0},
        recipe={"momentum": 0.0, "lr": 0.003},
    ),
    "dgc": Setup(
        "its memory has the momentum, so the optimizer has none; 0.1 % of these small tensors is one element: 1 %",
        params={"ratio": 0.01},
        recipe={"momentum": 0.0},
    ),
    "ef21": Setup(
        "5 % inside: an estimate follows a moving gradient slowly, with 1 % it ends 3 to 4 points lower",
        params={"inner": TopK(ratio=0.05)},
    ),
    "gradiveq": Setup(
        "small slices and a short period: nothing here has the 65,536 elements that pay with slices of 256",
        params={"size": 16, "components": 4, "period": 50},
    ),
    "onebit": Setup(
        "steps of +1 and -1 whatever the gradient: as in MXNet the loss is summed over the batch of 64, and the mean "
        "taken in front of the optimizer; with the mean loss it does not learn at all (15 %)",
        loss_scale=64.0,
    ),
    "randomk": Setup("5 %: chosen blindly, 1 % ends 4 points lower", params={"ratio": 0.05}),
    "sketched_sgd": Setup(
        "small tensors: 0.1 % of them is an element or two and ends 5 points lower, and wide sketches do not pay",
        params={"ratio": 0.02, "rows": 3, "width": 6},
    ),
    "signsgd": Setup(
        "a vote is +1 or -1: divided by 256 it is a step of the right size; of 2 workers' votes half are ties",
        params={"ties": "zero"},
        loss_scale=256.0,
    ),
    "signum": Setup("a vote is +1 or -1: divided by 256 it is a step of the right size", loss_scale=256.0),
    "twobit": Setup(
        "a threshold of the gradient's size: 0.004 to 0.032 reach the dense accuracy, at 0.001 residuals drain slowly",
        params={"threshold": 0.016},
    ),
    "twobit:threshold=auto": Setup(
        "nothing to choose: each tensor's threshold follows its gradient, 10 % of the elements fire in a step",
        params={"threshold": "auto"},
    ),
}


BY_TASK: dict[str, dict[str, Setup]] = {
    DIGITS: RECOMMENDED, "language": LANGUAGE, "recommendation": RECOMMENDATION, "segmentation": SEGMENTATION,
    "gpt": GPT, "gpt_tune": GPT,
}  # fmt: skip
"""The settings of each task."""


def labels() -> list[str]:
    """What is worth comparing: every registered compressor, and the settings that stand beside the recommended ones."""
    return sorted({*registry.names("compressors"), *RECOMMENDED})


def setup_of(label: str, task: str = DIGITS) -> Setup:
    """The settings of a label on a task, or else of the compressor that it starts with."""
    settings = BY_TASK.get(task, {})
    return settings.get(label) or settings.get(label.partition(":")[0], Setup())


def recommended(name: str, task: str = DIGITS) -> Method:
    """How a registered compressor, or another label, is trained on a task.

    Raises:
        ConfigError: no such compressor.
    """
    setup = setup_of(name, task)
    compressor = registry.build("compressors", name.partition(":")[0], setup.params)
    options = {"min_numel": MIN_NUMEL_OF.get(task, MIN_NUMEL), **setup.options}
    return Method(name, compressor, options, setup.loss_scale, setup.recipe, setup.optimizer)
