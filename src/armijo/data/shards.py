# SPDX-License-Identifier: Apache-2.0
"""Several processes train as one: the same start, and no row in two of them.

The main process's copy counts: its module is handed to the others before the first
step, and whatever would let them drift apart is refused.
A row that several processes hold counts several times in each sum, which no noise was
planned for.  A shard is known by the sum of keyed digests of its rows, which does not
depend on their order; the key is drawn for this one comparison.  Only equality of whole
shards is looked at: two people may have equal rows, so a refusal for a single one would
tell of them, and how many rows there are is not compared with anything.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor, nn

from armijo.data.coded import CodedRows
from armijo.data.distributed import ProcessGroup
from armijo.data.sources import ArrayRows, HeldSource, TensorRows

_BYTES = 16
_BLOCK = 4096  # rows that are copied at a time
SAMPLED = 64
"""So many examples of a map-style dataset are read; reading all may take hours."""


def broadcast_init(
    group: ProcessGroup,
    module: nn.Module,
    settings: Mapping[str, Any],
) -> None:
    """Give everybody the main process's parameters and buffers, frozen ones included.

    Settings that differ between processes are refused by name; paths may differ.
    """
    for name, value in settings.items():
        path = name in ("ledger", "checkpoint")
        group.assert_same(name, repr(value is not None if path else value))
    held = [*module.named_parameters(), *module.named_buffers()]
    shapes = [(name, tuple(one.shape), str(one.dtype)) for name, one in held]
    group.assert_same("module", repr(shapes))
    with torch.no_grad():
        for _, one in held:
            one.copy_(group.broadcast(one.detach, one))


def refuse_shards(group: ProcessGroup, source: HeldSource, dataset: Any = None) -> None:
    """Refuse no rows at all, and a shard that is also another process's."""
    key = group.broadcast_bytes(lambda: os.urandom(32))
    own = group.all_or_none(lambda: shard_digest(source, dataset, key))
    held = [digest for digest in _gathered(group, own) if any(digest)]
    if not held:
        raise ValueError("Expected at least one example, got none. Nothing was spent.")
    if len(set(held)) < len(held):
        raise ValueError(
            "Expected each process to hold its own share of the examples, got the same "
            "ones in two of them, which would count twice; give process r of N the "
            "rows r, r + N, r + 2N, ... Nothing was spent."
        )


def shard_digest(source: HeldSource, dataset: Any, key: bytes) -> bytes:
    """Return what tells a shard from others, whatever the order of its rows.

    All rows of tensors and tables; of a map-style dataset the indices of a ``Subset``
    and a sample of the examples.  Zeros for no rows.
    """
    if len(source) == 0:
        return bytes(_BYTES)
    if isinstance(source, TensorRows):
        return _added_up(_rows_of(_flat(source.parts()[0])), key)
    if isinstance(source, CodedRows | ArrayRows):
        return _added_up(_table_rows(source), key)
    indices = _indices(dataset, len(source))
    places = np.argsort(indices, kind="stable")
    chosen = np.linspace(0, len(places) - 1, min(SAMPLED, len(places))).astype(int)
    examples = (_example(source, int(place)) for place in places[chosen])
    parts = _added_up((b"%d" % i for i in indices), key), _added_up(examples, key)
    return blake2b(b"".join(parts), key=key, digest_size=_BYTES).digest()


def _indices(dataset: Any, length: int) -> NDArray[np.int64]:
    """Return the places of a ``Subset`` in what it is a part of, else 0, 1, 2, ..."""
    found = getattr(dataset, "indices", None)
    if found is None or not hasattr(dataset, "dataset") or len(found) != length:
        return np.arange(length)
    return np.asarray(found, dtype=np.int64).reshape(-1)


def _example(source: HeldSource, number: int) -> bytes:
    """Return the bytes of one example; one that cannot be read is like any such."""
    try:
        inputs, targets, _ = source.take(np.array([number]))
    except Exception:  # whatever code of a dataset raises must not stop one process
        return b"unreadable"
    return next(_rows_of(_flat((inputs, targets))))


def _flat(sides: Sequence[Any]) -> list[Tensor]:
    """Return the tensors of inputs and targets, each one or several, in one list."""
    return [
        one for side in sides for one in (side if isinstance(side, tuple) else (side,))
    ]


def _table_rows(source: CodedRows | ArrayRows) -> Iterator[bytes]:
    """Yield the bytes of each row of a table, stored zeros of a sparse one included."""
    parts = source.parts()
    X, y = parts[0], parts[1]
    if isinstance(source, CodedRows):
        return _rows_of([one for one in parts if one is not None])
    if not sparse.issparse(X):
        return _rows_of([X, y])
    return (
        X.indices[first:last].tobytes() + X.data[first:last].tobytes() + label.tobytes()
        for first, last, label in zip(X.indptr, X.indptr[1:], y, strict=False)
    )


def _rows_of(tensors: Sequence[Tensor | NDArray[Any]]) -> Iterator[bytes]:
    """Yield the bytes of each row, all tensors one after the other."""
    for start in range(0, len(tensors[0]), _BLOCK):
        blocks = [_as_bytes(one[start : start + _BLOCK]) for one in tensors]
        for parts in zip(*blocks, strict=True):
            yield b"".join(part.tobytes() for part in parts)


def _as_bytes(block: Tensor | NDArray[Any]) -> NDArray[np.uint8]:
    """Return a row of bytes for each row, also of types that NumPy does not know."""
    if not isinstance(block, Tensor):
        block = torch.from_numpy(np.array(block))  # a copy: rows may be read-only
    flat = block.detach().cpu().contiguous().reshape(len(block), -1)
    if flat.shape[1] == 0:
        return np.zeros((len(block), 0), dtype=np.uint8)
    return flat.view(torch.uint8).numpy()


def _added_up(rows: Iterator[bytes], key: bytes) -> bytes:
    """Return the sum of the keyed digests of all rows, itself under the key."""
    total = 0
    for row in rows:
        digest = blake2b(row, key=key, digest_size=_BYTES).digest()
        total += int.from_bytes(digest, "big")
    text = (total % 2 ** (8 * _BYTES)).to_bytes(_BYTES, "big")
    return blake2b(text, key=key, digest_size=_BYTES, person=b"shard").digest()


def _gathered(group: ProcessGroup, own: bytes) -> list[bytes]:
    """Return everybody's digest: each fills its own line of a sum over all."""
    lines = torch.zeros(group.size, _BYTES, dtype=torch.int64)
    lines[group.rank] = torch.tensor(list(own))
    return [bytes(line) for line in group.total(lines).tolist()]
