"""Shapes of the parameters of well-known networks, for measurements that need no network."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial

from gradwire.errors import ConfigError, nearest
from gradwire_lab.experiments import models

__all__ = ["NETWORKS", "network_shapes"]

Shape = tuple[int, ...]

BOTTLENECKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
BASIC = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
VGG16 = (64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)


def _conv(inputs: int, outputs: int, size: int) -> Iterator[Shape]:
    """A convolution without bias and the batch norm after it."""
    yield from ((outputs, inputs, size, size), (outputs,), (outputs,))


def _dense(inputs: int, outputs: int) -> Iterator[Shape]:
    yield from ((outputs, inputs), (outputs,))


def _resnet(depth: int) -> Iterator[Shape]:
    """The shapes of He et al.'s residual networks for 1000 classes."""
    deep = depth in BOTTLENECKS
    yield from _conv(3, 64, 7)
    inputs = 64
    for stage, blocks in enumerate((BOTTLENECKS if deep else BASIC)[depth]):
        width = 64 << stage
        outputs = 4 * width if deep else width
        for block in range(blocks):
            yield from _block(inputs, width, outputs, deep)
            if block == 0 and (deep or stage):
                yield from _conv(inputs, outputs, 1)
            inputs = outputs
    yield from _dense(inputs, 1000)


def _block(inputs: int, width: int, outputs: int, deep: bool) -> Iterator[Shape]:
    if deep:
        yield from (*_conv(inputs, width, 1), *_conv(width, width, 3), *_conv(width, outputs, 1))
    else:
        yield from (*_conv(inputs, width, 3), *_conv(width, width, 3))


def _vgg16() -> Iterator[Shape]:
    inputs = 3
    for outputs in VGG16:
        yield from ((outputs, inputs, 3, 3), (outputs,))
        inputs = outputs
    yield from (*_dense(512 * 7 * 7, 4096), *_dense(4096, 4096), *_dense(4096, 1000))


def _alexnet() -> Iterator[Shape]:
    for inputs, outputs, size in ((3, 64, 11), (64, 192, 5), (192, 384, 3), (384, 256, 3), (256, 256, 3)):
        yield from ((outputs, inputs, size, size), (outputs,))
    yield from (*_dense(256 * 6 * 6, 4096), *_dense(4096, 4096), *_dense(4096, 1000))


NETWORKS: dict[str, Callable[[], Iterator[Shape]]] = {
    "alexnet": _alexnet,
    "vgg16": _vgg16,
    **{f"resnet{depth}": partial(_resnet, depth) for depth in (*BASIC, *BOTTLENECKS)},
}


def network_shapes(text: str) -> list[Shape]:
    """The parameters of a network, or of a model of ``gradwire models``, by its name; or shapes as text.

    Args:
        text: a name, or ``COUNTxSIZE`` and ``SIZE`` separated by commas, SIZE in elements.

    Raises:
        ConfigError: the text names no network and has no shapes.

    Example:
        >>> import math
        >>> len(network_shapes("resnet50")), sum(map(math.prod, network_shapes("resnet50")))
        (161, 25557032)
        >>> network_shapes("2x10,500")
        [(10,), (10,), (500,)]
    """
    if text in NETWORKS:
        return list(NETWORKS[text]())
    if text in models.names():
        return list(models.facts(text).shapes.values())
    shapes: list[Shape] = []
    for part in text.split(","):
        found = re.fullmatch(r"(?:(\d{1,6})x)?(\d{1,10})", part.strip())
        if found is None or not int(found[2]) or found[1] == "0":
            known = nearest(text, {*NETWORKS, *models.names()})
            raise ConfigError(f"network must be a known one ({known}) or shapes as 100x10000,25000000, got {text!r}")
        shapes += [(int(found[2]),)] * int(found[1] or 1)
    return shapes
