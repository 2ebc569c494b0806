# SPDX-License-Identifier: Apache-2.0
"""Public synthetic images: soft shapes laid over each other ("dead leaves").

Filters and bases of features come from these images, which come from a seed and from
nothing else.  Ellipses, boxes, arcs and bars have sizes by a power law, random colors
and sometimes a sine texture; half of the images have a dark ground with shapes near the
middle, as pictures of single objects have.

All draws are uniform numbers of PCG64, whose stream NumPy does not change; normal ones
are their quantiles.  So a seed means the same images in every version.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

Pixels = NDArray[np.float32]

MOST_SHAPES = 30
_DRAWS = 24  # uniform numbers for each shape


def synthetic_images(
    count: int, side: int, channels: int, *, seed: int
) -> NDArray[np.uint8]:
    """Return public images as bytes, (count, channels, side, side).

    >>> synthetic_images(2, 16, 3, seed=0).shape
    (2, 3, 16, 16)
    """
    draws = np.random.Generator(np.random.PCG64(seed))
    images = np.empty((count, channels, side, side), dtype=np.uint8)
    for image in images:
        image[:] = np.rint(_composed(draws, side, channels) * 255)
    return images


def _composed(draws: np.random.Generator, side: int, channels: int) -> Pixels:
    """Return one image with values in [0, 1]."""
    first = draws.random(4 + channels)
    dark, noisy = first[0] < 0.5, first[1] < 0.3
    ground = np.zeros(channels) if dark else first[4:]
    image = np.empty((channels, side, side), dtype=np.float32)
    image[:] = ground[:, None, None]
    y, x = np.mgrid[0:side, 0:side].astype(np.float32)
    for shape in draws.random((int(MOST_SHAPES ** first[2]), _DRAWS)):
        cover, color = _shape(shape, x, y, channels, dark=dark)
        image *= 1 - cover
        image += cover * color
    if noisy and not dark:
        image += (0.03 * _normal(draws.random(image.shape))).astype(np.float32)
    return np.clip(image, 0, 1)


def _shape(
    u: NDArray[np.float64], x: Pixels, y: Pixels, channels: int, *, dark: bool
) -> tuple[Pixels, NDArray[np.float64]]:
    """Return how far a shape covers each pixel, and its color."""
    side = len(x)
    angle, stretch = math.pi * u[0], math.exp(0.5 * _normal(u[1]))
    if dark:
        middle = side / 2 + side / 6 * _normal(u[2:4])
        size = 1 + u[4] * (side / 3 - 1)
    else:
        middle = (side + 4) * u[2:4] - 2
        # By a power law: the inverse square is uniform.
        least, most = 1 / (0.6 * side) ** 2, 1.0
        size = min(1.5 / math.sqrt(least + u[4] * (most - least)), 0.6 * side)
    along = (x - middle[0]) * math.cos(angle) + (y - middle[1]) * math.sin(angle)
    across = (y - middle[1]) * math.cos(angle) - (x - middle[0]) * math.sin(angle)
    distance = _distance(u[5:9], along, across, size, stretch)
    softness = 0.3 + 0.5 * u[9]
    cover = 1 / (1 + np.exp(np.clip(distance / softness, -30, 30)))
    color = u[10 : 10 + channels] if u[13] < 0.7 else np.full(channels, u[10])
    color = color[:, None, None]
    if u[14] < 0.3:
        frequency, way = 0.3 + 2.2 * u[15], math.pi * u[16]
        wave = np.sin(frequency * (x * math.cos(way) + y * math.sin(way)))
        color = color * (1 + 0.5 * wave)
    return cover.astype(np.float32), color


def _distance(
    u: NDArray[np.float64], along: Pixels, across: Pixels, size: float, stretch: float
) -> Pixels:
    """Return how far each pixel lies outside of the shape, in pixels."""
    kind, width = int(4 * u[0]), 0.7 + 1.8 * u[1]
    if kind == 0:  # ellipse
        return np.asarray(np.hypot(along / stretch, across * stretch) - size)
    if kind == 1:  # box
        far = np.maximum(np.abs(along) / stretch, np.abs(across) * stretch)
        return np.asarray(far - size)
    if kind == 2:  # arc
        radius = len(along) / 4 * math.exp(_normal(u[2]))
        off = np.abs(np.hypot(along - radius, across) - radius) - width
        turn = np.abs(np.arctan2(across, radius - along))
        return np.asarray(np.maximum(off, (turn - 1.5 * size / radius) * radius))
    bar = np.maximum(np.abs(along) - 1.5 * size, np.abs(across) - width)
    return np.asarray(bar, dtype=np.float32)


def _normal(uniform: Any) -> Any:
    """Return normal numbers, from uniform ones in [0, 1)."""
    return ndtri(np.maximum(uniform, 1e-12))
