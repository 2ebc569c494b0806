# SPDX-License-Identifier: Apache-2.0
"""Objectives on one flat parameter vector, asked for bounded sums only."""

from armijo.objectives.base import Objective, QueryForm
from armijo.objectives.linear import LinearObjective

__all__ = ["LinearObjective", "Objective", "QueryForm"]
