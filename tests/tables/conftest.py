# SPDX-License-Identifier: Apache-2.0
"""A small census table and its schema."""

from tests.tables.small_census import frame, schema

__all__ = ["frame", "schema"]
