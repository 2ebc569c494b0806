# SPDX-License-Identifier: Apache-2.0
"""The first line of a ledger, and the checksum that chains each line to the last.

The header says who wrote the file and when (UTC), and what the accountant gave:
budget, relation, accountant, sampler, arithmetic, limits, plan or orders.
"""

import json
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, NoReturn

from armijo.errors import LedgerError

FORMAT = "armijo-ledger"
VERSION = 2
MAGIC = b'{"format":"armijo-ledger","version":'
OWN_KEYS = ("format", "version", "run", "created", "created_by", "chain")
"""Keys of the header that the ledger itself writes; another run may differ in them."""

CHAIN_DIGITS = 16
_CHAIN_KEY = b',"chain":"'
_CHAIN_BYTES = len(_CHAIN_KEY) + CHAIN_DIGITS + len(b'"}')


def _plain(value: object) -> object:
    """Let read-only mappings be written like dictionaries."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


# json writes floats with repr, so they come back as the same floats.
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=_plain)


def encode(name: str, value: object) -> bytes:
    """Return public JSON as ASCII bytes, or say that the argument is not JSON."""
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
    chain = sha256(previous + payload).hexdigest()[:CHAIN_DIGITS].encode("ascii")
    return payload[:-1] + _CHAIN_KEY + chain + b'"}', chain


def unseal(previous: bytes, line: bytes) -> tuple[bytes, bytes] | None:
    """Return payload and chain of a line that follows on ``previous``, else None."""
    payload = line[:-_CHAIN_BYTES] + b"}"
    sealed, chain = seal(previous, payload)
    return (payload, chain) if sealed == line else None


def new_header(header: Mapping[str, object]) -> tuple[str, bytes]:
    """Return a fresh name for a run, and the payload of the first line."""
    from armijo import __version__

    run = uuid.uuid4().hex
    own = {
        "format": FORMAT,
        "version": VERSION,
        "run": run,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "created_by": f"armijo {__version__}",
    }
    return run, encode("header", {**own, **header})


def check_header(header: Mapping[str, object]) -> None:
    """Refuse header keys that are the ledger's own, and what is not JSON."""
    for key in header:
        if key in OWN_KEYS:
            raise ValueError(
                f"Expected header keys other than {OWN_KEYS}, got {key!r}; rename it."
            )
    encode("header", header)


def refuse_other_header(
    path: str, stored: Mapping[str, object], header: Mapping[str, object]
) -> None:
    """Refuse a ledger whose header differs from that of this run."""
    wanted = json.loads(encode("header", header))
    for key in [*wanted, *(key for key in stored if key not in OWN_KEYS)]:
        found, asked = stored.get(key, "absent"), wanted.get(key, "absent")
        if found != asked or (key in stored) != (key in wanted):
            raise LedgerError(
                f"The ledger {path} is a ledger of another run: {key} is {found!r} in "
                f"the file and {asked!r} in this run; it was left as it is and "
                "nothing was spent. Run with the settings it was begun with, or "
                "choose another path."
            )


def read_header(path: str, line: bytes, *, cut: bool) -> tuple[dict[str, Any], bytes]:
    """Return the header and its chain, or say why the file is no ledger of ours."""
    header = _json_object(line) if line.startswith(MAGIC) else None
    if header is None and cut and line.startswith(MAGIC[: len(line)]):
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
    if header is None:
        damaged(path, 1, "is not JSON")
    if header["version"] != VERSION:
        raise LedgerError(
            f"The ledger {path} has version {header['version']!r}, this release of "
            f"armijo writes version {VERSION}; it was left as it is and nothing was "
            "spent. Verify and continue it with the release that began it (version 1: "
            "armijo 0.1), or begin a new one."
        )
    opened = unseal(b"", line)
    if opened is None or not isinstance(header.get("run"), str):
        damaged(path, 1, "does not match its checksum")
    del header["chain"]
    return header, opened[1]


def _json_object(line: bytes) -> dict[str, Any] | None:
    """Return the one JSON object in a line, None if it is anything else."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def damaged(path: str, number: int, what: str) -> NoReturn:
    """Refuse a ledger that cannot be trusted, naming its line."""
    raise LedgerError(
        f"The ledger {path} is damaged: line {number} {what}. A line was changed, "
        "lost, doubled or moved, so what was spent is unknown; the file was left as "
        "it is and nothing was spent. Restore it from a copy, or take the whole "
        "budget for spent and begin a new run."
    )
