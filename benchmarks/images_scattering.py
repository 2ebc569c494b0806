# SPDX-License-Identifier: Apache-2.0
"""Scattering in place of the filters, under the same private linear model.

    pip install kymatio==0.3.0 appdirs configparser
    python -m benchmarks.images_scattering fashion-mnist train-images-idx3-ubyte.gz

Trains on the first images of a training set and measures on its last ones, so that no
test image decides: the filters of the package, two banks of them, scattering, and it
beside the two banks.  Adds lines to ``docs/results/images_scattering.csv``.

Scattering is that of Tramer and Boneh (2021): two scales, eight angles.  Each path is
divided by its mean over synthetic images, and all that follows is as for the filters:
square roots, norm one, the basis of synthetic images.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.special
import torch
from torch.nn import functional

from armijo import PrivateImageClassifier
from armijo.images import features
from armijo.images.features import (
    BANKS,
    TOGETHER,
    FeatureMap,
    FeatureSettings,
    settings_for,
)
from armijo.images.reading import Pictures, load_images
from armijo.images.synthetic import Pixels, synthetic_images

# kymatio 0.3.0 imports it for molecules; recent versions of SciPy do not have it.
scipy.special.sph_harm = None
from kymatio.torch import Scattering2D  # noqa: E402

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "images_scattering.csv"
KINDS = ("filters", "two-banks", "scattering", "both")
SCALED_BY = 1000  # synthetic images


@dataclass(frozen=True, kw_only=True)
class ScatteringSettings(FeatureSettings):
    """Features by scattering, averaged over at most ``cells`` x ``cells`` places.

    Filters of ``banks`` stand beside them.
    """

    cells: int


class Scattering(FeatureMap):
    """Scattering coefficients of images of one size, in a basis."""

    def __init__(self, settings: ScatteringSettings) -> None:
        side, self._cells = settings.side, settings.cells
        self._scattering = Scattering2D(J=2, L=8, shape=(side, side))
        self._mirror, self._scale = settings.mirror, torch.ones(())
        images = synthetic_images(
            SCALED_BY, side, settings.channels, seed=settings.seed
        )
        found = self._paths(images.astype(np.float32) / np.float32(255))
        self._scale = found.mean(dim=(0, 1, 3, 4), keepdim=True)
        self._width = found[0].numel()
        super().__init__(settings)

    @property
    def raw_size(self) -> int:
        """Number of features before the basis."""
        return self._width + super().raw_size

    @torch.no_grad()
    def _paths(self, images: Pixels) -> torch.Tensor:
        """Return coefficients, (images, channels, paths, cells, cells)."""
        found = self._scattering(torch.from_numpy(np.ascontiguousarray(images)))
        if self._mirror:
            found = (found + self._scattering(torch.from_numpy(images).flip(3))) / 2
        cells = min(found.shape[-1], self._cells)
        pooled = functional.adaptive_avg_pool2d(found.flatten(0, 1), cells)
        return pooled.unflatten(0, found.shape[:2]).clamp_(min=0) / self._scale

    def _raw_blocks(self, images: Any, progress: Any) -> Iterator[tuple[slice, Pixels]]:
        """Yield blocks of ``TOGETHER`` images, filled up with zeros."""
        for first in range(0, len(images), TOGETHER):
            part = images[first : first + TOGETHER]
            found = self._paths(part).sqrt().flatten(1)
            found /= found.norm(dim=1, keepdim=True).clamp_(min=1e-9)
            if self._filters:
                raw = [super(Scattering, self)._raw(image) for image in part]
                found = torch.cat([found, torch.stack(raw)], dim=1) / 2**0.5
            block = np.zeros((TOGETHER, self.raw_size), dtype=np.float32)
            block[: len(found)] = found.numpy()
            yield slice(first, first + TOGETHER), block

    def _raw(self, image: Pixels) -> torch.Tensor:
        """Return the features of one image, for the self-test."""
        return torch.from_numpy(next(self._raw_blocks(image[None], None))[1][0])


def main() -> None:
    """Fit each kind of features at each budget, and write what they reached."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("dataset")
    arguments.add_argument("train")
    arguments.add_argument("--rows", type=int, default=10_000)
    arguments.add_argument("--held-out", type=int, default=10_000)
    arguments.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 3.0])
    arguments.add_argument("--draws", type=int, default=2)
    arguments.add_argument("--cells", type=int, default=7)
    arguments.add_argument("--features", nargs="+", default=KINDS, choices=KINDS)
    asked = arguments.parse_args()
    whole = load_images(asked.train)
    X, y = whole.images[: asked.rows], whole.labels[: asked.rows]
    X_held, y_held = whole.images[-asked.held_out :], whole.labels[-asked.held_out :]
    filters = settings_for(Pictures(X), None)
    banks = filters.banks[: len(BANKS)]
    both = ScatteringSettings(**{**vars(filters), "banks": banks}, cells=asked.cells)
    kinds = {
        "filters": filters,
        "two-banks": replace(filters, banks=banks),
        "scattering": replace(both, banks=()),
        "both": both,
    }
    for kind in asked.features:
        settings = kinds[kind]
        start = time.process_time()
        if isinstance(settings, ScatteringSettings):
            features._MADE[settings] = Scattering(settings)
        with tempfile.TemporaryDirectory() as cache:
            for epsilon, draw in product(asked.epsilon, range(asked.draws)):
                given = {"features": settings, "cache": cache, "epsilon": epsilon}
                model = PrivateImageClassifier(classes=np.unique(y).tolist(), **given)
                accuracy = model.fit(X, y).score(X_held, y_held)
                line = {
                    "dataset": asked.dataset,
                    "rows": len(y),
                    "features": kind,
                    "epsilon": epsilon,
                    "draw": draw,
                    "accuracy": round(accuracy, 4),
                    "cpu": round(time.process_time() - start),  # since the kind began
                }
                new = not RESULTS.exists()
                pd.DataFrame([line]).to_csv(RESULTS, mode="a", header=new, index=False)


if __name__ == "__main__":
    main()
