# SPDX-License-Identifier: Apache-2.0
"""Where rows come from: arrays, tensors, or any map-style dataset.

A source hands out rows by number to the gate and to nobody else.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor
from torch.utils.data import default_collate

from armijo.data.query import Matrix, row_norms
from armijo.privacy.budget import FloatArray

Index = NDArray[np.int64] | None
"""Row numbers; None is all of them."""


class RowSource(Protocol):
    """Rows by number."""

    def __len__(self) -> int:
        """Return how many rows there are: private, for sampling only."""
        ...

    def take(self, index: Index) -> tuple[Any, Any]:
        """Return features and labels of the chosen rows."""
        ...

    def parts(self) -> Any:
        """Return what tells these rows from others; None where that is unknown."""
        ...


class ExampleSource(RowSource, Protocol):
    """Rows for a module, whose shapes can be had without their values."""

    def zeros(self) -> tuple[Any, Any]:
        """Return two examples of zeros, in the shapes and types of the real ones."""
        ...


class ArrayRows:
    """Rows of a dense array, a memmap or a CSR matrix, without a copy."""

    def __init__(self, X: Matrix, y: NDArray[Any] | None) -> None:
        if sparse.issparse(X):
            X = sparse.csr_matrix(X, copy=False)
        elif not isinstance(X, np.ndarray):
            X = np.asarray(X)
        if X.ndim != 2:
            raise ValueError(
                f"Expected a table of rows, got an array of {X.ndim} dimensions."
            )
        if y is not None and np.shape(y)[0] != X.shape[0]:
            raise ValueError(
                f"Expected as many labels as rows, got {np.shape(y)[0]} labels for "
                f"{X.shape[0]} rows; pass arrays that belong together."
            )
        self._X, self._y = X, None if y is None else np.asarray(y)
        self._norms: FloatArray | None = None
        self.kept: dict[object, Any] = {}

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self._X.shape[0])

    def take(self, index: Index) -> tuple[Matrix, NDArray[Any] | None]:
        """Return rows and labels."""
        if index is None:
            return self._X, self._y
        return _chosen(self._X, index), None if self._y is None else self._y[index]

    def norms(self, index: Index, X: Matrix) -> FloatArray:
        """Return the norms of rows ``X`` that were taken, computed at their first time.

        The rows of a run must not change, or a norm would not be theirs.
        """
        if self._norms is None:
            self._norms = np.full(len(self), np.nan)
        known = self._norms if index is None else self._norms[index]
        missing = np.flatnonzero(np.isnan(known))
        if missing.size:
            known = known.copy()
            known[missing] = row_norms(X if missing.size == len(known) else X[missing])
            self._norms[slice(None) if index is None else index] = known
        return known

    def parts(self) -> tuple[Any, ...]:
        """Return rows and labels, and how they lie in memory."""
        return self._X, self._y, getattr(self._X, "strides", None)


class TensorRows:
    """Examples as tensors whose first axis counts them.

    Parameters
    ----------
    inputs, targets : Tensor or tuple of Tensor
        What the module and the loss receive.
    device : str or torch.device or None
        Where batches are computed; None leaves them where they are.
    """

    def __init__(self, inputs: Any, targets: Any, *, device: Any = None) -> None:
        self._tensors = (_tuple(inputs), _tuple(targets))
        self._single = (isinstance(inputs, Tensor), isinstance(targets, Tensor))
        self._device = device
        sizes = {len(one) for group in self._tensors for one in group}
        if len(sizes) != 1:
            raise ValueError(
                f"Expected as many targets as inputs, got lengths {sorted(sizes)}; "
                "pass tensors that belong together. Nothing was spent."
            )
        self._size = sizes.pop()

    def __len__(self) -> int:
        """Return the number of examples."""
        return self._size

    def take(self, index: Index) -> tuple[Any, Any]:
        """Return inputs and targets on the device."""
        where = None if index is None else torch.from_numpy(index)
        return self._each(lambda one: self._moved(one if where is None else one[where]))

    def parts(self) -> tuple[Any, ...]:
        """Return all tensors, and how they lie in memory."""
        strides = [one.stride() for group in self._tensors for one in group]
        return self._tensors, self._single, strides

    def zeros(self) -> tuple[Any, Any]:
        """Return two examples of zeros, from shapes and types: no row is read."""

        def two(one: Tensor) -> Tensor:
            device = one.device if self._device is None else self._device
            return torch.zeros(2, *one.shape[1:], dtype=one.dtype, device=device)

        return self._each(two)

    def _each(self, make: Callable[[Tensor], Tensor]) -> tuple[Any, Any]:
        """Return what is made of inputs and targets, a single tensor as itself."""
        first, second = (
            make(group[0]) if single else tuple(make(one) for one in group)
            for group, single in zip(self._tensors, self._single, strict=True)
        )
        return first, second

    def refuse_not_finite(self) -> None:
        """Refuse numbers that are none before anything is spent."""
        for one in self._tensors[0] + self._tensors[1]:
            if one.is_floating_point() and not bool(torch.isfinite(one).all()):
                raise ValueError(
                    "Expected finite numbers, got NaN or infinity in the dataset; "
                    "clean it, or leave such examples out. Nothing was spent."
                )

    def _moved(self, tensor: Tensor) -> Tensor:
        """Bring a tensor to the device."""
        return tensor if self._device is None else tensor.to(self._device)


class DatasetRows:
    """Examples of a map-style dataset: ``dataset[i]`` is an input and a target."""

    def __init__(self, dataset: Any, *, device: Any = None) -> None:
        self._dataset, self._device = dataset, device

    def __len__(self) -> int:
        """Return the number of examples now; a change is refused by the gate."""
        return len(self._dataset)

    def take(self, index: Index) -> tuple[Any, Any]:
        """Read the examples and put them together."""
        numbers = range(len(self)) if index is None else index.tolist()
        # The shapes of an empty batch are those of any example.
        examples = [self._pair(i) for i in numbers or [0]]
        inputs, targets = default_collate(examples)
        source = TensorRows(_frozen(inputs), _frozen(targets), device=self._device)
        return source.take(None if numbers else np.zeros(0, dtype=np.int64))

    def parts(self) -> None:
        """Return None: what a dataset will give next time is not known."""

    def zeros(self) -> tuple[Any, Any]:
        """Return two examples of zeros; the first example is read for its shapes."""
        first = self.take(np.zeros(1, dtype=np.int64))
        return TensorRows(*first).zeros()

    def _pair(self, number: int) -> Any:
        """Return one example, refusing what is no pair."""
        example = self._dataset[number]
        if not isinstance(example, tuple | list) or len(example) != 2:
            raise ValueError(
                "Expected each example of the dataset to be (input, target), got "
                f"{type(example).__name__}; wrap the dataset so that it is a pair."
            )
        return tuple(example)


def _chosen(X: Matrix, index: NDArray[np.int64]) -> Matrix:
    """Return rows by number; whole rows at once where they lie whole in memory."""
    if isinstance(X, np.ndarray) and X.flags.c_contiguous and X.flags.aligned:
        return X.take(index, axis=0)  # of any other layout this copies the table
    return X[index]


def _tuple(tensors: Any) -> tuple[Tensor, ...]:
    """Return one tensor or several as a tuple, refusing anything else."""
    found = tuple(tensors) if isinstance(tensors, tuple | list) else (tensors,)
    for one in found:
        if not isinstance(one, Tensor) or one.ndim == 0:
            raise ValueError(
                "Expected tensors with one entry for each example, got "
                f"{type(one).__name__}; convert arrays by torch.from_numpy. Nothing "
                "was spent."
            )
    return found


def _frozen(collated: Any) -> Any:
    """Return what the collation made of several inputs as a tuple."""
    return tuple(collated) if isinstance(collated, list) else collated
