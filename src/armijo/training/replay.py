# SPDX-License-Identifier: Apache-2.0
"""A run that a crash cannot change: key, ledger and checkpoint tied together.

A step is charged, made, committed, and only then seen; checkpoints say how many charges
their state has used.  After a crash the steps behind the checkpoint are redone with the
key of the run, without being charged again (docs/ledger.md has the proof).

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
import platform
import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from armijo._files import NEW, sync_folder, write_synced
from armijo.accounting.ledger import Ledger
from armijo.data.blocks import Manifest, RowBlocks
from armijo.data.sources import RowSource
from armijo.errors import ArmijoError, LedgerError, RechargeWarning
from armijo.methods.base import State, StepRecord
from armijo.randomness import KEY_BYTES, Randomness, fresh_key
from armijo.training.checkpoint import Checkpoint

FORMAT, VERSION = "armijo-run-key", 1
Digest = hashlib.blake2b
Fingerprint = Mapping[str, object]
"""What a key is made for, by the name that messages give it."""

_TAG_BYTES = 16
_NAMED = 5  # files that an error names
_BLOCK = 1 << 23  # bytes of a table that are in memory at a time
_PLAIN = (type(None), bool, int, float, str)
# What has the same text in every process.
_TEXTS = (*_PLAIN, bytes, complex, np.generic, Decimal, date, time, timedelta)
_THREADS = ("OMP_", "MKL_", "OPENBLAS_", "BLIS_", "ATEN_", "KMP_")
_RESULT = re.compile(rb"(\d{1,18}(?:\.\d{1,9})?) ([0-9a-f]{32})")


class RunKey:
    """A secret, what it was made for, and the results of its steps so far.

    Made by :meth:`create` and :meth:`load`.
    """

    def __init__(self, path: str, secret: bytes, made_for: Mapping[str, str]) -> None:
        self._path, self._secret = path, secret
        self._made_for = dict(made_for)
        self._files: list[tuple[str, str]] = []
        self._results: dict[str, str] = {}

    @classmethod
    def create(cls, path: str | os.PathLike[str], facts: Fingerprint) -> "RunKey":
        """Draw a key and write it; one that lies there is destroyed first."""
        place = os.path.abspath(path)
        destroy_key(place)
        key = cls(place, fresh_key(), {})
        key._made_for = {name: key.tag(name, fact) for name, fact in facts.items()}
        key._files = [key._file_tags(one) for one in _files(facts)]
        document = {
            "format": FORMAT,
            "version": VERSION,
            "secret": key._secret.hex(),
            "made_for": key._made_for,
            "files": key._files,
        }
        try:
            write_synced(place, json.dumps(document).encode(), NEW)
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
            key._files = [
                (str(name), str(entry)) for name, entry in document.get("files", ())
            ]
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _failure("read", place, error, "Nothing was spent.") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        # A line that a crash cut off is of a result that nobody saw.
        found = filter(None, map(_RESULT.fullmatch, lines))
        key._results = {one[1].decode(): one[2].decode() for one in found}
        return key if len(secret) == KEY_BYTES else None

    @property
    def name(self) -> str:
        """What ledger lines call this key; it tells nothing about the secret."""
        return self.tag("name")[:16]

    @property
    def randomness(self) -> Randomness:
        """The streams of the charges."""
        return Randomness(self._secret)

    def tag(self, purpose: str, *values: object) -> str:
        """Return the tag of values, which only this key can compute."""
        digest = hashlib.blake2b(
            key=self._secret, digest_size=_TAG_BYTES, person=b"armijo tag"
        )
        digest.update(f"{len(purpose)} {purpose}".encode())
        for value in values:
            update_digest(digest, value)
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

    def changed_files(self, facts: Fingerprint) -> list[str]:
        """Say which files are not those the key was made for, and how.

        Only tags are kept, so what is gone can be counted and not named.
        """
        known, found = dict(self._files), _files(facts)
        said = []
        for file in found:
            name, entry = self._file_tags(file)
            if name not in known:
                said.append(f"{file[0]} was added")
            elif known[name] != entry:
                said.append(f"{file[0]} was changed")
            known.pop(name, None)
        return said + [f"{len(known)} were removed or renamed"] * bool(known)

    def _file_tags(self, file: tuple[Any, ...]) -> tuple[str, str]:
        return self.tag("file name", file[0]), self.tag("file", file)

    def commit(self, charge: int, result: object) -> None:
        """Put the result of a step on record before anybody sees it.

        Raises
        ------
        ArmijoError
            The step was made before and came to another result, or the record cannot
            be written.  The result must not be used.
        """
        self._commit(str(charge), self.tag(f"result {charge}", result))

    def commit_total(self, charge: int, number: int, total: object) -> None:
        """Put the exact total of a release on record before it is noised.

        The same noise on another total would tell their difference, so another one
        for the same release raises ArmijoError.
        """
        name = f"{charge}.{number}"
        self._commit(name, self.tag(f"total {name}", total))

    def _commit(self, charge: str, tag: str) -> None:
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

    def _write_result(self, charge: str, tag: str) -> None:
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


def resume_key(
    path: str | os.PathLike[str],
    ledger: Ledger,
    facts: Fingerprint,
    past: Checkpoint | None,
    *,
    only_whole: bool = False,
) -> RunKey:
    """Return the key for the charges to come; the ledger is ready for them.

    If checkpoint, key, facts and later charges are of one run, the ledger is rewound to
    the checkpoint and those charges are made again.  Else there is a fresh key, and
    what they paid for is lost; with ``only_whole`` that is refused as long as there is
    a key that could serve.
    """
    if past is not None:
        key = RunKey.load(path)
        reason = _unfit(key, ledger, facts, past)
        if key is not None and reason is None:
            return key
        lost = ledger.next_index - past.charges
        if lost and only_whole and key is not None:
            raise ArmijoError(
                f"Expected to redo the {lost} steps after the checkpoint, which are "
                f"charged, as they were; {reason}. The plan pays for each step once: "
                "resume with what the run began with, or remove "
                f"{os.fspath(path)} for a model of fewer steps. Nothing was spent, "
                "and all files are as they were."
            )
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
    key: RunKey | None, ledger: Ledger, facts: Fingerprint, past: Checkpoint
) -> str | None:
    """Rewind the ledger to the checkpoint, or say why steps cannot be redone."""
    if key is None:
        return "the run key is missing or damaged"
    changed = key.changed(facts)
    if changed:
        return f"changed since then: {', '.join(changed)}"
    if _tag_of(key, past) != past.tag:
        return "the checkpoint is not one of this run key"
    ledger.use_key(key.name)
    try:
        ledger.rewind(past.charges)
    except LedgerError:
        return "the ledger holds charges of another run"
    return None


def _tag_of(key: RunKey, checkpoint: Checkpoint) -> str:
    """Return the tag of what the next steps depend on."""
    state, records, charges, *_ = checkpoint
    return key.tag("checkpoint", (charges, state, records))


def key_path(checkpoint: str | os.PathLike[str]) -> Path:
    """Return where the key of a run lies: beside its checkpoint."""
    path = Path(checkpoint)
    return path.with_name(path.name + ".key")


class ReplayableRun:
    """What ties ledger and checkpoint of a run together, with its key if it has one.

    Parameters
    ----------
    checkpoint : path
        The key lies beside it.
    source : RowSource
        The rows; a key serves no others, so there is none where they cannot be told
        from others.
    settings : object
        All that the results depend on besides the rows, as plain values.
    repeats : bool
        Whether steps can be redone bit for bit; else there is no key.
    only_whole : bool
        Whether a run of fewer steps is of no use.
    """

    def __init__(
        self,
        checkpoint: str | os.PathLike[str],
        source: RowSource,
        settings: object,
        *,
        repeats: bool,
        only_whole: bool = False,
    ) -> None:
        self._source, self._settings = source, settings
        self._only_whole = only_whole
        self._path = key_path(checkpoint) if repeats else None
        self._key: RunKey | None = None
        self._ledger: str | None = None

    def take_up(self, ledger: Ledger, past: Checkpoint | None) -> None:
        """Make a ledger ready for the charges after a checkpoint, with key or without.

        The key of the run is read, or one is drawn.
        """
        self._ledger = str(ledger.header["run"])
        if past is not None:
            _refuse_other_ledger(ledger, past)
        if self._path is not None and self._facts is not None:
            self._key = resume_key(
                self._path, ledger, self._facts, past, only_whole=self._only_whole
            )

    @cached_property
    def _facts(self) -> Fingerprint | None:
        """What a key is made for; None where rows cannot be told from others."""
        parts = self._source.parts()
        if parts is None:
            return None
        facts: dict[str, object] = {
            "the rows": parts,
            "the settings": self._settings,
            "libraries, threads or machine": machine(),
        }
        workers = getattr(self._source, "environments", None)
        if workers is not None:
            facts["the workers"] = workers()
        return facts

    def refuse_other_rows(self) -> None:
        """Refuse to go on with rows that lie elsewhere and are not those of the start.

        Rows in memory came from who resumes; those of files or workers may have changed
        behind their back.
        """
        if not isinstance(self._source, RowBlocks) or self._path is None:
            return
        key = RunKey.load(self._path)
        if key is None or self._facts is None:
            return
        if "the rows" in key.changed(self._facts):
            files = key.changed_files(self._facts)
            shown = "; ".join(files[:_NAMED] + ["..."] * (len(files) > _NAMED))
            raise ArmijoError(
                "Expected the rows that the run began with, got others: "
                f"{shown or 'the order or the partitions are not the same'}. Bring the "
                "files back and resume, or begin a new run. Nothing was spent."
            )

    @property
    def randomness(self) -> Randomness:
        """The streams of the key, or the system's where there is none."""
        return Randomness() if self._key is None else self._key.randomness

    def signed(self, position: Checkpoint) -> Checkpoint:
        """Return what a checkpoint holds, with the ledger's name and the key's tag."""
        position = position._replace(ledger=self._ledger)
        if self._key is None:
            return position
        return position._replace(tag=_tag_of(self._key, position))

    def commit(self, state: State, record: StepRecord) -> None:
        """Put a step's result on record; to be called before anybody sees it."""
        if self._key is not None:
            self._key.commit(record.batch, (state, record))

    def commit_total(self, charge: int, number: int, total: object) -> None:
        """Put a total on record; to be called before it is noised."""
        if self._key is not None:
            self._key.commit_total(charge, number, total)

    def end(self) -> None:
        """Destroy the key: all steps are made and in the checkpoint."""
        if self._key is not None:
            self._key.destroy()
            self._key = None


def _files(facts: Fingerprint) -> Sequence[tuple[Any, ...]]:
    """Return the files that rows are read from, if they are."""
    rows = facts.get("the rows")
    return rows.files if isinstance(rows, Manifest) else ()


def _refuse_other_ledger(ledger: Ledger, past: Checkpoint) -> None:
    """Refuse another ledger than the checkpoint's, and an old copy of it."""
    name = ledger.header["run"]
    if past.ledger not in (None, name):
        raise LedgerError(
            f"The checkpoint belongs to the ledger {past.ledger}, found was {name}; "
            "bring back the ledger of this run. Nothing was spent."
        )
    if ledger.next_index < past.charges:
        raise LedgerError(
            f"The checkpoint was written after {past.charges} charges, but the ledger "
            f"holds {ledger.next_index}: it is an old copy. Bring back the ledger of "
            "this run; nothing was spent."
        )


def update_digest(digest: Digest, value: Any) -> None:
    """Put a value into a digest; different values put in different bytes.

    Every part says its kind and length first.  Lists and tuples are the same, so are
    NumPy's numbers and Python's, since files do not tell them apart.

    >>> one, other = Digest(), Digest()
    >>> update_digest(one, ("ab", "c")), update_digest(other, ("a", "bc"))
    (None, None)
    >>> one.digest() == other.digest()
    False
    """
    if type(value) in _PLAIN:  # first, since most parts are such
        _mark(digest, value)
    elif isinstance(value, Tensor):
        _mark(digest, str(value.dtype), tuple(value.shape))
        if value.numel():
            flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            _put_array(digest, flat.numpy())
    elif isinstance(value, np.ndarray):
        _put_array(digest, value)
    elif sparse.issparse(value):
        parts = (value.data, value.indices, value.indptr)
        update_digest(digest, (type(value).__name__, value.shape, *parts))
    elif is_dataclass(value) and not isinstance(value, type):
        named = {one.name: getattr(value, one.name) for one in fields(value)}
        update_digest(digest, (type(value).__qualname__, named))
    elif isinstance(value, Mapping):
        update_digest(digest, ("mapping", *value.items()))
    elif isinstance(value, tuple | list):
        _mark(digest, "sequence", len(value))
        for one in value:
            update_digest(digest, one)
    else:
        _mark(digest, value.item() if isinstance(value, np.generic) else value)


def _mark(digest: Digest, *words: object) -> None:
    """Put in words with their length; an object without a text of its own is unique."""
    text = repr(words).encode()
    digest.update(len(text).to_bytes(8, "little"))
    digest.update(text)


def _put_array(digest: Digest, array: NDArray[Any]) -> None:
    if array.dtype.hasobject:
        return update_digest(digest, list(map(_tellable, array.tolist())))
    _mark(digest, array.dtype.str, array.shape)
    flat = np.atleast_1d(array)
    height = max(1, _BLOCK * max(len(flat), 1) // max(flat.nbytes, 1))
    for start in range(0, len(flat), height):
        digest.update(flat[start : start + height].tobytes())


def _tellable(value: Any) -> Any:
    """Return an object as plain values, with the type's name for what has no text.

    Such a one is no label, and a row with it is blank whichever it is.  A text that
    another process writes otherwise (an address, the order of a set) is none.
    """
    try:
        return _told(value)
    except RecursionError:  # a list that holds itself
        return f"no text: {type(value).__qualname__}"


def _told(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_told(one) for one in value]
    if isinstance(value, np.ndarray):
        return _told(value.tolist()) if value.dtype.hasobject else value
    with suppress(Exception):  # of any kind, and nobody is told of it
        if isinstance(value, _TEXTS) and repr(value):
            return value
    return f"no text: {type(value).__qualname__}"


def machine() -> tuple[object, ...]:
    """Return what may change the last bit of a sum: libraries, threads, processor."""
    from armijo import __version__

    affinity = getattr(os, "sched_getaffinity", None)
    return (
        (__version__, np.__version__, scipy.__version__, torch.__version__),
        (platform.python_version(), platform.system(), platform.libc_ver()),
        (platform.node(), platform.machine(), platform.processor()),
        torch.backends.cpu.get_cpu_capability(),
        (torch.get_num_threads(), len(affinity(0)) if affinity else os.cpu_count()),
        (str(torch.get_default_dtype()), torch.get_float32_matmul_precision()),
        sorted(item for item in os.environ.items() if item[0].startswith(_THREADS)),
    )
