# SPDX-License-Identifier: Apache-2.0
"""What must exist once: the sums of a budget belong to one object in one process.

A copy, or the copy that a forked child inherits, would have the whole rest of the
budget to itself, and two such rests are more than was promised.
"""

import os
from typing import NoReturn

from armijo.errors import LedgerError


class OneOwner:
    """Base of what can be neither copied nor used in a forked child.

    Examples
    --------
    >>> import copy
    >>> copy.copy(OneOwner())
    Traceback (most recent call last):
    ...
    TypeError: A OneOwner cannot be copied or pickled, since ...
    """

    def __init__(self) -> None:
        self._process = os.getpid()

    def refuse_in_child(self) -> None:
        """Refuse to charge in another process than the one that made this object."""
        if os.getpid() != self._process:
            raise LedgerError(
                f"This {type(self).__name__} belongs to process {self._process} and "
                f"was asked to charge in process {os.getpid()}, a child of it; both "
                "would spend the same budget. Nothing was spent by this request. Make "
                "it in the process that charges."
            )

    def __reduce__(self) -> NoReturn:
        """Refuse copies and pickles."""
        raise TypeError(
            f"A {type(self).__name__} cannot be copied or pickled, since a copy would "
            "spend the same budget again; make one for each run, with a budget of its "
            "own."
        )
