# SPDX-License-Identifier: Apache-2.0
"""The ledger: a charge is on disk before its noise is drawn, and stays there.

``append`` returns only after the line of a charge is written and synced; the
accountant lets data be touched after that and not before. Whatever happens next,
reopening the ledger counts at least what was spent, and nothing in this module ever
truncates, overwrites or rewrites a file: bytes are only added at the end. What no
file can tell is that complete lines are missing at its end, as in an old copy.

A run that redoes steps with its own key (:mod:`armijo.accounting.run_key`) rewinds its
ledger to where its checkpoint stands; charges that are in the file are then expected
again, in their order, and not written again.
"""

import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType, TracebackType
from typing import NoReturn, Self

from armijo.accounting.ledger_files import (
    acquire_lock,
    failure,
    identity,
    ledger_path,
    open_or_create,
    read,
    release,
    sync_folder,
    write,
)
from armijo.accounting.ledger_header import (
    OWN_KEYS,
    check_header,
    refuse_other_header,
    seal,
)
from armijo.accounting.ledger_lines import (
    Book,
    Charge,
    Closing,
    announce_payload,
    charge_payload,
    is_torn,
    read_lines,
)
from armijo.accounting.ledger_view import LedgerView, read_ledger
from armijo.accounting.one_owner import OneOwner
from armijo.errors import LedgerError

__all__ = [
    "Charge",
    "Closing",
    "Ledger",
    "LedgerView",
    "MemoryLedger",
    "close_ledger",
    "read_ledger",
]


class MemoryLedger(OneOwner):
    """A ledger that lasts as long as the process: same interface, no file.

    Examples
    --------
    >>> ledger = MemoryLedger()
    >>> ledger.append(Charge(ledger.next_index, "step 0", {}, (0.1, 0.2)))
    >>> ledger.append(Charge(ledger.next_index, "step 1", {}, (0.2, 0.2)))
    >>> ledger.spent
    (0.30000000000000004, 0.4)
    """

    def __init__(self) -> None:
        super().__init__()
        self._book = Book()
        self._finished = False

    @property
    def charges(self) -> Sequence[Charge]:
        """All charges in order, as a copy."""
        return tuple(self._book.charges)

    @property
    def spent(self) -> tuple[float, ...]:
        """Costs added up per limit as ``math.fsum`` does; () before the first charge.

        The sum is exactly rounded, hence the same however often a run was
        interrupted and its ledger reopened. Reading it does not visit the charges.
        """
        return self._book.spent

    @property
    def next_index(self) -> int:
        """The index that the next charge must have."""
        return len(self._book.charges)

    def append(self, charge: Charge) -> None:
        """Count a charge; raise before anything is counted if it cannot be one."""
        self.refuse_in_child()
        self._refuse_finished()
        self._book.check(charge)
        charge_payload(charge)  # what works in memory must work with a file
        self._book.count(charge)

    def finish(self, digests: Mapping[str, str]) -> None:
        """Say that the run ended, and what it left; no charge is taken after that.

        Parameters
        ----------
        digests : mapping of str to str
            SHA-256 of released files and parameters, by name.
        """
        self._book.closing = Closing(self.next_index, dict(digests))
        self._finished = True

    def _refuse_finished(self) -> None:
        """Refuse a charge of a run that has ended."""
        if self._finished:
            raise LedgerError(
                "The ledger takes no charge: its run has ended and it was closed; "
                "nothing was spent by this call. A further run on what is left of the "
                "budget opens the ledger again, with the same settings."
            )

    def close(self) -> None:
        """Do nothing: there is no file."""

    def __enter__(self) -> Self:
        """Return the ledger itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the ledger."""
        self.close()


class Ledger(MemoryLedger):
    """A ledger in a file, held by one process at a time; see :meth:`open`.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = os.path.join(folder.name, "run.ledger")
    >>> with Ledger.open(path, header={"epsilon": 1.0}) as ledger:
    ...     ledger.append(Charge(0, "step 0", {"name": "Gaussian"}, (0.5,)))
    >>> with Ledger.open(path, header={"epsilon": 1.0}) as ledger:
    ...     ledger.append(Charge(1, "step 1", {"name": "Gaussian"}, (0.25,)))
    ...     ledger.spent
    (0.75,)
    >>> folder.cleanup()
    """

    def __init__(self, path: str, header: Mapping[str, object]) -> None:
        super().__init__()
        self.path = path
        self._failed: str | None = None
        self._key = ""
        self._paid: list[Charge] = []
        self._mutex = threading.RLock()
        lock = acquire_lock(path)
        try:
            self._fd = open_or_create(path, header)
        except BaseException:
            lock.release()
            raise
        self._finalizer = weakref.finalize(self, release, self._fd, lock, os.getpid())
        try:
            self._load(header)
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, header: Mapping[str, object]
    ) -> "Ledger":
        """Begin a ledger, or go on with an existing one after checking all of it.

        Parameters
        ----------
        path : path
            The file; its folder must exist. ``path + ".lock"`` is created beside it
            and held until :meth:`close`, the end of the object or of the process.
        header : mapping
            Public JSON that identifies the run: budget, relation, accountant,
            orders, limits, flags of the guarantee. It must be the same on reopening.

        Returns
        -------
        Ledger
            With every charge of the file counted, a torn last line included at the
            highest cost that was announced before it.

        Raises
        ------
        LedgerError
            The file is not a ledger, of another run or version, damaged, in use, or
            cannot be written. It is left as it is and nothing is spent.
        ValueError
            The header is not public JSON or uses a key of the ledger itself.
        """
        check_header(header)
        return cls(ledger_path(path), header)

    def _load(self, header: Mapping[str, object]) -> None:
        """Count what the file holds and mend its end."""
        try:
            data = read(self._fd)
            stored, self._book, repair = read_lines(self.path, data)
            refuse_other_header(self.path, stored, header)
            if repair:
                write(self._fd, repair)
            # Also without a repair: the last line may have been written by a process
            # that was killed before its fsync, and from here on it counts as spent.
            os.fsync(self._fd)
            sync_folder(self.path)
            self._identity = identity(os.fstat(self._fd))
        except OSError as error:
            raise failure("open", self.path, error) from error
        self.header: Mapping[str, object] = MappingProxyType(stored)

    @property
    def head(self) -> str:
        """The chained checksum of the last charge: the end of this very file."""
        return self._book.head.decode("ascii")

    def use_key(self, name: str) -> None:
        """Write the name of a run key into every charge from here on."""
        self._key = name

    def rewind(self, index: int) -> None:
        """Expect the charges from an index on again: paid by this run, not yet used.

        The file stays as it is; sums and :attr:`next_index` go back. A torn line at
        the end is written anew by the charge that it was to be.

        Raises
        ------
        LedgerError
            The file holds fewer charges, or one of them is not of the key in use.
        """
        later = self._book.charges[index:]
        whole = [one for one in later if not is_torn(one)]
        foreign = [one.index for one in whole if not one.key or one.key != self._key]
        if index > self.next_index or foreign or whole != later[: len(whole)]:
            raise LedgerError(
                f"The ledger {self.path} cannot go back to charge {index} of "
                f"{self.next_index}: later ones are missing or of another run "
                f"({foreign[:1]}); nothing was spent."
            )
        self._paid = self._book.rewind(index)

    def append(self, charge: Charge) -> None:
        """Write a charge and return once it is on disk; only then may data be read.

        Parameters
        ----------
        charge : Charge
            Its index must be :attr:`next_index`.

        Raises
        ------
        LedgerError
            The line could not be written: nothing was spent by this call, and the
            object refuses further charges until the ledger is opened again.
        """
        if os.getpid() != self._process:  # before the mutex, which may be held there
            self._refuse("it belongs to the parent of this process")
        if self._key:
            charge = replace(charge, key=self._key)
        with self._mutex:
            payload = charge_payload(charge)
            self._check_file()
            self._refuse_finished()
            self._book.check(charge)
            if self._paid and not is_torn(self._paid[0]):
                self._refuse_another(payload)
                self._book.count(self._paid.pop(0))
                return
            # Set before the write and lifted after it, so that an interrupt at any
            # instant in between leaves an object that refuses to go on.
            self._failed = "an earlier append did not finish"
            try:
                ceiling = self._book.raised(charge.cost)
                if ceiling is not None:
                    self._write_line(announce_payload(ceiling))
                    self._book.ceiling = ceiling
                if self._paid:  # what is left of it was torn
                    payload = charge_payload(charge, "mended")
                self._write_line(payload)
            except OSError as error:
                raise failure("write to", self.path, error) from error
            self._paid.clear()
            self._book.count(charge)
            self._book.head, self._book.closing = self._book.chain, None
            self._failed = None

    def finish(self, digests: Mapping[str, str]) -> None:
        """Write the closing line, unless it is there, and return once it is on disk.

        Raises
        ------
        LedgerError
            The line could not be written; the run is whole, but not closed.
        """
        with self._mutex:
            while self._paid and not is_torn(self._paid[0]):
                self._book.count(self._paid.pop(0))
            closing = Closing(self.next_index, dict(digests))
            if closing != self._book.closing:
                self._check_file()
                try:
                    self._write_line(closing.payload())
                except OSError as error:
                    self._failed = "its closing line was not written"
                    raise failure("close", self.path, error) from error
            self._paid.clear()
            self._book.closing, self._finished = closing, True

    def _write_line(self, payload: bytes) -> None:
        """Write and sync one sealed line."""
        line, chain = seal(self._book.chain, payload)
        write(self._fd, line + b"\n")
        os.fsync(self._fd)
        self._book.chain = chain
        device, inode, size = self._identity
        self._identity = device, inode, size + len(line) + 1

    def _refuse_another(self, payload: bytes) -> None:
        """Refuse a charge that is not the one that was paid at its place."""
        if charge_payload(self._paid[0]) != payload:
            raise LedgerError(
                f"Charge {self._paid[0].index} of the ledger {self.path} paid for "
                "something else than what the redone step asks for; nothing was "
                "released or spent. Remove the key of the run and resume: the steps "
                "after the checkpoint are then charged again."
            )

    def _refuse(self, found: str) -> NoReturn:
        """Refuse a charge because of the state of this object."""
        raise LedgerError(
            f"The ledger {self.path} takes no charge: {found}; nothing was spent by "
            "this call. Open it again with Ledger.open, in one process only."
        )

    def _check_file(self) -> None:
        """Refuse a closed or failed object, and a file that is not the one checked."""
        if not self._finalizer.alive:
            self._refuse("it was closed")
        if self._failed is not None:
            self._refuse(self._failed)
        try:
            found = identity(os.stat(self.path))
        except OSError as error:
            raise failure("find", self.path, error) from error
        if found != self._identity:
            raise LedgerError(
                f"The ledger {self.path} was replaced or changed by someone else "
                f"while it was open (size {found[2]}, expected {self._identity[2]}); "
                "nothing was spent by this call. Find out who writes to it, then open "
                "it again."
            )

    def close(self) -> None:
        """Close the file and free it for other processes; charges stay readable."""
        if os.getpid() == self._process:
            with self._mutex:  # an append of another thread ends first
                self._finalizer()


def close_ledger(path: str | os.PathLike[str], digests: Mapping[str, str]) -> None:
    """Close a ledger again, with the digests of more files that its run left.

    Parameters
    ----------
    path : path
        The file; its last line closes a run.
    digests : mapping of str to str
        SHA-256 of the files, by name; those of the line before stay.

    Raises
    ------
    LedgerError
        It is not a sound ledger, or cannot be written.
    """
    view = read_ledger(path)
    known = view.closing.digests if view.closing else {}
    header = {key: one for key, one in view.header.items() if key not in OWN_KEYS}
    with Ledger.open(path, header=header) as ledger:
        ledger.finish({**known, **digests})
