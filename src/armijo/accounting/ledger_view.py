# SPDX-License-Identifier: Apache-2.0
"""A ledger as its readers see it: checked line by line, never written to."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from armijo.accounting.ledger_files import ledger_path, read_all
from armijo.accounting.ledger_lines import Charge, Closing, read_lines


@dataclass(frozen=True)
class LedgerView:
    """What a ledger file says, read without touching it.

    Parameters
    ----------
    header : mapping
        First line of the file: format, version, run and what the accountant gave.
    charges : tuple of Charge
        All charges in order; torn ones have the label ``"torn line"``.
    spent : tuple of float
        Sum of the costs per limit; empty before the first charge.
    torn : int
        How many torn lines there are, those included that cost nothing.
    head : str
        The chained checksum of the last charge, which depends on all lines before it.
    closing : Closing or None
        The last line, if it closes the ledger; None while a run is unfinished.
    """

    header: Mapping[str, object]
    charges: tuple[Charge, ...]
    spent: tuple[float, ...]
    torn: int
    head: str = ""
    closing: Closing | None = None


def read_ledger(path: str | os.PathLike[str]) -> LedgerView:
    """Read a ledger with all checks, without locking it or writing to it.

    A torn last line is counted as :meth:`Ledger.open` would count it. While another
    process is charging, its line in progress may look torn: the sum is then an
    upper bound.

    Parameters
    ----------
    path : path
        The file.

    Returns
    -------
    LedgerView
        Header, charges, their sum and the number of torn lines.

    Raises
    ------
    LedgerError
        There is no such file, or it is not a sound ledger.
    """
    name = ledger_path(path)
    header, book, _ = read_lines(name, read_all(name))
    charges, head = tuple(book.charges), book.head.decode("ascii")
    return LedgerView(header, charges, book.spent, book.torn, head, book.closing)
