# SPDX-License-Identifier: Apache-2.0
"""Images as torch takes them: float32 in [0, 1], channels first, labels as int64.

The formats read here are plain bytes: the idx files of MNIST, and the binary version of
CIFAR-10. Its python version is a pickle, and unpickling runs what the file says, so a
download would have to be trusted before it could be looked at; it is not supported.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from armijo_reproduction.datasets.files import DatasetError
from armijo_reproduction.datasets.tabular import Table

N_CLASSES = 10
MNIST_SHAPE = (1, 28, 28)
CIFAR_SHAPE = (3, 32, 32)
SUBSET_TRAIN_PER_CLASS = 1_000
SUBSET_TEST_PER_CLASS = 200

_IDX_UNSIGNED_BYTES = 0x08
_CIFAR_RECORD = 1 + math.prod(CIFAR_SHAPE)


def mnist(contents: Sequence[bytes]) -> Table:
    """Read MNIST, or a dataset in its format, training images first.

    Parameters
    ----------
    contents : sequence of bytes
        Training images, training labels, test images and test labels, in the idx
        format of LeCun, Cortes and Burges (1998).
    """
    parts = [idx(content) for content in contents]
    images, labels = parts[::2], parts[1::2]
    for pixels, digits in zip(images, labels, strict=True):
        if pixels.ndim != 3 or digits.ndim != 1 or len(pixels) != len(digits):
            raise DatasetError(
                "Expected images of two dimensions and one label for each, got arrays "
                f"of shapes {pixels.shape} and {digits.shape}."
            )
    pixels = np.concatenate(images)[:, np.newaxis]
    return _table(pixels, np.concatenate(labels))


def idx(content: bytes) -> NDArray[np.uint8]:
    """Read an array of bytes in the idx format.

    The header is two zeros, the type of the values, the number of dimensions, and each
    dimension as a big-endian number of 32 bits; the values follow in row-major order.

    Parameters
    ----------
    content : bytes
        The unpacked file.

    Returns
    -------
    ndarray of uint8
        The values; a read-only view of ``content``.

    Raises
    ------
    DatasetError
        If it is no such file, or has too few or too many bytes.

    Examples
    --------
    >>> idx(bytes([0, 0, 8, 2, 0, 0, 0, 1, 0, 0, 0, 3, 7, 8, 9]))
    array([[7, 8, 9]], dtype=uint8)
    """
    if len(content) < 4 or content[:3] != bytes([0, 0, _IDX_UNSIGNED_BYTES]):
        raise DatasetError(
            "Expected an idx file of unsigned bytes, which starts with 00 00 08, got "
            f"{content[:4].hex(' ') or 'nothing'}."
        )
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise DatasetError(
            f"Expected an idx header of {start} bytes, got {len(content)}."
        )
    shape = [int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4)]
    if len(content) != start + math.prod(shape):
        raise DatasetError(
            f"Expected {start + math.prod(shape)} bytes for an idx file of shape "
            f"{tuple(shape)}, got {len(content)}."
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def cifar(contents: Sequence[bytes]) -> Table:
    """Read CIFAR-10, or a part of it, from the batches of its binary version.

    Parameters
    ----------
    contents : sequence of bytes
        The batches: records of a label and the red, green and blue pixels, each in
        row-major order (Krizhevsky 2009).
    """
    records = np.concatenate([_cifar_records(content) for content in contents])
    return _table(records[:, 1:].reshape(-1, *CIFAR_SHAPE), records[:, 0])


def cifar_subset(contents: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Cut the first images of every class from the batches, in their order.

    Parameters
    ----------
    contents : sequence of bytes
        Training batches, and the test batch last.

    Returns
    -------
    train, test : bytes
        1,000 training and 200 test records of every class, in the same format.
    """
    *train, test = (_cifar_records(content) for content in contents)
    return (
        _first_of_each(np.concatenate(train), SUBSET_TRAIN_PER_CLASS),
        _first_of_each(test, SUBSET_TEST_PER_CLASS),
    )


def _first_of_each(records: NDArray[np.uint8], count: int) -> bytes:
    """Return the first records of every class, in the order they have."""
    firsts = [np.flatnonzero(records[:, 0] == c)[:count] for c in range(N_CLASSES)]
    return records[np.sort(np.concatenate(firsts))].tobytes()


def _cifar_records(content: bytes) -> NDArray[np.uint8]:
    """Return one row per record, the label first."""
    if not content or len(content) % _CIFAR_RECORD:
        raise DatasetError(
            f"Expected records of {_CIFAR_RECORD} bytes, got {len(content)} bytes."
        )
    return np.frombuffer(content, dtype=np.uint8).reshape(-1, _CIFAR_RECORD)


def _table(pixels: NDArray[np.uint8], labels: NDArray[np.uint8]) -> Table:
    """Scale pixels to [0, 1] and check the labels."""
    if labels.max(initial=0) >= N_CLASSES:
        raise DatasetError(
            f"Expected labels from 0 to {N_CLASSES - 1}, got {labels.max()}."
        )
    X = pixels.astype(np.float32, order="C")
    X /= 255
    return Table(X, labels.astype(np.int64), ())
