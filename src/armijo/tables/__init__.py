# SPDX-License-Identifier: Apache-2.0
"""Sensitive tables and their public schemas."""

from armijo.tables.cells import category_text
from armijo.tables.columns import (
    Boolean,
    Categorical,
    Column,
    Date,
    Ignore,
    Label,
    Numeric,
    Person,
    Target,
)
from armijo.tables.draft import draft_schema
from armijo.tables.linear import encode
from armijo.tables.reader import ROW_BORDERS, read_table
from armijo.tables.schema import Schema, load_schema

__all__ = [
    "ROW_BORDERS",
    "Boolean",
    "Categorical",
    "Column",
    "Date",
    "Ignore",
    "Label",
    "Numeric",
    "Person",
    "Schema",
    "Target",
    "category_text",
    "draft_schema",
    "encode",
    "load_schema",
    "read_table",
]
