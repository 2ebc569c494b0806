# SPDX-License-Identifier: Apache-2.0
"""Warnings about what leaks in spite of the guarantee of one fit."""

import sys
import warnings

from armijo.errors import PrivacyLeakWarning


def warn_of_leaks(*, classes_read: bool, accounting: str, leaky: bool) -> None:
    """Warn about leaks that the settings, or the caller, bring with them."""
    if classes_read:
        _warn(
            "The classes were read from the labels, which is not private; pass "
            "classes= from public knowledge."
        )
    if accounting == "paper":
        _warn(
            "accounting='paper' reproduces the printed analysis and gives no valid "
            "guarantee; see privacy_.guarantee.broken_premises."
        )
    if leaky:
        _warn(
            "leaky_diagnostics=True records exact values of the rows: there is no "
            "guarantee. Use it on public or generated rows only."
        )
    if inside_model_selection():
        _warn(
            "A search or cross-validation spends the whole budget once per fit on "
            "overlapping rows, and choosing by its scores is not private; epsilon of "
            "one fit does not cover it."
        )


def _warn(message: str) -> None:
    warnings.warn(message, PrivacyLeakWarning, stacklevel=5)


def inside_model_selection() -> bool:
    """Say whether this fit was called by scikit-learn's model selection."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "sklearn.model_selection._validation":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
