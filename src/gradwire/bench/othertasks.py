"""How each method is best used on the tasks beside the digits, tried on 2 workers with one seed and short runs.

What they have in common: a code with a size of its own needs that size, which is the gradient's, often a
hundredth of what it is on the digits; and a memory with a momentum needs an optimizer without one. What they have not:

language         gradients are clipped at a norm after they were averaged. A code that is louder than the gradient is
                 clipped to it, so that little of the signal is left. One epoch, dense: perplexity 26.8.
recommendation   Adam divides by the size of an element's recent gradients, which it forgets within two steps: an
                 element that comes once in a hundred steps is applied as if it were large. Sending the largest
                 tenth helps little, any three tenths do. Five epochs, dense: a hit rate of 0.66; popularity 0.39.
segmentation     the same with RMSprop, whose centred variance is nearly zero by then: with 1 % it marks nothing, with
                 a tenth it learns, with three tenths as dense training does. Ten epochs, dense: an IoU of 0.78. Most
                 of these figures are from before tensors of fewer than 1,024 elements travelled uncompressed there.

For the transformer, ``gpt`` and ``gpt_tune``, nothing was tried: every method has its own defaults.
"""

from __future__ import annotations

from gradwire.bench.setup import Setup
from gradwire.compressors._auto import AUTO
from gradwire.compressors.topk import TopK

__all__ = ["GPT", "LANGUAGE", "RECOMMENDATION", "SEGMENTATION"]

GPT: dict[str, Setup] = {
    "twobit:threshold=auto": Setup("nothing to choose: a tenth of each tensor fires", params={"threshold": AUTO}),
}

_DEMO = Setup(
    "DeMo's own optimizer, plain SGD with the rate of sign descent, and every tensor: as on the digits, not tried here",
    options={"min_numel": 0},
    recipe={"optimizer": "sgd", "momentum": 0.0, "lr": 0.003, "clip": None},
)

LANGUAGE: dict[str, Setup] = {
    "demo": _DEMO,
    "dgc": Setup(
        "its memory has the momentum, and gains a factor of ten by it: a tenth of the learning rate; what waited is "
        "louder than the gradient, so the mean is not clipped: perplexity 19.4, clipped 50; 0.1 % is 74 elements of a "
        "matrix: 1 %",
        params={"ratio": 0.01},
        recipe={"lr": 2.0, "clip": None},
    ),
    "ef21": Setup(
        "a fifth inside: perplexity 19.5; an estimate follows a moving gradient slowly",
        params={"inner": TopK(ratio=0.2)},
    ),
    "gradiveq": Setup(
        "small slices and a short period, as on the digits", params={"size": 16, "components": 4, "period": 50}
    ),
    "inceptionn": Setup(
        "its error is 0.001 whatever the gradient, which is 0.0001: the loss is multiplied by 256", loss_scale=256.0
    ),
    "onebit": Setup(
        "steps of +1 and -1 whatever the gradient, which is 0.0001: the loss is multiplied by 1,024 (perplexity 19.6; "
        "by 256 27.0, by 4,096 28.0)",
        loss_scale=1024.0,
    ),
    "randomk": Setup(
        "20 %: chosen blindly, what waits is louder than the gradient, and is clipped", params={"ratio": 0.2}
    ),
    "signsgd": Setup(
        "votes have the norm at which gradients are clipped, always: a tenth of the learning rate; nine tenths of the "
        "embedding have no gradient in a step and get no vote",
        params={"ties": "zero"},
        recipe={"lr": 2.0},
    ),
    "signum": Setup(
        "votes have the norm at which gradients are clipped, and a row of the embedding that came once is voted on "
        "long after: perplexity 45; at three times the rate 68, at ten times 79",
        params={"ties": "zero"},
        recipe={"lr": 0.7},
    ),
    "sketched_sgd": Setup(
        "matrices of 74,000 to 96,000 elements: 2 % of them, and a narrow sketch, which is cheaper than a wide one",
        params={"ratio": 0.02, "rows": 3, "width": 6},
    ),
    "strom": Setup("above most of the gradient: perplexity 18.6, with 0.01 22.9", params={"threshold": 0.001}),
    "threshold": Setup("three in a hundred: perplexity 17.8", params={"v": AUTO, "target": 0.03}),
    "twobit": Setup("far above most of the gradient: perplexity 19.2, with 0.005 19.5", params={"threshold": 0.02}),
    "twobit:threshold=auto": Setup(
        "one in a hundred fires: perplexity 17.9, that of dense training; with a tenth 62.6, for a residual drains by "
        "a threshold a step, and thresholds are small where many must fire",
        params={"threshold": AUTO, "target": 0.01},
    ),
}

RECOMMENDATION: dict[str, Setup] = {
    "demo": _DEMO,
    "adaptive_sparse": Setup("three tenths: a hit rate of 0.67, with 5 % 0.46", params={"ratio": 0.3}),
    "adaptive_threshold": Setup("three tenths: a hit rate of 0.64, with 1 % 0.48", params={"ratio": 0.3}),
    "atomo": Setup("ten atoms of a matrix: a hit rate of 0.64, with three 0.45", params={"budget": 10.0}),
    "dgc": Setup("a tenth must come", params={"ratio": 0.1}),
    "ef21": Setup(
        "three tenths inside: a hit rate of 0.46, with a tenth 0.37; an estimate that a row of the embedding left "
        "behind is applied in every step until the row is chosen again, and Adam makes it large",
        params={"inner": TopK(ratio=0.3)},
    ),
    "gradiveq": Setup(
        "small slices and a short period, as on the digits", params={"size": 16, "components": 4, "period": 50}
    ),
    "inceptionn": Setup(
        "its error is 0.001 whatever the gradient, which is 0.0001: the loss is multiplied by 256 (0.69; else 0.39)",
        loss_scale=256.0,
    ),
    "oktopk": Setup("three tenths must come", params={"ratio": 0.3}),
    "onebit": Setup(
        "steps of +1 and -1 whatever the gradient, which is 0.0001: the loss is multiplied by 16,384 (0.67; by 4,096: "
        "0.58)",
        loss_scale=16384.0,
    ),
    "powersgd": Setup("rank 8: a hit rate of 0.61, with rank 4 0.55", params={"rank": 8}),
    "randomk": Setup("30 %: a hit rate of 0.66, that of dense training; with 5 % 0.39", params={"ratio": 0.3}),
    "sidco": Setup("three tenths: a hit rate of 0.67, with 1 % 0.49", params={"ratio": 0.3}),
    "signsgd": Setup("rows of users and items without a gradient get no vote", params={"ties": "zero"}),
    "signum": Setup(
        "every vote is a full step: a third of the learning rate; rows without a gradient yet get no vote: a hit rate "
        "of 0.68, else 0.46",
        params={"ties": "zero"},
        recipe={"lr": 0.003},
    ),
    "sketched_sgd": Setup(
        "2 % by a narrow sketch: wide ones do not pay", params={"ratio": 0.02, "rows": 3, "width": 6}
    ),
    "strom": Setup(
        "three tenths fire, each at its tensor's threshold: 0.69; with a tenth 0.55, with 0.01 for all 0.42",
        params={"threshold": AUTO, "target": 0.3},
    ),
    "three_lc": Setup("blocks of 64, each with a scale of its own: 0.63; of 4,096: 0.45", params={"block": 64}),
    "threshold": Setup("three tenths: 0.68; with a tenth 0.52", params={"v": AUTO, "target": 0.3}),
    "topk": Setup("three tenths: a hit rate of 0.69, with a tenth 0.55", params={"ratio": 0.3}),
    "twobit": Setup("a few times the gradient: a hit rate of 0.60", params={"threshold": 0.0005}),
    "twobit:threshold=auto": Setup(
        "three tenths fire: a hit rate of 0.69, with a tenth 0.60", params={"threshold": AUTO, "target": 0.3}
    ),
}

SEGMENTATION: dict[str, Setup] = {
    "demo": _DEMO,
    "adaptive_threshold": Setup("three tenths must come: an IoU of 0.81, with 1 % 0.43", params={"ratio": 0.3}),
    "dgc": Setup(
        "its memory has the momentum, so the optimizer has none: an IoU of 0.74 with three tenths, 0.31 with a tenth; "
        "with 1 %, and both, 0",
        params={"ratio": 0.3},
        recipe={"momentum": 0.0},
    ),
    "ef21": Setup("three tenths inside must come: an IoU of 0.73, with a tenth 0", params={"inner": TopK(ratio=0.3)}),
    "gradiveq": Setup(
        "small slices and a short period, as on the digits", params={"size": 16, "components": 4, "period": 50}
    ),
    "oktopk": Setup("three tenths must come: an IoU of 0.83", params={"ratio": 0.3}),
    "onebit": Setup(
        "steps of +1 and -1 whatever the gradient, which is 0.001 to 0.1: the loss is multiplied by 32: an IoU of 0.82",
        loss_scale=32.0,
    ),
    "randomk": Setup("30 %, for a tenth must come and the choice is blind", params={"ratio": 0.3}),
    "sidco": Setup("three tenths must come: an IoU of 0.83, with 1 % 0.53", params={"ratio": 0.3}),
    "signsgd": Setup(
        "every vote is a full step: a third of the learning rate; ReLUs that are dead get no vote",
        params={"ties": "zero"},
        recipe={"lr": 2e-4},
    ),
    "signum": Setup(
        "votes that stay the same have no variance, by which centred RMSprop divides: plain SGD, as in the paper; "
        "dead ReLUs get no vote: an IoU of 0.83, else 0; small tensors vote, too: their gradients are far below 1",
        params={"ties": "zero"},
        options={"min_numel": 256},
        recipe={"optimizer": "sgd", "momentum": 0.0, "lr": 0.003},
    ),
    "sketched_sgd": Setup(
        "2 % by a narrow sketch: wide ones do not pay", params={"ratio": 0.02, "rows": 3, "width": 6}
    ),
    "topk": Setup("three tenths: an IoU of 0.83, with a tenth 0.58, with 1 % 0", params={"ratio": 0.3}),
    "twobit": Setup("about the largest gradients: an IoU of 0.82", params={"threshold": 0.01}),
    "twobit:threshold=auto": Setup(
        "nothing to choose: a tenth fires, each at its tensor's threshold: an IoU of 0.83",
        params={"threshold": AUTO},
    ),
}
