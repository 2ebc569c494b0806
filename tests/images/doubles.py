# SPDX-License-Identifier: Apache-2.0
"""Small public features, and images of two kinds that are easy to tell apart."""

import numpy as np
from numpy.typing import NDArray

from armijo.images.features import Bank, FeatureSettings

SMALL_BANKS = (
    Bank(patch=5, filters=16, grid=2),
    Bank(patch=4, filters=8, grid=2, halved=True, weight=0.7),
)


def small_settings(
    side: int = 16, channels: int = 1, mirror: bool = False
) -> FeatureSettings:
    """Return settings whose features are made in a second."""
    return FeatureSettings(
        side=side,
        channels=channels,
        mirror=mirror,
        banks=SMALL_BANKS,
        components=24,
        synthetic=120,
    )


def stripes(count: int, side: int = 16, seed: int = 0) -> tuple[NDArray, NDArray]:
    """Return gray images with upright (class 1) or level (class 0) stripes."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, count)
    wave = np.sin(np.arange(side) * 1.2 + rng.uniform(0, 6, (count, 1)))
    images = np.repeat(wave[:, None, :], side, axis=1)
    images = np.where(y[:, None, None] == 1, images, images.transpose(0, 2, 1))
    images = 127 + 90 * images + rng.normal(0, 10, images.shape)
    return np.clip(images, 0, 255).astype(np.uint8), y
