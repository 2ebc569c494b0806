# SPDX-License-Identifier: Apache-2.0
"""Public features of images: filters, whitening and basis from synthetic images.

A bank holds filters that are whitened patches of :mod:`synthetic images
<armijo.images.synthetic>`.  Every patch of an image is normalized to mean zero and
variance one and multiplied by the filters; what lies beyond a threshold, on either
side, is averaged over a grid of cells (Coates, Ng and Lee 2011).  With mirror symmetry
half of the filters are mirror images of the others, and an image has the same features
as its mirror image.  Square roots, norm one for each bank, and last a basis: the main
directions of the same features of synthetic images, scaled to equal variance.

**Each image alone.**  All that is nonlinear is computed image by image, in calls of one
shape.  The product with the basis takes ``TOGETHER`` images, the last ones filled up
with zeros, since one by one it would read the basis from memory for each of them: that
a row of such a product depends on its own row alone, in any place, is an assumption,
which :meth:`FeatureMap.self_test` looks for a case against.  Then rows are rounded to
whole numbers, and all that follows is exact.

Everything is a smooth function of the synthetic images (symmetric roots, triangular
factors with a positive diagonal): another machine rounds differently and yet has nearly
the same features, so that a model need not carry them.
"""

import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from armijo import _validate
from armijo.data.integer_rows import FEATURE_BITS
from armijo.images.reading import Pictures
from armijo.images.synthetic import Pixels, synthetic_images

TOGETHER = 64
"""Images whose features are multiplied with the basis in one call."""

_APART = 16  # distance of places that the self-test fills with one image at once

THRESHOLD = 0.7  # of a response, in standard deviations of a whitened patch
CONTRAST = 10 / 255**2  # added to the variance of a patch
FLAT = 0.03  # patches with a smaller standard deviation make no filter
PATCHES = 200_000  # from which filters are made
WHITENING = 0.1  # added to the variances of patches
BASIS = 1e-4  # added to the variances of features
GRAY_BLUR, COLOR_BLUR = 0.5, 1.0
CLEAR = 25_000.0  # color images over noise from which more components are worth it

Progress = Callable[[int, int], object]
"""Receives how many images are done, and of how many."""


class Images(Protocol):
    """Images by place, (rows, channels, side, side), with values in [0, 1]."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Pixels: ...


@dataclass(frozen=True, kw_only=True)
class Bank:
    """Filters of one size.

    Attributes
    ----------
    patch : int
        Side of a patch.
    filters : int
        Their number, mirror images included.
    grid : int
        Responses are averaged over grid x grid cells.
    halved : bool
        Whether the image is halved before.
    weight : float
        Norm of the bank's features among those of all banks.
    """

    patch: int
    filters: int
    grid: int
    halved: bool = False
    weight: float = 1.0


BANKS = (
    Bank(patch=6, filters=1024, grid=3),
    Bank(patch=8, filters=512, grid=2, weight=0.7),
)
FINE = Bank(patch=4, filters=64, grid=7, weight=0.7)
"""A few small filters, and where they are: for objects that are in one place."""


@dataclass(frozen=True, kw_only=True)
class FeatureSettings:
    """What features are a function of, beside the image: public numbers.

    Attributes
    ----------
    side, channels : int
        Images have ``channels`` x ``side`` x ``side`` numbers.
    mirror : bool
        Whether a mirror image has the same features.
    banks : tuple of Bank
        The filters.
    blur : float
        Means over cells fade out over so many widths of a cell: over sharp ones they
        jump where an image is shifted.
    components : int
        Most features.
    synthetic : int
        Number of synthetic images.
    seed : int
        The seed of all that is drawn.
    """

    side: int
    channels: int = 1
    mirror: bool = False
    banks: tuple[Bank, ...] = BANKS
    blur: float = 0.0
    components: int = 2500
    synthetic: int = 8000
    seed: int = 0

    def __post_init__(self) -> None:
        _validate.at_least(16, side=self.side)
        if self.channels not in (1, 3):
            raise ValueError(f"Expected one or three channels, got {self.channels!r}.")
        _validate.at_least(2, components=self.components, synthetic=self.synthetic)
        _validate.non_negative(blur=self.blur)

    def digest(self) -> str:
        """Return what tells these features from others, of other versions too."""
        constants = THRESHOLD, CONTRAST, FLAT, PATCHES, WHITENING, BASIS
        return hashlib.sha256(repr((constants, self)).encode()).hexdigest()


@dataclass(frozen=True, eq=False, repr=False)
class Filters:
    """The filters of a bank for images of one size."""

    bank: Bank
    weights: Tensor  # (numbers of a patch, filters)
    pool: Tensor  # (cells, patches)
    mirror: bool

    @property
    def size(self) -> int:
        """Number of features."""
        channels = 2 * self.weights.shape[1] // (2 if self.mirror else 1)
        return len(self.pool) * channels

    def features(self, image: Tensor) -> Tensor:
        """Return the features of one image (1, channels, side, side), of norm one.

        The mean of a patch is taken out by the filters, which add up to zero; the
        threshold is taken out after averaging, ``relu(z - a) = max(z, a) - a``.
        """
        bank = self.bank
        if bank.halved:
            image = functional.avg_pool2d(image, 2)
        count = len(self.weights)
        patches = functional.unfold(image, bank.patch)[0]
        total, square = patches.sum(dim=0), (patches * patches).sum(dim=0)
        variance = (square - total * total / count).clamp_(min=0) / count
        patches *= (variance + CONTRAST).rsqrt_()
        response = patches.t() @ self.weights
        above = self.pool @ response.clamp(min=THRESHOLD)
        below = self.pool @ response.clamp_(max=-THRESHOLD)
        pooled = torch.stack([above - THRESHOLD, -below - THRESHOLD]).clamp_(min=0)
        if self.mirror:
            pooled = self._mirrored(pooled)
        found = pooled.sqrt_().flatten()
        return found / found.norm().clamp_(min=1e-9)

    def _mirrored(self, pooled: Tensor) -> Tensor:
        """Return the mean over the image and its mirror image, each filter once."""
        grid, half = self.bank.grid, pooled.shape[-1] // 2
        cells = pooled.view(2, grid, grid, 2, half)
        return (cells[..., 0, :] + cells[..., 1, :].flip(2)) / 2


def pooling(places: int, grid: int, blur: float) -> Tensor:
    """Return weighted means over the cells of a grid, (grid^2, places^2).

    Weights fall from one to zero over ``blur`` widths of a cell, around its edges;
    without a blur they are those of the places that lie in a cell or in part.
    """
    width = places / grid
    middles = (np.arange(grid)[:, None] + 0.5) * width
    distance = np.abs(np.arange(places) + 0.5 - middles)
    inside = (width * (1 + blur) + 1) / 2 - distance
    means = np.clip(inside / max(blur * width, 1e-6), 0.0, 1.0)
    means = (means / means.sum(axis=1, keepdims=True)).astype(np.float32)
    return torch.from_numpy(np.kron(means, means))


def make_filters(
    bank: Bank, images: Pixels, *, mirror: bool, seed: int, blur: float = 0.0
) -> Filters:
    """Return whitened patches of synthetic images as filters, scaled to norm one."""
    draws = np.random.Generator(np.random.PCG64(seed))
    patch, side = bank.patch, images.shape[2]
    if side < patch:
        raise ValueError(
            f"Expected images of at least {patch} pixels for a bank, got {side}."
        )
    where = (draws.random((3, PATCHES)).T * [len(images), *[side - patch + 1] * 2]).T
    image, row, column = where.astype(np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(images, (patch, patch), (2, 3))
    patches = windows[image, :, row, column].reshape(PATCHES, -1)
    patches = patches[patches.std(axis=1) > FLAT].astype(np.float64)
    patches -= patches.mean(axis=1, keepdims=True)
    patches /= np.sqrt(patches.var(axis=1, keepdims=True) + CONTRAST)
    whitening = inverse_root(patches.T @ patches / len(patches), WHITENING)
    count = bank.filters // 2 if mirror else bank.filters
    chosen = draws.random(len(patches)).argsort(kind="stable")[:count]
    filters = patches[chosen] @ whitening
    filters /= np.linalg.norm(filters, axis=1, keepdims=True)
    weights = filters @ whitening
    weights -= weights.mean(axis=1, keepdims=True)
    if mirror:  # after the whitening, whose patches were no exact mirror images
        shape = (count, images.shape[1], patch, patch)
        flipped = weights.reshape(shape)[..., ::-1].reshape(count, -1)
        weights = np.concatenate([weights, flipped])
    return Filters(
        bank,
        torch.from_numpy(weights.T.astype(np.float32).copy()),
        pooling(side - patch + 1, bank.grid, blur),
        mirror,
    )


def inverse_root(square: NDArray[np.float64], added: float) -> NDArray[np.float64]:
    """Return ``(A + added I)^-1/2``, symmetric, with eigenvalues below zero as zero."""
    values, vectors = np.linalg.eigh((square + square.T) / 2)
    scaled = vectors * (np.maximum(values, 0.0) + added) ** -0.5
    return np.asarray(scaled @ vectors.T)


class FeatureMap:
    """Features of images of one size, as whole numbers.

    Parameters
    ----------
    settings : FeatureSettings
        Public numbers, from which all else follows.
    progress : callable or None
        Told of the synthetic images while filters and basis are made.
    """

    def __init__(
        self, settings: FeatureSettings, progress: Progress | None = None
    ) -> None:
        self.settings = settings
        images = synthetic_images(
            settings.synthetic, settings.side, settings.channels, seed=settings.seed
        )
        scaled: Pixels = images.astype(np.float32) / np.float32(255)
        small: Pixels = functional.avg_pool2d(torch.from_numpy(scaled), 2).numpy()
        self._filters = [
            make_filters(
                bank,
                small if bank.halved else scaled,
                mirror=settings.mirror,
                blur=settings.blur,
                seed=settings.seed + 1 + number,
            )
            for number, bank in enumerate(settings.banks)
        ]
        found = np.empty((len(images), self.raw_size), dtype=np.float32)
        for part, block in self._raw_blocks(scaled, progress):
            found[part] = block[: len(found[part])]
        self._basis = torch.from_numpy(basis(found, settings.components))

    @property
    def raw_size(self) -> int:
        """Number of features before the basis."""
        return sum(filters.size for filters in self._filters)

    @property
    def size(self) -> int:
        """Number of features."""
        return int(self._basis.shape[1])

    def _raw(self, image: Pixels) -> Tensor:
        """Return the features of one image before the basis, of norm one."""
        pixels = torch.from_numpy(image)[None] - 0.5
        parts = [
            filters.bank.weight * filters.features(pixels) for filters in self._filters
        ]
        found = torch.cat(parts)
        return found / found.norm().clamp_(min=1e-9)

    def _raw_blocks(
        self, images: Images, progress: Progress | None
    ) -> Iterator[tuple[slice, Pixels]]:
        """Yield blocks of ``TOGETHER`` images, filled up with zeros."""
        total = len(images)

        def block(first: int) -> Pixels:
            found = np.zeros((TOGETHER, self.raw_size), dtype=np.float32)
            for place, image in enumerate(images[first : first + TOGETHER]):
                found[place] = self._raw(image).numpy()
            return found

        with _one_thread_each() as workers, ThreadPoolExecutor(workers) as pool:
            places = range(0, total, TOGETHER)
            # A few blocks ahead of the reader, not all: blocks are large.
            ahead = [pool.submit(block, first) for first in places[: 2 * workers]]
            for number, first in enumerate(places):
                found = ahead.pop(0).result()
                if number + 2 * workers < len(places):
                    ahead.append(pool.submit(block, places[number + 2 * workers]))
                if progress is not None:
                    progress(min(first + TOGETHER, total), total)
                yield slice(first, first + TOGETHER), found

    def _projected(self, block: Pixels) -> NDArray[np.int16]:
        """Return a block of ``TOGETHER`` rows in the basis, as whole numbers.

        Squares are added column by column: a row's norm is a function of the row.
        """
        product = (torch.from_numpy(block) @ self._basis).numpy()
        squares = np.zeros(len(product))
        for column in product.T.astype(np.float64):
            squares += column * column
        factor = 2.0**FEATURE_BITS / np.sqrt(np.maximum(squares, 1e-30))
        steps = np.rint(product * factor[:, None])
        most = 2.0**FEATURE_BITS
        return np.clip(np.nan_to_num(steps), -most, most).astype(np.int16)

    def integers(
        self, images: Images, progress: Progress | None = None
    ) -> NDArray[np.int16]:
        """Return the features of images in [0, 1], in steps of ``2**-FEATURE_BITS``.

        ``images`` is (rows, channels, side, side); each row has norm about one.
        """
        found = np.empty((len(images), self.size), dtype=np.int16)
        for part, block in self._raw_blocks(images, progress):
            found[part] = self._projected(block)[: len(found[part])]
        return found

    @cached_property
    def fingerprint(self) -> NDArray[np.int16]:
        """The features of a few synthetic images, to compare machines by."""
        return self.integers(self._examples(4))

    def _examples(self, count: int) -> Pixels:
        settings = self.settings
        images = synthetic_images(
            count, settings.side, settings.channels, seed=settings.seed + 101
        )
        return np.asarray(images.astype(np.float32) / np.float32(255))

    def self_test(self) -> str:
        """Look for an image whose features depend on others; return what was compared.

        Raises
        ------
        ArithmeticError
            If there is one: no guarantee would hold on this machine.
        """
        fillings = (0.0, math.nan, 1e30, *np.linspace(-1, 1, 5))
        with _one_thread_each():  # as features are made
            same = self._each_alone(fillings)
        if not same:
            raise ArithmeticError(
                "Features of an image depend on other images on this machine: torch "
                "multiplies rows differently in different places or beside other rows. "
                "Nothing was spent; use another build of torch."
            )
        return (
            "features of an image depend on that image alone: tested, "
            f"{TOGETHER} places of a product, {len(fillings)} kinds of other rows"
        )

    def _each_alone(self, fillings: Sequence[float]) -> bool:
        """Say whether an image has the same features in all places, beside any rows."""
        first, other = self._examples(2)
        alone = self._raw(first).numpy()
        between = [self._raw(image).numpy() for image in (other, first, other, first)]
        same = all(np.array_equal(alone, found) for found in between[1::2])
        block = np.zeros((TOGETHER, self.raw_size), dtype=np.float32)
        block[0] = alone
        expected = self._projected(block)[0]
        for first in range(_APART):
            places = slice(first, None, _APART)
            block[:] = fillings[first % len(fillings)]
            block[1::3] = between[0]
            block[places] = alone
            same &= bool((self._projected(block)[places] == expected).all())
        return same


_MADE: OrderedDict[FeatureSettings, FeatureMap] = OrderedDict()
_MOST_MADE = 3  # a basis takes up to 370 MB


def feature_map(
    settings: FeatureSettings, progress: Progress | None = None
) -> FeatureMap:
    """Return the features of these settings, made once in a process."""
    found = _MADE.pop(settings, None) or FeatureMap(settings, progress)
    _MADE[settings] = found
    while len(_MADE) > _MOST_MADE:
        _MADE.popitem(last=False)
    return found


def settings_for(
    pictures: Pictures, mirror: bool | None, signal: float = 0.0
) -> FeatureSettings:
    """Return what features follow from; color images are as their mirror images.

    With mirror symmetry there are twice the filters, so that as many are no mirror
    images of others.  Color images, whose objects are not in one place, have cells with
    a wider blur in place of finer ones, and more components where they are worth their
    noise: ``signal`` is the public number of images over that of the run.
    """
    color = pictures.channels == 3
    mirrored = color if mirror is None else mirror
    _validate.boolean(mirror=mirrored)
    banks = BANKS if color else (*BANKS, FINE)
    doubled = tuple(replace(bank, filters=2 * bank.filters) for bank in banks)
    more = {"components": 3500} if color and signal >= CLEAR else {}
    return FeatureSettings(
        side=pictures.side,
        channels=pictures.channels,
        mirror=mirrored,
        banks=doubled if mirrored else banks,
        blur=COLOR_BLUR if color else GRAY_BLUR,
        **more,
    )


def features(
    images: Any,
    *,
    mirror: bool | None = None,
    side: int | None = None,
    settings: FeatureSettings | None = None,
    progress: Progress | None = None,
) -> Pixels:
    """Return public features of images, to train a module of your own on.

    Each row is a function of its image alone and has norm about one, so that nothing
    has to be paid for it.

    Parameters
    ----------
    images : array of shape (n, h, w), (n, h, w, c) or (n, c, h, w)
        Images with one or three channels: bytes, or floats in [0, 1].
    mirror, side : bool or None, int or None
        As :class:`armijo.PrivateImageClassifier` has them.
    settings : FeatureSettings or None
        Other filters, for research.
    progress : callable or None
        Told how many images are done, and of how many.

    Returns
    -------
    float32 array of shape (n, features)
        An image with a number that is not finite has a row of NaN, which
        :func:`armijo.train` takes for a blank.
    """
    pictures = Pictures(images, side)
    made = feature_map(settings or settings_for(pictures, mirror), progress)
    made.self_test()
    found = made.integers(pictures, progress) * np.float32(2.0**-FEATURE_BITS)
    found[~pictures.known()] = np.nan
    return np.asarray(found)


def basis(features: Pixels, components: int) -> Pixels:
    """Return the main directions of public rows, scaled to equal variance.

    Two rounds of subspace iteration on the products of rows, from the first of them.
    With U an orthonormal basis of the main rows, K the products and ``H = U'KU``, the
    columns of ``V = X'U H^-1/2`` are orthonormal, and the variances along them are
    ``A = H^-1/2 (KU)'(KU) H^-1/2 / n``; the result is ``V (A + BASIS)^-1/2``.
    """
    rows = features - features.mean(axis=0)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
    count = min(components, features.shape[1], len(rows) // 2)
    products = rows @ rows.T
    main = _orthonormal(products[:, :count])
    main = _orthonormal(products @ main)
    image = (products @ main).astype(np.float64)
    inner = main.T.astype(np.float64) @ image
    # Directions without variance, if any, get no weight worth mentioning.
    root = inverse_root(inner, 1e-9 * float(np.trace(inner)) / count)
    variances = root @ (image.T @ image / len(rows)) @ root
    scale = root @ inverse_root(variances, BASIS)
    return np.ascontiguousarray(rows.T @ (main @ scale.astype(np.float32)))


def _orthonormal(columns: Pixels) -> Pixels:
    """Return the orthonormal factor whose triangular one has a positive diagonal."""
    found, triangle = torch.linalg.qr(torch.from_numpy(np.ascontiguousarray(columns)))
    signs = torch.where(torch.diagonal(triangle) < 0, -1.0, 1.0)
    return np.asarray((found * signs).numpy())


@contextmanager
def _one_thread_each() -> Iterator[int]:
    """Let as many threads work side by side as torch has, each alone."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)
