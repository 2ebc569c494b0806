# SPDX-License-Identifier: Apache-2.0
"""Published datasets, found or fetched, verified and encoded; and a generated one."""

from armijo_reproduction.datasets.base import Dataset, Entry, to_frame, to_schema
from armijo_reproduction.datasets.catalog import DATASETS
from armijo_reproduction.datasets.census import (
    generated_census,
    generated_census_frame,
    generated_census_schema,
)
from armijo_reproduction.datasets.folds import folds
from armijo_reproduction.datasets.registry import FileStatus, available, check, fetch, find, load

__all__ = [
    "DATASETS",
    "Dataset",
    "Entry",
    "FileStatus",
    "available",
    "check",
    "fetch",
    "find",
    "folds",
    "generated_census",
    "generated_census_frame",
    "generated_census_schema",
    "load",
    "to_frame",
    "to_schema",
]
