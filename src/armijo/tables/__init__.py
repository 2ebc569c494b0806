# SPDX-License-Identifier: Apache-2.0
"""Sensitive tables, their public schemas, and models in files that are safe to load."""

from armijo.tables.columns import (
    Categorical,
    Column,
    Ignore,
    Label,
    Numeric,
    category_text,
)
from armijo.tables.draft import draft_schema, round_bounds
from armijo.tables.model_file import LinearModel, load_model, save_model
from armijo.tables.reader import ROW_BORDERS, read_table
from armijo.tables.schema import Schema, encode, load_schema

__all__ = [
    "ROW_BORDERS",
    "Categorical",
    "Column",
    "Ignore",
    "Label",
    "LinearModel",
    "Numeric",
    "Schema",
    "category_text",
    "draft_schema",
    "encode",
    "load_model",
    "load_schema",
    "read_table",
    "round_bounds",
    "save_model",
]
