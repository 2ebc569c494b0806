# SPDX-License-Identifier: Apache-2.0
"""Images from arrays, folders, ``.npz`` and IDX files, in one public form.

What is public of a set of images is its array shape, its type of numbers and the names
of its classes; an image that cannot be read, or is not of the declared size, keeps its
place as a blank, and nothing tells of it.
"""

import gzip
import math
import os
import sys
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from armijo import _validate
from armijo.errors import TableError

SMALLEST, WORKING, LARGEST = 8, (16, 32), 256
"""The least side of an image, the sides that are usual for features, and the largest
that may be asked for."""

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm")
# Content and not the suffix decides what decodes a file: others would start programs.
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
_NAMES = (("x", "y"), ("images", "labels"), ("x_train", "y_train"), ("data", "target"))
_IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def working_side(height: int, width: int) -> int:
    """Return the side of the square that images are resized to.

    >>> working_side(28, 28), working_side(96, 64), working_side(8, 8)
    (28, 32, 16)
    """
    least, most = WORKING
    return min(max(round(math.sqrt(height * width)), least), most)


class Pictures:
    """An array of images, read in blocks as numbers in [0, 1] of one square size.

    Parameters
    ----------
    images : array of shape (n, h, w), (n, h, w, c) or (n, c, h, w)
        Bytes and other integers are divided by 255; floats are taken as they are.
        Values beyond [0, 1] are cut.  An image with a number that is not finite is
        blank.
    side : int or None
        The side of the squares; None follows from the size.
    """

    def __init__(self, images: Any, side: int | None = None) -> None:
        self._images = _as_array(images)
        if self._images.dtype.kind not in "buif":
            raise ValueError(
                "Expected images as an array of numbers, all of one size, got "
                f"{self._images.dtype} in shape {self._images.shape}; resize them to "
                "one size. Nothing was spent."
            )
        self._gray = self._images.ndim == 3
        if self._gray:
            self._images = self._images[:, None]
        self.height, self.width, self.channels = self._shape()
        if min(self.height, self.width) < SMALLEST:
            raise ValueError(
                f"Expected images of at least {SMALLEST} x {SMALLEST} pixels, got "
                f"{self.height} x {self.width}. Nothing was spent."
            )
        if side is None:
            side = working_side(self.height, self.width)
        _validate.at_least(WORKING[0], side=side)
        if side > LARGEST:
            raise ValueError(
                f"Expected side <= {LARGEST}, got {side!r}: features of larger images "
                "need too much memory. Nothing was spent."
            )
        self.side = side

    def _shape(self) -> tuple[int, int, int]:
        """Return height, width and channels, and put the channels first."""
        images = self._images
        if images.ndim == 4:
            last, first = images.shape[3] in (1, 3), images.shape[1] in (1, 3)
            if self._gray:
                return images.shape[2], images.shape[3], 1
            if last and not first:
                self._images = images = images.transpose(0, 3, 1, 2)
            if last != first:
                return images.shape[2], images.shape[3], images.shape[1]
        raise ValueError(
            "Expected images of shape (n, h, w), (n, h, w, c) or (n, c, h, w) with one "
            f"or three channels, got {np.shape(self._images)}; drop an alpha channel, "
            "add the axis of rows. Nothing was spent."
        )

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._images)

    @property
    def array(self) -> NDArray[Any]:
        """All images as they came, channels first."""
        return self._images

    def known(self) -> NDArray[np.bool_]:
        """Return which images have finite numbers only."""
        if self._images.dtype.kind != "f":
            return np.ones(len(self), dtype=bool)
        return np.array([bool(np.isfinite(image).all()) for image in self._images])

    def cut(self) -> NDArray[np.bool_]:
        """Return which images have values beyond those of a pixel."""
        most = 255 if self._images.dtype.kind in "ui" else 1
        beyond = [bool(((x < 0) | (x > most)).any()) for x in self._images]
        return np.array(beyond)

    def __getitem__(self, part: slice) -> NDArray[np.float32]:
        """Return some images, (rows, channels, side, side), zeros for blanks."""
        images = self._images[part]
        finite = np.isfinite(images).reshape(len(images), -1).all(axis=1)
        if images.dtype.kind == "f":  # cut before: a cast that overflows warns
            images = np.clip(images, 0, 1)
        block = images.astype(np.float32)
        if images.dtype.kind in "ui":
            block /= 255
        block[~finite] = 0
        np.clip(block, 0, 1, out=block)
        if (self.height, self.width) == (self.side, self.side):
            return np.ascontiguousarray(block)
        found = np.empty((len(block), self.channels, self.side, self.side), np.float32)
        for out, image in zip(found, block, strict=True):  # each alone
            out[:] = resized(image, self.side)
        return found


def _as_array(images: Any) -> NDArray[Any]:
    """Return an array; in a list one image would decide the type of all others."""
    array = any(hasattr(images, name) for name in ("shape", "__array__"))
    try:
        found = np.asarray(images) if array else None
    except Exception:  # such as a tensor that needs gradients
        found = None
    if found is None:
        raise ValueError(
            "Expected images as one array of numbers, got "
            f"{type(images).__name__}; numpy.stack makes one of a list, and "
            ".detach().float().numpy() of a tensor. Nothing was spent."
        )
    return found


def resized(image: NDArray[np.float32], side: int) -> NDArray[np.float32]:
    """Return one image (channels, h, w) as a square, smoothed where it shrinks."""
    found = functional.interpolate(
        torch.from_numpy(np.ascontiguousarray(image))[None],
        size=(side, side),
        mode="bilinear",
        antialias=True,
    )
    return np.asarray(found[0].clamp_(0, 1).numpy())


@dataclass(frozen=True)
class ImageSet:
    """Images and labels of files; ``readable`` says which of them could be read.

    ``names`` are of files, for their owner; rows of arrays have none.
    """

    images: NDArray[Any]
    labels: NDArray[Any]
    readable: NDArray[np.bool_]
    names: Sequence[str] = ()


def load_images(
    path: str | Path,
    *,
    labels: str | Path | None = None,
    size: tuple[int, int] | None = None,
    gray: bool = False,
) -> ImageSet:
    """Read a folder with a subfolder for each class, ``.npz``, IDX or CIFAR-10 files.

    Parameters
    ----------
    path : path
        The images; ``.bin`` is CIFAR-10's binary format, a folder of ``data_batch_*``
        files of it is the training set.
    labels : path or None
        The IDX file of the labels; None looks for the usual name beside the images.
    size : (int, int) or None
        Height and width that files of a folder must have, others are blank; None
        resizes every file to a square of the largest working side.
    gray : bool
        Whether files of a folder are read without their colors.
    """
    path = Path(path)
    batches = sorted(path.glob("data_batch_*.bin")) if path.is_dir() else []
    if batches or path.suffix == ".bin":
        return _cifar(batches or [path])
    if path.is_dir():
        return _folder(path, size, gray=gray)
    if not path.is_file():
        raise TableError(f"Expected images at {path}, found nothing there.")
    if path.suffix == ".npz":
        return _npz(path)
    if "idx" in path.name:
        return _idx_pair(path, labels)
    raise TableError(
        "Expected a folder, an .npz file, an IDX file (idx in its name) or CIFAR-10's "
        f".bin files, got {path}."
    )


def _folder(path: Path, size: tuple[int, int] | None, *, gray: bool) -> ImageSet:
    """Read a folder; whether some image has colors is private, so it is declared."""
    files = [
        (inner.name, file)
        for inner in sorted(path.iterdir())
        if inner.is_dir()
        for file in sorted(inner.iterdir())
        if file.suffix.lower() in SUFFIXES
    ]
    if not files:
        raise TableError(
            f"Expected a folder for each class with images in it, found none in {path}."
        )
    height, width = size or (WORKING[1], WORKING[1])
    images = np.zeros((len(files), height, width, 1 if gray else 3), dtype=np.uint8)
    readable = np.zeros(len(files), dtype=bool)
    with _silent():
        for place, (_, file) in enumerate(files):
            pixels = _decoded(file, (height, width), size is not None, gray)
            if pixels is not None:
                images[place] = pixels.reshape(images.shape[1:])
                readable[place] = True
    names = [str(file.relative_to(path)) for _, file in files]
    return ImageSet(images, np.array([name for name, _ in files]), readable, names)


def _decoded(
    file: Path, size: tuple[int, int], exact: bool, gray: bool
) -> NDArray[np.uint8] | None:
    """Return one file's pixels, or None: whatever is wrong with it must not show."""
    from PIL import Image

    try:
        if not file.is_file():  # a pipe would wait for somebody
            return None
        with (
            warnings.catch_warnings(action="ignore"),
            Image.open(file, formats=_FORMATS) as image,
        ):
            if exact and (image.height, image.width) != size:
                return None
            found = _in_bytes(image).convert("L" if gray else "RGB")
            return np.asarray(found.resize(size[::-1], Image.Resampling.BOX))
    except Exception:
        return None


def _in_bytes(image: Any) -> Any:
    """Return an image of numbers of 16 bits, or of floats in [0, 1], in bytes."""
    from PIL import Image

    if image.mode != "F" and not image.mode.startswith("I"):
        return image
    wide = np.asarray(image, dtype=np.float64)
    if not np.isfinite(wide).all():
        raise ValueError("numbers that are not finite")  # a blank
    most = 1.0 if image.mode == "F" else 65535.0
    return Image.fromarray(np.rint(np.clip(wide / most, 0, 1) * 255).astype(np.uint8))


@contextmanager
def _silent() -> Iterator[None]:
    """Let no library write on standard error what it finds in a file."""
    try:
        kept = os.dup(2)
    except OSError:  # closed: nobody would read it
        yield
        return
    if sys.stderr is not None:
        sys.stderr.flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _npz(path: Path) -> ImageSet:
    try:
        read = np.load(path, allow_pickle=False)
        if not isinstance(read, np.lib.npyio.NpzFile):
            raise ValueError("it holds one array, without names")
        with read as file:
            by_name = {name.lower(): name for name in file.files}
            for images, labels in _NAMES:
                if images in by_name and labels in by_name:
                    X, y = file[by_name[images]], np.ravel(file[by_name[labels]])
                    if y.dtype.kind == "S":
                        y = np.char.decode(y, "utf-8", "replace")
                    return _whole(X, y, path)
            names = sorted(file.files)
    except TableError:
        raise
    except (OSError, EOFError, ValueError, zlib.error, zipfile.BadZipFile) as error:
        raise TableError(f"{path} cannot be read as an .npz file: {error}.") from None
    raise TableError(
        f"Expected arrays x and y (or images and labels) in {path}, found {names}."
    )


_RECORD = 1 + 3 * 32 * 32  # bytes: a label, then red, green and blue by rows


def _cifar(files: Sequence[Path]) -> ImageSet:
    """Read files of CIFAR-10's binary format (Krizhevsky 2009)."""
    found = []
    for file in files:
        data = np.fromfile(file, np.uint8) if file.is_file() else np.empty(0, np.uint8)
        if not len(data) or len(data) % _RECORD:
            raise TableError(
                f"Expected records of {_RECORD} bytes, as in CIFAR-10's binary files, "
                f"in {file}."
            )
        found.append(data.reshape(-1, _RECORD))
    records = np.concatenate(found)
    images = records[:, 1:].reshape(-1, 3, 32, 32)
    return _whole(images, records[:, 0].astype(np.int64), files[0])


def _idx_pair(path: Path, labels: str | Path | None) -> ImageSet:
    beside = path.name.replace("images", "labels").replace("idx3", "idx1")
    other = path.with_name(beside) if labels is None else Path(labels)
    if not other.is_file() or other == path:
        raise TableError(f"Expected the labels of {path} in {other}; name their file.")
    return _whole(read_idx(path), read_idx(other), path)


def _whole(images: NDArray[Any], labels: NDArray[Any], path: Path) -> ImageSet:
    if len(images) != len(labels):
        raise TableError(
            f"Expected as many labels as images in {path}, got different numbers of "
            "them."
        )
    return ImageSet(images, labels, np.ones(len(labels), dtype=bool))


def read_idx(path: Path) -> NDArray[Any]:
    """Read an array of an IDX file, perhaps compressed by gzip."""
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        kind, axes = np.dtype(_IDX_TYPES[data[2]]), data[3]
        shape = np.frombuffer(data, ">u4", count=axes, offset=4)
        found = np.frombuffer(data, kind, offset=4 + 4 * axes)
        return found.reshape(shape.astype(int)).astype(kind.newbyteorder("="))
    except (OSError, EOFError, ValueError, KeyError, IndexError) as error:
        raise TableError(f"{path} cannot be read as an IDX file: {error}.") from None
