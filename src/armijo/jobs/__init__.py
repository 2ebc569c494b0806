# SPDX-License-Identifier: Apache-2.0
"""Whole jobs on files: fit a table, write its report, predict, demonstrate."""
