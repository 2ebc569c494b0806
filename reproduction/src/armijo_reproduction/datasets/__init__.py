# SPDX-License-Identifier: Apache-2.0
"""Published datasets, found or fetched, verified and encoded; and a generated one."""

from armijo_reproduction.datasets.catalog import (
    DATASETS,
    Dataset,
    available,
    check,
    fetch,
    find,
    folds,
    load,
)
from armijo_reproduction.datasets.files import DataFile, DatasetError

__all__ = [
    "DATASETS",
    "DataFile",
    "Dataset",
    "DatasetError",
    "available",
    "check",
    "fetch",
    "find",
    "folds",
    "load",
]
