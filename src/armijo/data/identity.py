# SPDX-License-Identifier: Apache-2.0
"""Whether two values are the same to the last bit, by what they put into a digest."""

import os
import platform
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from armijo.accounting.run_key import Digest

_BLOCK = 1 << 23  # bytes of a table that are in memory at a time
_PLAIN = (type(None), bool, int, float, str)
_THREADS = ("OMP_", "MKL_", "OPENBLAS_", "BLIS_", "ATEN_", "KMP_")


def update_digest(digest: Digest, value: Any) -> None:
    """Put a value into a digest; different values put in different bytes.

    Every part says its kind and length first.  Lists and tuples are the same, so are
    NumPy's numbers and Python's, since files do not tell them apart.

    >>> one, other = Digest(), Digest()
    >>> update_digest(one, ("ab", "c")), update_digest(other, ("a", "bc"))
    (None, None)
    >>> one.digest() == other.digest()
    False
    """
    if type(value) in _PLAIN:  # first, since most parts are such
        _mark(digest, value)
    elif isinstance(value, Tensor):
        _absorb_tensor(digest, value.detach().cpu())
    elif isinstance(value, np.ndarray):
        _absorb_array(digest, value)
    elif sparse.issparse(value):
        parts = (value.data, value.indices, value.indptr)
        update_digest(digest, (type(value).__name__, value.shape, *parts))
    elif is_dataclass(value) and not isinstance(value, type):
        named = {one.name: getattr(value, one.name) for one in fields(value)}
        update_digest(digest, (type(value).__qualname__, named))
    elif isinstance(value, Mapping):
        update_digest(digest, ("mapping", *value.items()))
    elif isinstance(value, tuple | list):
        _mark(digest, "sequence", len(value))
        for one in value:
            update_digest(digest, one)
    else:
        _mark(digest, value.item() if isinstance(value, np.generic) else value)


def _mark(digest: Digest, *words: object) -> None:
    """Put in words with their length; an object without a text of its own is unique."""
    text = repr(words).encode()
    digest.update(len(text).to_bytes(8, "little"))
    digest.update(text)


def _absorb_array(digest: Digest, array: NDArray[Any]) -> None:
    if array.dtype.hasobject:
        update_digest(digest, array.tolist())
        return
    _mark(digest, array.dtype.str, array.shape)
    flat = array.reshape(1) if array.ndim == 0 else array
    height = max(1, _BLOCK * max(len(flat), 1) // max(flat.nbytes, 1))
    for start in range(0, len(flat), height):
        block = flat[start : start + height]
        digest.update(block.tobytes())


def _absorb_tensor(digest: Digest, tensor: Tensor) -> None:
    _mark(digest, str(tensor.dtype), tuple(tensor.shape))
    if tensor.numel():
        flat = tensor.contiguous().reshape(-1).view(torch.uint8)
        _absorb_array(digest, flat.numpy())


def update_with_machine(digest: Digest) -> None:
    """Put in what may change the last bit of a sum: libraries, threads, processor."""
    from armijo import __version__

    settings = sorted(
        item for item in os.environ.items() if item[0].startswith(_THREADS)
    )
    found = (
        (__version__, np.__version__, scipy.__version__, torch.__version__),
        (platform.python_version(), platform.system(), platform.libc_ver()),
        (platform.node(), platform.machine(), platform.processor()),
        torch.backends.cpu.get_cpu_capability(),
        (torch.get_num_threads(), _usable_cpus()),
        (str(torch.get_default_dtype()), torch.get_float32_matmul_precision()),
        settings,
    )
    update_digest(digest, found)


def _usable_cpus() -> int | None:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()
