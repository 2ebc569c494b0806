# SPDX-License-Identifier: Apache-2.0
"""Published datasets, found or fetched, verified and encoded; and a generated one."""

from armijo_reproduction.datasets.catalog import DATASETS, Dataset, Entry
from armijo_reproduction.datasets.files import DataFile, DatasetError
from armijo_reproduction.datasets.folds import folds
from armijo_reproduction.datasets.registry import (
    FileStatus,
    available,
    check,
    fetch,
    find,
    load,
)

__all__ = [
    "DATASETS",
    "DataFile",
    "Dataset",
    "DatasetError",
    "Entry",
    "FileStatus",
    "available",
    "check",
    "fetch",
    "find",
    "folds",
    "load",
]
