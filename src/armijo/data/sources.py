# SPDX-License-Identifier: Apache-2.0
"""Where rows come from: arrays, tensors, or any map-style dataset.

A source hands out rows by number to the gate and to nobody else.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor
from torch.utils.data import default_collate

from armijo import _validate
from armijo.accounting.budget import FloatArray
from armijo.data.blocks import RowBlocks
from armijo.data.coded import CodedRows
from armijo.data.feature_rows import FeatureRows
from armijo.data.lattice import RoundedRows, lattice_norms, rounded
from armijo.data.query import Index as Index
from armijo.data.query import Matrix, Taken, unlabelled

_MOST_KEPT = 1 << 26  # numbers of a table whose rounded copy is held: 512 MiB


class ArrayRows:
    """Rows of a dense array, a memmap or a CSR matrix, each on its own lattice.

    All rows of a run are rounded when the first are taken, and held; of a larger dense
    table each block or batch is rounded as it is taken, so that no copy is made.  See
    :mod:`armijo.data.lattice`.  ``on_lattice`` says that the rows of a batch come
    again.
    """

    def __init__(
        self, X: Matrix, y: NDArray[Any] | None, *, on_lattice: bool = False
    ) -> None:
        self._table = X if on_lattice else None
        if isinstance(X, RoundedRows):
            X = X.X
        elif sparse.issparse(X):
            X = sparse.csr_matrix(X, copy=False)
        elif not isinstance(X, np.ndarray):
            X = np.asarray(X)
        if X.ndim != 2:
            raise ValueError(
                f"Expected a table of rows, got an array of {X.ndim} dimensions."
            )
        if y is not None:
            _validate.same_length("as many labels as rows", np.shape(y)[0], X.shape[0])
        self._X, self._y = X, None if y is None else np.asarray(y)
        self._norms: FloatArray | None = None
        self.run_cache: dict[object, Any] = {}

    def __len__(self) -> int:
        return int(self._X.shape[0])

    def take(self, index: Index) -> Taken:
        """Return rows and labels."""
        if self._table is None:
            self._table = self._rounded()
        if index is None:
            return Taken(self._table, self._y)
        labels = None if self._y is None else self._y[index]
        return Taken(_chosen(self._table, index), labels)

    def _rounded(self) -> Matrix:
        blank = unlabelled(self._y)
        if sparse.issparse(self._X) or self._X.size <= _MOST_KEPT:
            return rounded(self._X, blank)
        return RoundedRows(self._X, blank)

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
            rows = X if missing.size == len(known) else X[missing]
            known[missing] = lattice_norms(rows)
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
        self._pair = _frozen(inputs), _frozen(targets)
        self._device = device
        sizes = {len(tensor) for side in self._pair for tensor in _tuple(side)}
        _validate.same_length("as many targets as inputs", *sizes)
        self._size = sizes.pop()

    def __len__(self) -> int:
        return self._size

    def take(self, index: Index) -> Taken:
        """Return inputs and targets on the device."""
        where = None if index is None else torch.from_numpy(index)

        def chosen(tensor: Tensor) -> Tensor:
            rows = tensor.detach() if where is None else tensor.detach()[where]
            return rows if self._device is None else rows.to(self._device)

        return Taken(*_each_of(self._pair, chosen))

    def parts(self) -> tuple[Any, ...]:
        """Return all tensors, and how they lie in memory."""
        strides = [tensor.stride() for side in self._pair for tensor in _tuple(side)]
        single = [isinstance(side, Tensor) for side in self._pair]
        return self._pair, single, strides

    def zeros(self) -> tuple[Any, Any]:
        """Return two examples of zeros, from shapes and types: no row is read."""

        def two(tensor: Tensor) -> Tensor:
            device = tensor.device if self._device is None else self._device
            return torch.zeros(2, *tensor.shape[1:], dtype=tensor.dtype, device=device)

        return _each_of(self._pair, two)


class DatasetRows:
    """Examples of a map-style dataset: ``dataset[i]`` is an input and a target.

    Parameters
    ----------
    dataset : object with ``__getitem__`` and ``__len__``
        An example that cannot be read, or is not like ``example``, is a blank: it keeps
        its place and adds nothing.
    example : pair
        Input and target of public knowledge, whose shapes and types all others have;
        its values do not matter.
    """

    def __init__(self, dataset: Any, example: Any, *, device: Any = None) -> None:
        self._dataset, self._device = dataset, device
        like = _collated(example)
        if like is None:
            raise ValueError(
                "Expected an example (input, target) of tensors, arrays or numbers, "
                f"got {type(example).__name__}; give one of zeros in the shapes and "
                "types of the real ones. Nothing was spent."
            )
        self._blank = _each_of(like, torch.zeros_like)

    def __len__(self) -> int:
        """Return the number of examples now; a change is refused by the gate."""
        return len(self._dataset)

    def take(self, index: Index) -> Taken:
        """Read the examples and put them together, zeros where one is blank."""
        numbers = range(len(self)) if index is None else index.tolist()
        found = [self.read(number) for number in numbers]
        examples = [self._blank if one is None else one for one in found]
        none = _each_of(self._blank, lambda one: one[:0])
        inputs, targets = _joined([none, *examples])
        blank = torch.tensor([one is None for one in found], dtype=torch.bool)
        source = TensorRows(inputs, targets, device=self._device)
        return source.take(None)._replace(blank=blank)

    def read(self, number: int) -> Any:
        """Return one example as a batch of one, or None if it is a blank."""
        try:
            example = _collated(self._dataset[number])
            if example is None or _kinds(example) != _kinds(self._blank):
                return None
            return _each_of(example, Tensor.detach)
        except Exception:  # whatever a row's reading raises would tell of it
            return None

    def parts(self) -> None:
        """Return None: what a dataset will give next time is not known."""

    def zeros(self) -> tuple[Any, Any]:
        """Return two examples of zeros; none is read."""
        return TensorRows(*self._blank, device=self._device).zeros()


ExampleSource = TensorRows | DatasetRows
"""Rows for a module, whose shapes can be had without their values."""

HeldSource = ArrayRows | CodedRows | FeatureRows | ExampleSource
"""Rows that are handed out by number."""

RowSource = HeldSource | RowBlocks


def _collated(example: Any) -> tuple[Any, Any] | None:
    """Return an example as a batch of one, or None if it is no pair of numbers."""
    if not isinstance(example, tuple | list) or len(example) != 2:
        return None
    try:
        inputs, targets = default_collate([tuple(example)])
        found = _frozen(inputs), _frozen(targets)
        _tuple(found[0]), _tuple(found[1])
    except (TypeError, ValueError, RuntimeError):
        return None
    return found


def _each_of(
    pair: tuple[Any, Any], change: Callable[[Tensor], Tensor]
) -> tuple[Any, Any]:
    first, second = (
        tuple(map(change, side)) if isinstance(side, tuple) else change(side)
        for side in pair
    )
    return first, second


def _kinds(pair: tuple[Any, Any]) -> list[list[Any]]:
    """Return what the tensors of all examples have in common, their values apart."""
    return [
        [(type(t), t.shape, t.dtype, t.layout, t.device) for t in _tuple(side)]
        for side in pair
    ]


def _joined(examples: list[tuple[Any, Any]]) -> tuple[Any, ...]:
    sides = zip(*examples, strict=True)
    return tuple(
        tuple(map(torch.cat, zip(*side, strict=True)))
        if isinstance(side[0], tuple)
        else torch.cat(side)
        for side in sides
    )


def _chosen(X: Matrix, index: NDArray[np.int64]) -> Matrix:
    """Return rows by number; whole rows at once where they lie whole in memory."""
    if isinstance(X, RoundedRows):
        blank = None if X.blank is None else X.blank[index]
        return rounded(_chosen(X.X, index), blank)
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
    return tuple(collated) if isinstance(collated, list) else collated
