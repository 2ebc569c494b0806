# SPDX-License-Identifier: Apache-2.0
"""The lines of a ledger: every line seals the one before, and a torn one is priced.

A ledger is ASCII text, one JSON object per line, the last key of each being
``chain``, a checksum of the line and of the chain before it:

* the header, ``{"format": "armijo-ledger", "version": 2, "run": ..., ...}``;
* ``{"kind": "announce", "ceiling": [...]}``: no later charge costs more than this,
  component by component, until another announcement raises it;
* ``{"kind": "charge", "index": ..., "label": ..., "mechanism": ..., "cost": [...]}``,
  with ``"key": ...`` where the noise comes from a run key of that name;
* ``{"kind": "torn", ...}``: what the unreadable line before it is counted as;
* ``{"kind": "mended", ...}``: a charge in the place of the torn lines from its index
  on, written when the step of the torn charge is redone with the key of its run;
* ``{"kind": "closed", "charges": ..., "digests": {...}}``: a run ended here, with so
  many charges in the file and these SHA-256 digests of what it left. A later run may
  charge to the same ledger and close it again; the last line counts.

Each line is written by one call and synced before the next one is begun, so that a
crash can damage the last line and no other. This module only turns bytes into
charges and back; files and locks are in :mod:`armijo.accounting.ledger`.
"""

import json
import math
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from armijo import _validate
from armijo.accounting.ledger_header import (
    CHAIN_DIGITS,
    damaged,
    encode,
    read_header,
    seal,
    unseal,
)
from armijo.errors import ArmijoError, LedgerError

TORN_LABEL = "torn line"
# A torn line that begins so is no charge: the noise of none waits for it.
_FREE_STARTS = (b'{"kind":"announce"', b'{"kind":"closed"')
_DIGEST = re.compile("[0-9a-f]{64}")
# Every finite double is a whole multiple of 2**-1074.
_UNIT_BITS = 1074


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
        """Refuse what cannot be written exactly or added up."""
        if type(self.index) is not int or self.index < 0:
            _validate.at_least(0, index=self.index)
            object.__setattr__(self, "index", int(self.index))
        if not isinstance(self.label, str):
            raise ValueError(
                f"Expected label to be a string, got {self.label!r}; name the access."
            )
        if not isinstance(self.key, str):
            raise ValueError(f"Expected key to be a name, got {self.key!r}.")
        if not isinstance(self.mechanism, Mapping):
            raise ValueError(
                f"Expected mechanism to be a mapping, got {self.mechanism!r}; give "
                "its public description as a dictionary."
            )
        object.__setattr__(self, "cost", _numbers("cost", self.cost))


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

    Examples
    --------
    >>> Closing(3, {}).charges
    3
    """

    charges: int
    digests: Mapping[str, str]

    def __post_init__(self) -> None:
        """Refuse what is no number of charges or no digest."""
        _validate.at_least(0, charges=self.charges)
        if not isinstance(self.digests, Mapping):
            raise ValueError(f"Expected digests by name, got {self.digests!r}.")
        for name, value in self.digests.items():
            if not isinstance(value, str) or not _DIGEST.fullmatch(value):
                raise ValueError(
                    f"Expected the SHA-256 of {name} as 64 digits, got {value!r}."
                )

    def payload(self) -> bytes:
        """Return the line, yet without its chain."""
        return encode("closing line", {"kind": "closed", **vars(self)})


def _numbers(name: str, values: Any) -> tuple[float, ...]:
    """Return a non-empty tuple of finite floats, none of them negative."""
    if not isinstance(values, tuple | list) or not values:
        raise ValueError(
            f"Expected {name} to be a tuple with one number per limit, got "
            f"{values!r}; give at least one number."
        )
    if not all(type(value) is float and 0.0 <= value < math.inf for value in values):
        for place, value in enumerate(values):
            _validate.non_negative(**{f"{name}[{place}]": value})
    return tuple(map(float, values))


_DECODER = json.JSONDecoder()


def charge_payload(charge: Charge, kind: str = "charge") -> bytes:
    """Return the line of a charge, yet without its chain."""
    record = {"kind": kind, **vars(charge)}
    if not charge.key:
        del record["key"]
    return encode("charge", record)


def _charge(record: Mapping[str, Any]) -> Charge:
    """Return the charge that a line holds."""
    return Charge(**{name: one for name, one in record.items() if name != "kind"})


def is_torn(charge: Charge) -> bool:
    """Say whether a charge stands for a torn line."""
    return charge.label == TORN_LABEL and charge.mechanism.get("torn") is True


def announce_payload(ceiling: tuple[float, ...]) -> bytes:
    """Return the line of an announcement, yet without its chain."""
    return encode("ceiling", {"kind": "announce", "ceiling": ceiling})


class Book:
    """Charges added up so far, and what is needed to write or check the next line."""

    def __init__(self, chain: bytes = b"") -> None:
        self.chain = chain
        self.charges: list[Charge] = []
        self.ceiling: tuple[float, ...] | None = None
        self.torn = 0
        self.closing: Closing | None = None
        self.head = chain  # of the line of the last charge
        self._units: list[int] = []

    @property
    def spent(self) -> tuple[float, ...]:
        """Sum of the costs, exactly rounded: what ``math.fsum`` gives, but kept."""
        try:
            return tuple(units / (1 << _UNIT_BITS) for units in self._units)
        except OverflowError:
            return (math.inf,) * len(self._units)

    def check(self, charge: Charge) -> None:
        """Refuse a charge that is out of turn or has another number of limits."""
        if charge.index != len(self.charges):
            raise LedgerError(
                f"Charge {charge.label!r} has index {charge.index}, the ledger "
                f"expects {len(self.charges)}; nothing was written or spent. Number "
                "charges by next_index, and do not share one ledger between runs."
            )
        width = len(self.ceiling or self._units)
        if width and len(charge.cost) != width:
            raise ValueError(
                f"Expected cost to have {width} numbers, one per limit, got "
                f"{charge.cost!r}; charge with the accountant that began the ledger."
            )

    def count(self, charge: Charge) -> None:
        """Add a charge to the sums."""
        if not self._units:
            self._units = [0] * len(charge.cost)
        for place, number in enumerate(charge.cost):
            numerator, denominator = number.as_integer_ratio()
            shift = _UNIT_BITS + 1 - denominator.bit_length()
            self._units[place] += numerator << shift
        self.charges.append(charge)

    def raised(self, cost: tuple[float, ...]) -> tuple[float, ...] | None:
        """Return the ceiling to announce before this cost; None if it is covered."""
        if self.ceiling is None:
            return cost
        if all(map(operator.le, cost, self.ceiling)):
            return None
        return tuple(map(max, self.ceiling, cost))

    def replay(self, payload: bytes, chain: bytes) -> None:
        """Take in one sealed line, or raise ValueError where it cannot stand here."""
        record: dict[str, Any] = _DECODER.decode(payload.decode("ascii"))
        closing = None
        match record:
            case {"kind": "charge" | "mended" as kind}:
                charge = _charge(record)
                if kind == "mended":
                    self._drop_torn(charge.index)
                self.check(charge)
                if self.raised(charge.cost) is not None:
                    raise ValueError("a charge above the announced ceiling")
                self.count(charge)
                self.head = chain
            case {"kind": "closed", "charges": charges, "digests": digests}:
                closing = Closing(charges, digests)
                self._check_closing(closing)
            case {"kind": "announce", "ceiling": values}:
                ceiling = _numbers("ceiling", values)
                old = self.ceiling or ceiling
                if len(old) != len(ceiling) or self.raised(ceiling) != ceiling:
                    raise ValueError("an announcement that raises nothing")
                self.ceiling = ceiling
            case _:
                raise ValueError("an unknown kind of line")
        self.chain, self.closing = chain, closing

    def _check_closing(self, closing: Closing) -> None:
        """Refuse a wrong number; torn lines behind the last step were no charges.

        The run that closes here went back to its checkpoint with its key and ended
        without another charge, so what was torn was its first attempt to close.
        """
        if closing.charges < len(self.charges):
            self._drop_torn(closing.charges)
        if closing.charges != len(self.charges):
            raise ValueError(
                f"a closing line that counts {closing.charges} charges after "
                f"{len(self.charges)}"
            )

    def _drop_torn(self, index: int) -> None:
        """Take back what torn lines were counted as, from an index on."""
        torn = self.charges[index:]
        if not torn or not all(map(is_torn, torn)):
            raise ValueError("charges are taken back where no line was torn")
        self.rewind(index)

    def rewind(self, index: int) -> list[Charge]:
        """Take the charges from an index on out of the sums, and return them."""
        kept, later = self.charges[:index], self.charges[index:]
        self.charges, self._units = [], []
        for charge in kept:
            self.count(charge)
        return later

    def acknowledge(self, fragment: bytes) -> bytes:
        """Count a torn line; return the record that says so, without its newline.

        The record follows from the sealed lines and the fragment alone. A crash in
        the middle of writing it is therefore mended by writing the rest of it.
        """
        cost = self._torn_cost(fragment)
        size, index = len(fragment), len(self.charges)
        record: dict[str, object] = {"kind": "torn", "index": index, "bytes": size}
        record["digest"] = sha256(fragment).hexdigest()[:CHAIN_DIGITS]
        line, self.chain = seal(self.chain, encode("torn", {**record, "cost": cost}))
        if cost:
            self.count(Charge(index, TORN_LABEL, {"torn": True, "bytes": size}, cost))
            self.head = self.chain
        self.torn, self.closing = self.torn + 1, None
        return line

    def _torn_cost(self, fragment: bytes) -> tuple[float, ...]:
        """Return the most that the charge behind a torn line cost; () if it is none.

        Which torn lines can be charges? Only the last write can be torn, since each
        is synced before the next one begins, and after a sealed line there are three
        kinds of writes. (1) An announcement: its charge was to be written after
        it, so no data was touched on its account. Before any ceiling stands no other
        write is possible, and a fragment that begins as an announcement is one.
        (2) A charge, mended or not: its cost is at most the ceiling, which was on disk
        before it was begun. (3) A closing line: no step is made after it. A fragment
        too short to tell them apart, or whose first bytes were lost, is taken for a
        charge. (Headers are not torn lines: a
        file cut inside its header holds no charge and is refused. Torn records of
        torn lines are completed, not counted again.)
        """
        if self.ceiling is None or fragment.startswith(_FREE_STARTS):
            return ()
        return self.ceiling


def read_lines(path: str, data: bytes) -> tuple[dict[str, object], Book, bytes]:
    """Check every line; return header, charges and what is left to be written.

    The last item mends the end of the file: a missing newline, the record of a torn
    line, or the rest of such a record. It is empty for a file that ends well.
    """
    end = data.find(b"\n")
    header, chain = read_header(path, data if end < 0 else data[:end], cut=end < 0)
    book, repair = Book(chain), b"\n" if end < 0 else b""
    offset, number = len(data) if end < 0 else end + 1, 2
    while offset < len(data):
        end = data.find(b"\n", offset)
        end = len(data) if end < 0 else end
        line = data[offset:end]
        opened = unseal(book.chain, line)
        if opened is not None:
            _replay(path, number, book, *opened)
            expected = b"\n"
        else:
            _refuse_unless_torn(path, number, line)
            expected = b"\n" + book.acknowledge(line) + b"\n"
        found = data[end : end + len(expected)]
        if not expected.startswith(found):
            damaged(path, number, "cannot be read, yet other lines follow it")
        repair = expected[len(found) :]
        offset, number = end + len(expected), number + expected.count(b"\n")
    return header, book, repair


def _replay(path: str, number: int, book: Book, payload: bytes, chain: bytes) -> None:
    """Take in a line whose checksum is right; name the line if it makes no sense."""
    try:
        book.replay(payload, chain)
    except (ValueError, TypeError, ArithmeticError, RecursionError, ArmijoError) as why:
        damaged(path, number, f"is out of place ({why})")


def _refuse_unless_torn(path: str, number: int, line: bytes) -> None:
    """Refuse a damaged line that no interrupted write can have left behind.

    A torn line lacks its end. One that begins with a complete JSON value was written
    to its end: it was changed later, lines before it are gone, or the newline after
    it is, and more than one charge may be missing.
    """
    try:
        _DECODER.raw_decode(line.decode("latin-1"))
    except json.JSONDecodeError:
        return
    except (ValueError, RecursionError):
        damaged(path, number, "is not what a ledger writes")
    damaged(path, number, "is complete but does not follow from the line before it")
