# SPDX-License-Identifier: Apache-2.0
"""Step size selection on an open batch."""

from armijo.search.armijo import ArmijoSearch, StepChoice

__all__ = ["ArmijoSearch", "StepChoice"]
