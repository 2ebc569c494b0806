# SPDX-License-Identifier: Apache-2.0
"""Sensitive tables, their public schemas, and models in files that are safe to load."""

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
from armijo.tables.model_file import LinearModel, load_model, save_model
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
    "LinearModel",
    "Numeric",
    "Person",
    "Schema",
    "Target",
    "category_text",
    "draft_schema",
    "encode",
    "load_model",
    "load_schema",
    "read_table",
    "save_model",
]
