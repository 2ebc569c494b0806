# SPDX-License-Identifier: Apache-2.0
"""The exceptions of the package; bad arguments are plain ``ValueError``."""


class ArmijoError(Exception):
    """Anything the package refuses for a reason of its own."""


class BudgetExceeded(ArmijoError):
    """The next access does not fit into what is left; nothing was read or spent."""


class UnchargedAccess(ArmijoError):
    """Private rows were asked for something that was not paid for."""


class LedgerError(ArmijoError):
    """The ledger cannot be opened, trusted or written; nothing was spent."""


class Diverged(ArmijoError):
    """The weights of a run grew beyond all bounds; what was charged stays spent."""


class PrivacyLeakWarning(UserWarning):
    """Something private is taken from the data, or a budget is spent repeatedly."""


class ModelWarning(UserWarning):
    """Settings or released values give reason to doubt a model or its guarantee."""


class RechargeWarning(UserWarning):
    """Steps that a crash cut off cannot be redone as they were, and are paid again."""


class TableError(ArmijoError, ValueError):
    """A table, a schema or a model file is not what it has to be."""


class UnsupportedModule(ArmijoError, ValueError):
    """A module for which examples cannot be told apart; nothing was computed."""
