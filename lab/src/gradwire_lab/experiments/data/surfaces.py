"""Textured surfaces with defects, made like those of DAGM2007: noise of one direction and frequency, and an ellipse.

A defect is lighter or darker, or its texture runs another way; it fades out at its border, and its mask is the ellipse.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gradwire_lab.experiments.data.base import Grey, Surfaces, standardised

__all__ = ["generate", "pictures"]

Plane = npt.NDArray[np.float64]


def generate(side: int = 64) -> Surfaces:
    """Generate 120 defective surfaces for training, and 40 defective and 40 flawless ones for testing.

    Example:
        >>> data = generate(side=32)
        >>> len(data.train), len(data.test), tuple(data.train.inputs.shape[1:])
        (120, 80, (1, 32, 32))
    """
    train, marks = pictures(120, side, seed=1)
    defective, defects = pictures(40, side, seed=2)
    clean, nothing = pictures(40, side, seed=3, defective=False)
    return standardised(
        "generated surfaces", (train, marks), (np.concatenate([defective, clean]), np.concatenate([defects, nothing]))
    )


def pictures(count: int, side: int, seed: int, *, defective: bool = True) -> tuple[Grey, Grey]:
    """Generate images and masks of 0 and 255, both of shape ``(count, side, side)``.

    Args:
        count: number of images.
        side: side of an image, in pixels.
        seed: seed of all random choices.
        defective: true: each image has a defect; else the masks are empty.
    """
    rng = np.random.default_rng(seed)
    made = [_picture(rng, side, defective=defective) for _ in range(count)]
    return np.stack([image for image, _ in made]), np.stack([mask for _, mask in made])


def _picture(rng: np.random.Generator, side: int, *, defective: bool) -> tuple[Grey, Grey]:
    texture = _texture(rng, side, angle=0.5, frequency=0.16, spread=0.045)
    grey = 128 + 26 * texture
    mask = np.zeros((side, side), bool)
    if defective:
        distance = _ellipse(rng, side)
        soft = np.clip((1.15 - distance) / 0.5, 0, 1)
        if rng.random() < 0.5:
            grey += rng.choice([-1.0, 1.0]) * rng.uniform(22, 38) * soft
        else:
            other = 128 + 26 * _texture(rng, side, angle=2.1, frequency=0.30, spread=0.05)
            grey = (1 - soft) * grey + soft * other
        mask = distance <= 1
    noisy = np.clip(np.rint(grey + rng.normal(0, 4, grey.shape)), 0, 255)
    return noisy.astype(np.uint8), np.where(mask, 255, 0).astype(np.uint8)


def _texture(rng: np.random.Generator, side: int, angle: float, frequency: float, spread: float) -> Plane:
    """Filter white noise to one frequency in one direction, scaled to a deviation of 1."""
    y, x = np.meshgrid(np.fft.fftfreq(side), np.fft.fftfreq(side), indexing="ij")
    along, across = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    kept = np.exp(-((np.abs(along) - frequency) ** 2 + across**2) / (2 * spread**2))
    plane = np.fft.ifft2(np.fft.fft2(rng.standard_normal((side, side))) * kept).real
    scaled: Plane = plane / plane.std()
    return scaled


def _ellipse(rng: np.random.Generator, side: int) -> Plane:
    """The squared distance from the centre of an ellipse inside the image, in units of its axes."""
    long = side * rng.uniform(0.12, 0.24)
    short, angle = long * rng.uniform(0.45, 0.8), rng.uniform(0, np.pi)
    top, left = rng.uniform(long, side - long, 2)
    y, x = np.mgrid[:side, :side] - np.array([top, left])[:, None, None]
    along, across = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    distance: Plane = (along / long) ** 2 + (across / short) ** 2
    return distance
