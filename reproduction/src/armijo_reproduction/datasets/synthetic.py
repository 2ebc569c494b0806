# SPDX-License-Identifier: Apache-2.0
"""Synthetic data in the place of real data, for machines that have none."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from armijo.cli._census import Census, generated_census
from armijo_reproduction.spec import SyntheticTable

ROWS = 4_000
IMAGES = 1_200


def table_like(name: str, rows: int | None = None) -> Census:
    """Return a synthetic census table; each name gets rows of its own."""
    return generated_census(rows or ROWS, seed=sum(name.encode()))


def synthetic_table(wanted: SyntheticTable) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return features of unequal spread, a tenth of them telling, and noisy labels.

    >>> small = SyntheticTable(rows=50, columns=5, positive=0.2, scale=1.0)
    >>> X, y = synthetic_table(small)
    >>> X.shape, int(y.sum())
    ((50, 5), 10)
    """
    rng = np.random.default_rng(wanted.columns)
    spread = np.geomspace(1.0, 0.1, wanted.columns)
    X = rng.normal(rng.normal(size=wanted.columns), 1.0, (wanted.rows, wanted.columns))
    telling = rng.random(wanted.columns) < max(0.1, 2 / wanted.columns)
    scores = X @ (telling * rng.normal(size=wanted.columns))
    scores += 0.3 * rng.logistic(size=wanted.rows)
    above = np.quantile(scores, 1 - wanted.positive)
    return X * spread * wanted.scale, (scores > above).astype(np.int64)


def images_like(name: str, rows: int | None = None) -> tuple[NDArray[Any], ...]:
    """Return synthetic images and labels for training and for testing.

    Each of ten classes has a smooth random prototype; an image is its prototype, dimmed
    and noised.

    >>> [part.shape for part in images_like("mnist", 20)]
    [(20, 1, 28, 28), (20,), (20, 1, 28, 28), (20,)]
    """
    shape = (3, 32, 32) if name.startswith("cifar") else (1, 28, 28)
    rng = np.random.default_rng(sum(name.encode()))
    coarse = rng.random((10, shape[0], 4, 4))
    size = shape[1] // 4
    prototypes = np.kron(coarse, np.ones((1, 1, size, size)))
    n_train = rows or IMAGES
    labels = rng.integers(0, 10, n_train + min(n_train, 500))
    dim = rng.uniform(0.5, 1.0, (len(labels), 1, 1, 1))
    noise = rng.normal(0.0, 0.2, (len(labels), *shape))
    pixels = np.clip(prototypes[labels] * dim + noise, 0.0, 1.0).astype(np.float32)
    return pixels[:n_train], labels[:n_train], pixels[n_train:], labels[n_train:]
