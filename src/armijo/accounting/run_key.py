# SPDX-License-Identifier: Apache-2.0
"""The run key: a secret file with which a crashed run redoes its steps bit for bit.

The key is drawn before the first charge and destroyed when the run ends.  In between it
lies beside the checkpoint, readable by its owner only, with two kinds of tags (keyed
BLAKE2b, which tell nothing to whoever lacks the key):

* of the *facts* it was made for (rows, settings, machine).  A key serves no other
  facts, so no noise is drawn again for other rows;
* of the *result* of each step, synced before anybody sees that result.  A redone step
  must come to the same result, else it ends there and nothing of it is seen.

So what is seen of one charge is one result, however often its step was redone.
"""

import hashlib
import json
import os
import re
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from armijo._files import sync_folder, write_synced
from armijo.accounting.ledger import Ledger
from armijo.errors import ArmijoError, LedgerError, RechargeWarning
from armijo.randomness import KEY_BYTES, Randomness, fresh_key

FORMAT, VERSION = "armijo-run-key", 1
Digest = hashlib.blake2b
DigestInput = Callable[[Digest], None]
"""Puts a value into a digest."""
Fingerprint = Mapping[str, DigestInput]
"""What a key is made for, by the name that messages give it."""

_TAG_BYTES = 16
_RESULT = re.compile(rb"(\d{1,18}) ([0-9a-f]{32})")


class RunKey:
    """A secret, what it was made for, and the results of its steps so far.

    Made by :meth:`create` and :meth:`load`.
    """

    def __init__(self, path: str, secret: bytes, made_for: Mapping[str, str]) -> None:
        self._path, self._secret = path, secret
        self._made_for = dict(made_for)
        self._results: dict[int, str] = {}

    @classmethod
    def create(cls, path: str | os.PathLike[str], facts: Fingerprint) -> "RunKey":
        """Draw a key and write it; one that lies there is destroyed first."""
        place = os.path.abspath(path)
        destroy_key(place)
        key = cls(place, fresh_key(), {})
        key._made_for = {name: key.tag(name, feed) for name, feed in facts.items()}
        document = {
            "format": FORMAT,
            "version": VERSION,
            "secret": key._secret.hex(),
            "made_for": key._made_for,
        }
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            write_synced(place, json.dumps(document).encode(), flags)
            sync_folder(place)
        except OSError as error:
            raise _failure("write", place, error, "Nothing was spent.") from error
        return key

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "RunKey | None":
        """Read a key; None if there is none, or not a whole one."""
        place = os.path.abspath(path)
        try:
            with open(place, "rb") as file:
                head, *lines = file.read().split(b"\n")
            document = json.loads(head)
            if (document["format"], document["version"]) != (FORMAT, VERSION):
                return None
            secret = bytes.fromhex(document["secret"])
            key = cls(place, secret, dict(document["made_for"].items()))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _failure("read", place, error, "Nothing was spent.") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        # A line that a crash cut off is of a result that nobody saw.
        found = filter(None, map(_RESULT.fullmatch, lines))
        key._results = {int(one[1]): one[2].decode() for one in found}
        return key if len(secret) == KEY_BYTES else None

    @property
    def name(self) -> str:
        """What ledger lines call this key; it tells nothing about the secret."""
        return self.tag("name", lambda digest: None)[:16]

    @property
    def randomness(self) -> Randomness:
        """The streams of the charges."""
        return Randomness(self._secret)

    def tag(self, purpose: str, feed: DigestInput) -> str:
        """Return the tag of a value, which only this key can compute."""
        digest = hashlib.blake2b(
            key=self._secret, digest_size=_TAG_BYTES, person=b"armijo tag"
        )
        digest.update(f"{len(purpose)} {purpose}".encode())
        feed(digest)
        return digest.hexdigest()

    def changed(self, facts: Fingerprint) -> list[str]:
        """Name the facts that are not those the key was made for."""
        names = [*facts, *(name for name in self._made_for if name not in facts)]
        return [
            name
            for name in names
            if name not in facts
            or self.tag(name, facts[name]) != self._made_for.get(name)
        ]

    def commit(self, charge: int, result: DigestInput) -> None:
        """Put the result of a step on record before anybody sees it.

        Raises
        ------
        ArmijoError
            The step was made before and came to another result, or the record cannot
            be written.  The result must not be used.
        """
        tag = self.tag(f"result {charge}", result)
        known = self._results.get(charge)
        if known is None:
            self._write_result(charge, tag)
        elif known != tag:
            raise ArmijoError(
                f"Step {charge}, redone after a crash, came to another result than "
                "before: the code or the machine's arithmetic is not the same. Nothing "
                f"of it was released. Remove {self._path} and resume; the steps after "
                "the checkpoint are then charged again."
            )

    def _write_result(self, charge: int, tag: str) -> None:
        """Add a line; its newline comes first, so that a torn one spoils no other."""
        line = f"\n{charge} {tag}".encode()
        try:
            write_synced(self._path, line, os.O_WRONLY | os.O_APPEND)
        except OSError as error:
            end = "What was charged stays charged; resume the run."
            raise _failure("write", self._path, error, end) from error
        self._results[charge] = tag

    def destroy(self) -> None:
        """Overwrite and remove the file: the run is over."""
        destroy_key(self._path)


def destroy_key(path: str | os.PathLike[str]) -> None:
    """Overwrite a key, if there is one, and remove it."""
    place = os.path.abspath(path)
    try:
        with suppress(FileNotFoundError):
            try:
                write_synced(place, bytes(os.path.getsize(place)), os.O_WRONLY)
            finally:
                os.unlink(place)
            sync_folder(place)
    except OSError as error:
        raise _failure("destroy", place, error, "Remove it by hand.") from error


def _failure(action: str, path: str, error: OSError, end: str) -> ArmijoError:
    reason = error.strerror or str(error)
    return ArmijoError(f"Cannot {action} the run key {path}: {reason}. {end}")


class CheckpointRef(NamedTuple):
    """Where a checkpoint stands: how many charges were made, and its tag."""

    charges: int
    tag: str
    content: DigestInput


def resume_key(
    path: str | os.PathLike[str],
    ledger: Ledger,
    facts: Fingerprint,
    past: CheckpointRef | None,
) -> RunKey:
    """Return the key for the charges to come; the ledger is ready for them.

    If checkpoint, key, facts and later charges are of one run, the ledger is rewound to
    the checkpoint and those charges are made again.  Else there is a fresh key, and
    what they paid for is lost.
    """
    if past is not None:
        key = RunKey.load(path)
        reason = _unfit(key, ledger, facts, past)
        if key is not None and reason is None:
            return key
        lost = ledger.next_index - past.charges
        if lost:
            warnings.warn(
                f"The charges after the checkpoint ({lost}) are lost, and their steps "
                f"are charged again with fresh noise: {reason}.",
                RechargeWarning,
                stacklevel=2,
            )
    fresh = RunKey.create(path, facts)
    ledger.use_key(fresh.name)
    return fresh


def _unfit(
    key: RunKey | None, ledger: Ledger, facts: Fingerprint, past: CheckpointRef
) -> str | None:
    """Rewind the ledger to the checkpoint, or say why steps cannot be redone."""
    if key is None:
        return "the run key is missing or damaged"
    changed = key.changed(facts)
    if changed:
        return f"changed since then: {', '.join(changed)}"
    if key.tag("checkpoint", past.content) != past.tag:
        return "the checkpoint is not one of this run key"
    ledger.use_key(key.name)
    try:
        ledger.rewind(past.charges)
    except LedgerError:
        return "the ledger holds charges of another run"
    return None
