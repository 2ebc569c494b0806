# SPDX-License-Identifier: Apache-2.0
"""The gate: the only place that applies a function to private rows."""
