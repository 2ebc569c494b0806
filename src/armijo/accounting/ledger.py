# SPDX-License-Identifier: Apache-2.0
"""The ledger: a charge is on disk before its noise is drawn, and stays there.

A ledger is ASCII text, one JSON object per line, the last key of each being ``chain``,
a checksum of the line and of the chain before it: a header, a :class:`Charge` each, and
where a run ended a :class:`Closing`.  The format and the threat model, that of SQLite,
are in docs/ledger.md.  ``append`` returns only after the line of a charge is synced,
and the accountant lets data be touched after that and not before.  A crash can
therefore tear the last line and no other, and a torn line is a charge whose noise was
never drawn: it costs nothing, and is cut off when the ledger is opened again.

A run that redoes steps with its own key (:mod:`armijo.training.replay`) rewinds its
ledger to where its checkpoint stands; charges that are in the file are then expected
again, in their order, and not written again.
"""

import json
import math
import os
import re
import stat
import threading
import uuid
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from types import MappingProxyType
from typing import Any, NoReturn, Self

from filelock import FileLock, Timeout

from armijo import _validate
from armijo._files import BINARY, create_whole, sync_folder, write_all
from armijo.errors import ArmijoError, LedgerError

__all__ = [
    "Charge",
    "Closing",
    "Ledger",
    "LedgerView",
    "MemoryLedger",
    "close_ledger",
    "read_ledger",
]

VERSION = 3
MAGIC = b'{"format":"armijo-ledger","version":'
OWN_KEYS = ("format", "version", "run", "created", "created_by", "chain")
"""Keys of the header that the ledger itself writes; another run may differ in them."""

_CHAIN_DIGITS = 16
_CHAIN_KEY = b',"chain":"'
_CHAIN_BYTES = len(_CHAIN_KEY) + _CHAIN_DIGITS + len(b'"}')
_SHA256 = re.compile("[0-9a-f]{64}")
_SENSELESS = (ValueError, TypeError, ArithmeticError, RecursionError, ArmijoError)
_UNIT_BITS = 1074  # every finite double is a whole multiple of 2**-1074


@dataclass(frozen=True)
class Charge:
    """One line of a ledger: what was about to be done, and its price.

    Parameters
    ----------
    index : int
        Position among the charges of the run: 0, 1, 2, ...
    label : str
        Public name of the access, for reports.
    mechanism : mapping
        Public JSON description of the mechanism.
    cost : tuple of float
        What it costs, one number per limit of the accountant; finite, not negative.
    key : str
        Public name of the run key that its noise comes from; empty for the system's
        noise. Two runs that did the same are equal whatever their keys.

    Examples
    --------
    >>> Charge(0, "step 0", {"name": "Gaussian", "noise_scale": 2.0}, (0.125,)).cost
    (0.125,)
    """

    index: int
    label: str
    mechanism: Mapping[str, object]
    cost: tuple[float, ...]
    key: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        _validate.at_least(0, index=self.index)
        object.__setattr__(self, "index", int(self.index))
        for name, kind in (("label", str), ("key", str), ("mechanism", Mapping)):
            value = getattr(self, name)
            if not isinstance(value, kind):
                word = "string" if kind is str else "mapping"
                raise ValueError(
                    f"Expected {name} to be a {word}, got {value!r}; give the public "
                    "name or description."
                )
        cost = self.cost
        if not isinstance(cost, tuple | list) or not cost:
            raise ValueError(
                f"Expected cost to be a tuple with one number per limit, got {cost!r}; "
                "give at least one number."
            )
        if not all(type(number) is float and 0 <= number < math.inf for number in cost):
            for place, number in enumerate(cost):
                _validate.non_negative(**{f"cost[{place}]": number})
        object.__setattr__(self, "cost", tuple(map(float, cost)))

    def payload(self) -> bytes:
        """Return the line, yet without its chain."""
        record = {"kind": "charge", **vars(self)}
        if not self.key:
            del record["key"]
        return _encode("charge", record)


@dataclass(frozen=True)
class Closing:
    """The last line of a finished run: how many charges there are, and what it left.

    Parameters
    ----------
    charges : int
        Number of charges in the ledger, those of earlier runs included.
    digests : mapping of str to str
        SHA-256 (64 hexadecimal digits) of each released file by its name, and of the
        released parameters under ``"parameters"``.
    """

    charges: int
    digests: Mapping[str, str]

    def __post_init__(self) -> None:
        _validate.at_least(0, charges=self.charges)
        if not isinstance(self.digests, Mapping):
            raise ValueError(f"Expected digests by name, got {self.digests!r}.")
        for name, value in self.digests.items():
            if not isinstance(value, str) or not _SHA256.fullmatch(value):
                raise ValueError(
                    f"Expected the SHA-256 of {name} as 64 digits, got {value!r}."
                )

    def payload(self) -> bytes:
        """Return the line, yet without its chain."""
        return _encode("closing line", {"kind": "closed", **vars(self)})


def _plain(value: object) -> object:
    if isinstance(value, Mapping):  # a read-only one, written like a dictionary
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


# json writes floats with repr, so they come back as the same floats.
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=_plain)
_DECODER = json.JSONDecoder()


def _encode(name: str, value: object) -> bytes:
    try:
        return _ENCODER.encode(value).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"Expected {name} to be public JSON (finite numbers, strings, lists, "
            f"mappings), got {value!r}: {error}; describe it with plain values."
        ) from error


def seal(previous: bytes, payload: bytes) -> tuple[bytes, bytes]:
    """Return the finished line, without its newline, and its chain.

    The chain guards against accidents (a flipped bit, a lost, doubled or swapped
    line), not against someone who computes it anew.
    """
    chain = sha256(previous + payload).hexdigest()[:_CHAIN_DIGITS].encode("ascii")
    return payload[:-1] + _CHAIN_KEY + chain + b'"}', chain


def _unseal(previous: bytes, line: bytes) -> tuple[bytes, bytes] | None:
    """Return payload and chain of a line that follows on ``previous``, else None."""
    payload = line[:-_CHAIN_BYTES] + b"}"
    sealed, chain = seal(previous, payload)
    return (payload, chain) if sealed == line else None


class OneOwner:
    """Base of what can be neither copied nor used in a forked child.

    A copy, or the copy that a forked child inherits, would have the whole rest of the
    budget to itself, and two such rests are more than was guaranteed.
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
        raise TypeError(
            f"A {type(self).__name__} cannot be copied or pickled, since a copy would "
            "spend the same budget again; make one for each run, with a budget of its "
            "own."
        )


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
        self._charges: list[Charge] = []
        self._units: list[int] = []
        self._chain = self._head = b""  # of the last line, and of the last charge
        self._closing: Closing | None = None
        self._finished = False

    @property
    def charges(self) -> Sequence[Charge]:
        """All charges in order, as a copy."""
        return tuple(self._charges)

    @property
    def spent(self) -> tuple[float, ...]:
        """Costs added up per limit as ``math.fsum`` does; () before the first charge.

        The sum is exactly rounded, hence the same however often a run was
        interrupted and its ledger reopened. Reading it does not visit the charges.
        """
        try:
            return tuple(units / (1 << _UNIT_BITS) for units in self._units)
        except OverflowError:
            return (math.inf,) * len(self._units)

    @property
    def next_index(self) -> int:
        """The index that the next charge must have."""
        return len(self._charges)

    @property
    def head(self) -> str:
        """The chained checksum of the last charge: the end of a very file."""
        return self._head.decode("ascii")

    def append(self, charge: Charge) -> None:
        """Count a charge; raise before anything is counted if it cannot be one."""
        self.refuse_in_child()
        self._check(charge)
        charge.payload()  # what works in memory must work with a file
        self._count(charge)

    def finish(self, digests: Mapping[str, str]) -> None:
        """Say that the run ended, and what it left; no charge is taken after that.

        Parameters
        ----------
        digests : mapping of str to str
            SHA-256 of released files and parameters, by name.
        """
        self._closing = Closing(self.next_index, dict(digests))
        self._finished = True

    def _check(self, charge: Charge) -> None:
        """Refuse a charge that is out of turn or has another number of limits."""
        if self._finished:
            raise LedgerError(
                "The ledger takes no charge: its run has ended and it was closed; "
                "nothing was spent by this call. A further run on what is left of the "
                "budget opens the ledger again, with the same settings."
            )
        if charge.index != self.next_index:
            raise LedgerError(
                f"Charge {charge.label!r} has index {charge.index}, the ledger "
                f"expects {self.next_index}; nothing was written or spent. Number "
                "charges by next_index, and do not share one ledger between runs."
            )
        width = len(self._units)
        if width and len(charge.cost) != width:
            raise ValueError(
                f"Expected cost to have {width} numbers, one per limit, got "
                f"{charge.cost!r}; charge with the accountant that began the ledger."
            )

    def _count(self, charge: Charge) -> None:
        if not self._units:
            self._units = [0] * len(charge.cost)
        for place, number in enumerate(charge.cost):
            numerator, denominator = number.as_integer_ratio()
            shift = _UNIT_BITS + 1 - denominator.bit_length()
            self._units[place] += numerator << shift
        self._charges.append(charge)

    def _replay(self, payload: bytes, chain: bytes) -> None:
        """Take in one sealed line, or raise ValueError where it cannot stand here."""
        record: dict[str, Any] = _DECODER.decode(payload.decode("ascii"))
        closing = None
        match record:
            case {"kind": "charge", **values}:
                charge = Charge(**values)
                self._check(charge)
                self._count(charge)
                self._head = chain
            case {"kind": "closed", "charges": charges, "digests": digests}:
                closing = Closing(charges, digests)
                if closing.charges != self.next_index:
                    raise ValueError(
                        f"a closing line that counts {closing.charges} charges after "
                        f"{self.next_index}"
                    )
            case _:
                raise ValueError("an unknown kind of line")
        self._chain, self._closing = chain, closing

    def close(self) -> None:
        """Do nothing: there is no file."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def read_lines(
    path: str, data: bytes, ledger: MemoryLedger
) -> tuple[dict[str, Any], int]:
    """Count all lines into a ledger; return the header and how many bytes are whole.

    A last line without its newline is torn, unless its checksum is right. A crash
    leaves no other damage, so everything else is refused.
    """
    first, *lines = data.split(b"\n")
    header, ledger._chain = _read_header(path, first, cut=not lines)
    ledger._head = ledger._chain
    for number, line in enumerate(lines, start=2):
        opened = _unseal(ledger._chain, line)
        if opened is None and number > len(lines):
            _refuse_unless_torn(path, number, line)
            return header, len(data) - len(line)
        if opened is None:
            _damaged(path, number, "does not follow from the line before it")
        try:
            ledger._replay(*opened)
        except _SENSELESS as why:
            _damaged(path, number, f"is out of place ({why})")
    return header, len(data)


def _refuse_unless_torn(path: str, number: int, line: bytes) -> None:
    """Refuse a last line that was written to its end and changed later.

    A torn line lacks its end, so it does not begin with a complete JSON value.
    """
    try:
        _DECODER.raw_decode(line.decode("latin-1"))
    except json.JSONDecodeError:
        return
    except (ValueError, RecursionError):
        _damaged(path, number, "is not what a ledger writes")
    _damaged(path, number, "is complete but does not follow from the line before it")


def _read_header(path: str, line: bytes, *, cut: bool) -> tuple[dict[str, Any], bytes]:
    """Return the header and its chain, or say why the file is no ledger of ours."""
    if cut and line.startswith(MAGIC[: len(line)]) and _json_object(line) is None:
        state = "is cut inside its first line" if line else "is empty"
        raise LedgerError(
            f"The ledger {path} {state}: it holds no charge and cannot be continued; "
            "it was left as it is. Move it away or choose another path."
        )
    if not line.startswith(MAGIC):
        raise LedgerError(
            f"The file {path} is not a ledger: it begins with {line[:24]!r}; it was "
            "left as it is and nothing was spent. Choose another path."
        )
    header = _json_object(line)
    if header is None:
        _damaged(path, 1, "is not JSON")
    if header["version"] != VERSION:
        raise LedgerError(
            f"The ledger {path} has version {header['version']!r}, this release of "
            f"armijo writes version {VERSION}; it was left as it is and nothing was "
            "spent. Verify and continue it with the release that began it (version 1: "
            "armijo 0.1), or begin a new one."
        )
    opened = _unseal(b"", line)
    if opened is None or not isinstance(header.get("run"), str):
        _damaged(path, 1, "does not match its checksum")
    del header["chain"]
    return header, opened[1]


def _json_object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _damaged(path: str, number: int, what: str) -> NoReturn:
    raise LedgerError(
        f"The ledger {path} is damaged: line {number} {what}. A line was changed, "
        "lost, doubled or moved, so what was spent is unknown; the file was left as "
        "it is and nothing was spent. Restore it from a copy, or take the whole "
        "budget for spent and begin a new run."
    )


def _new_header(header: Mapping[str, object]) -> bytes:
    from armijo import __version__

    own = {
        "format": "armijo-ledger",
        "version": VERSION,
        "run": uuid.uuid4().hex,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "created_by": f"armijo {__version__}",
    }
    return seal(b"", _encode("header", {**own, **header}))[0] + b"\n"


def refuse_other_header(
    path: str, stored: Mapping[str, object], header: Mapping[str, object]
) -> None:
    """Refuse a ledger whose header differs from that of this run."""
    wanted = json.loads(_encode("header", header))
    for key in [*wanted, *(key for key in stored if key not in OWN_KEYS)]:
        found, asked = stored.get(key, "absent"), wanted.get(key, "absent")
        if found != asked or (key in stored) != (key in wanted):
            raise LedgerError(
                f"The ledger {path} is a ledger of another run: {key} is {found!r} in "
                f"the file and {asked!r} in this run; it was left as it is and "
                "nothing was spent. Run with the settings it was begun with, or "
                "choose another path."
            )


@dataclass(frozen=True)
class LedgerView:
    """What a ledger file says, read without touching it.

    Parameters
    ----------
    header : mapping
        First line of the file: format, version, run and what the accountant gave.
    charges : tuple of Charge
        All charges in order.
    spent : tuple of float
        Sum of the costs per limit; empty before the first charge.
    torn : bool
        Whether the last line is incomplete: a charge whose noise was never drawn.
    head : str
        The chained checksum of the last charge, which depends on all lines before it.
    closing : Closing or None
        The last line, if it closes the ledger; None while a run is unfinished.
    """

    header: Mapping[str, object]
    charges: tuple[Charge, ...]
    spent: tuple[float, ...]
    torn: bool
    head: str = ""
    closing: Closing | None = None


def read_ledger(path: str | os.PathLike[str]) -> LedgerView:
    """Read a ledger with all checks, without locking it or writing to it.

    While another process is charging, its line in progress may look torn.

    Parameters
    ----------
    path : path
        The file.

    Returns
    -------
    LedgerView
        Header, charges, their sum, and whether the last line is torn.

    Raises
    ------
    LedgerError
        There is no such file, or it is not a sound ledger.
    """
    name = _real_path(path)
    try:
        _check_place(name)
        fd = os.open(name, os.O_RDONLY | BINARY)
        try:
            data = _read(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise _failure("read", name, error) from error
    book = MemoryLedger()
    header, whole = read_lines(name, data, book)
    return LedgerView(
        header,
        tuple(book.charges),
        book.spent,
        whole < len(data),
        book.head,
        book._closing,
    )


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
        self._paid: deque[Charge] = deque()
        self._mutex = threading.RLock()
        lock = _acquire_lock(path)
        try:
            if not os.path.lexists(path):
                create_whole(path, _new_header(header))
            self._fd = os.open(path, os.O_RDWR | os.O_APPEND | BINARY)
        except BaseException as error:
            lock.release()
            if isinstance(error, OSError):
                raise _failure("open", path, error) from error
            raise
        self._finalizer = weakref.finalize(self, _release, self._fd, lock, os.getpid())
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
            With every charge of the file counted. A torn last line, whose noise was
            never drawn, is cut off.

        Raises
        ------
        LedgerError
            The file is not a ledger, of another run or version, damaged, in use, or
            cannot be written. It is left as it is and nothing is spent.
        ValueError
            The header is not public JSON or uses a key of the ledger itself.
        """
        for key in header:
            if key in OWN_KEYS:
                raise ValueError(
                    f"Expected header keys other than {OWN_KEYS}, got {key!r}; rename "
                    "it."
                )
        _encode("header", header)
        return cls(_real_path(path), header)

    def _load(self, header: Mapping[str, object]) -> None:
        """Count what the file holds, and let it end with a whole line."""
        try:
            data = _read(self._fd)
            stored, whole = read_lines(self.path, data, self)
            refuse_other_header(self.path, stored, header)
            if whole < len(data):
                os.ftruncate(self._fd, whole)
            elif not data.endswith(b"\n"):
                write_all(self._fd, b"\n")
            # Also without a repair: the last line may have been written by a process
            # that was killed before its fsync, and from here on it counts as spent.
            os.fsync(self._fd)
            sync_folder(self.path)
            self._identity = _identity(os.fstat(self._fd))
        except OSError as error:
            raise _failure("open", self.path, error) from error
        self.header: Mapping[str, object] = MappingProxyType(stored)

    def use_key(self, name: str) -> None:
        """Write the name of a run key into every charge from here on."""
        self._key = name

    def rewind(self, index: int) -> None:
        """Expect the charges from an index on again: paid by this run, not yet used.

        The file stays as it is; sums and :attr:`next_index` go back.

        Raises
        ------
        LedgerError
            The file holds fewer charges, or one of them is not of the key in use.
        """
        kept, later = self._charges[:index], self._charges[index:]
        foreign = [one.index for one in later if not one.key or one.key != self._key]
        if index > self.next_index or foreign:
            raise LedgerError(
                f"The ledger {self.path} cannot go back to charge {index} of "
                f"{self.next_index}: later ones are missing or of another run "
                f"({foreign[:1]}); nothing was spent."
            )
        self._paid, self._charges, self._units = deque(later), [], []
        for charge in kept:
            self._count(charge)

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
        self.refuse_in_child()  # before the mutex, which may be held there
        if self._key:
            charge = replace(charge, key=self._key)
        with self._mutex:
            payload = charge.payload()
            self._check_file()
            self._check(charge)
            if self._paid:
                if self._paid[0].payload() != payload:
                    raise LedgerError(
                        f"Charge {charge.index} of the ledger {self.path} paid for "
                        "something else than what the redone step asks for; nothing "
                        "was released or spent. Remove the key of the run and resume: "
                        "the steps after the checkpoint are then charged again."
                    )
                self._count(self._paid.popleft())
                return
            # Set before the write and lifted after it, so that an interrupt at any
            # instant in between leaves an object that refuses to go on.
            self._failed = "an earlier append did not finish"
            self._write_line(payload)
            self._count(charge)
            self._head, self._closing = self._chain, None
            self._failed = None

    def finish(self, digests: Mapping[str, str]) -> None:
        """Write the closing line, unless it is there, and return once it is on disk.

        Raises
        ------
        LedgerError
            The line could not be written; the run is whole, but not closed.
        """
        with self._mutex:
            while self._paid:
                self._count(self._paid.popleft())
            closing = Closing(self.next_index, dict(digests))
            if closing != self._closing:
                self._check_file()
                self._failed = "its closing line was not written"
                self._write_line(closing.payload())
                self._failed = None
            self._closing, self._finished = closing, True

    def _write_line(self, payload: bytes) -> None:
        line, chain = seal(self._chain, payload)
        try:
            write_all(self._fd, line + b"\n")
            os.fsync(self._fd)
        except OSError as error:
            raise _failure("write to", self.path, error) from error
        self._chain = chain
        device, inode, size = self._identity
        self._identity = device, inode, size + len(line) + 1

    def _check_file(self) -> None:
        """Refuse a closed or failed object, and a file that is not the one checked."""
        refusal = self._failed if self._finalizer.alive else "it was closed"
        if refusal is not None:
            raise LedgerError(
                f"The ledger {self.path} takes no charge: {refusal}; nothing was spent "
                "by this call. Open it again with Ledger.open, in one process only."
            )
        try:
            found = _identity(os.stat(self.path))
        except OSError as error:
            raise _failure("find", self.path, error) from error
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
    header = {key: value for key, value in view.header.items() if key not in OWN_KEYS}
    with Ledger.open(path, header=header) as ledger:
        ledger.finish({**known, **digests})


def _real_path(path: str | os.PathLike[str]) -> str:
    """Return the one name of a file, whatever links lead to it."""
    try:
        name = os.fsdecode(path)
    except TypeError:
        name = ""
    if not name or "\0" in name:
        raise ValueError(
            f"Expected path to be the path of a ledger file, got {path!r}; give a "
            "non-empty path."
        )
    return os.path.realpath(name)


def _acquire_lock(path: str) -> FileLock:
    """Hold the ledger against other processes and other objects of this one."""
    try:
        _check_place(path)
        lock = FileLock(path + ".lock", timeout=0, mode=0o600, thread_local=False)
        lock.acquire()
    except Timeout as error:
        raise LedgerError(
            f"The ledger {path} is in use by another process or another object of "
            "this one; nothing was spent. Wait for that run to end or close it, or "
            "choose another path."
        ) from error
    except OSError as error:
        raise _failure("lock", path, error) from error
    return lock


def _release(fd: int, lock: FileLock, process: int) -> None:
    """Close the file; give the lock back, unless it is the parent's."""
    with suppress(OSError):
        os.close(fd)
    if os.getpid() == process:
        lock.release(force=True)


def _check_place(path: str) -> None:
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise LedgerError(
            f"The folder {folder} of the ledger {path} does not exist or is no "
            "folder; nothing was spent. Create it first."
        )
    if os.path.lexists(path) and not stat.S_ISREG(os.stat(path).st_mode):
        raise LedgerError(
            f"The ledger {path} is not a regular file; nothing was spent. Give the "
            "path of a file, which is created if it does not exist."
        )


def _read(fd: int) -> bytes:
    """Return the whole file, or its beginning if that already is no ledger."""
    parts = [os.read(fd, 1 << 16)]
    while parts[-1] and parts[0].startswith(MAGIC):
        parts.append(os.read(fd, 1 << 24))
    return b"".join(parts)


def _identity(found: os.stat_result) -> tuple[int, int, int]:
    """Return what must not change between two charges of one process."""
    return found.st_dev, found.st_ino, found.st_size


def _failure(action: str, path: str, error: OSError) -> LedgerError:
    reason = error.strerror or str(error)
    return LedgerError(
        f"Cannot {action} the ledger {path}: {reason} (errno {error.errno}); nothing "
        "was spent by this call. Check the free space and the permissions of its "
        "folder, then open the ledger again."
    )
