# SPDX-License-Identifier: Apache-2.0
"""The program with any words behind its name, and with any table behind a good one.

Words are separated by NUL, which no argument can hold.  The program runs in a folder
with good files; it works there only, without a network, and is interrupted once a
third charge shows that its arguments were taken.
"""

import io
import json
import os
import shutil
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple, NoReturn
from unittest.mock import patch

from hypothesis import strategies as st

from armijo.accounting.ledger import Ledger, MemoryLedger, read_ledger
from armijo.cli import main
from armijo.errors import PrivacyLeakWarning, RechargeWarning
from armijo.registry import METHODS
from tests.cli.small import small_frame, write_small
from tests.fuzz.limits import ended_after
from tests.fuzz.target import Target

ENDINGS = {0, 2, 3, 130}
WORKING = ("audit", "demo")
"""Commands whose work is long: they are interrupted after a moment."""
MOMENT = 0.5


def _words(line: str) -> bytes:
    return "\0".join(line.split()).encode()


FIT = "fit t.csv --schema schema.toml --epsilon 1 --delta 1e-5"
LINEAR = f"{FIT} --model logistic"
QUICK = f"{LINEAR} --method blsgd --option sampling_prob=1"
OLD = f"{QUICK} --out old --max-batches 2"
HALF = f"{QUICK} --out half"
LINES = (
    f"{FIT} --out new",
    f"{FIT} --out new --monotone age=+1 --insecure-seed 4",
    f"{LINEAR} --out new --method blsgd --option sampling_prob=0.5 --option expected_steps=10 --max-batches 2",  # noqa: E501
    f"{LINEAR} --out new --method sgd --option steps=3 --insecure-seed 4 --json",
    f"{FIT} --out new --method objpert --option data_norm=1 --model svm --target income",  # noqa: E501
    f"{LINEAR} --out new --method blsgd --accounting paper --option search_form=loss",
    f"{LINEAR} --out old --overwrite --leaky-diagnostics",
    f"{HALF} --resume",
    "account --sampling-prob 0.1 --noise-multiplier 2 --steps 100 --delta 1e-5 --json",
    "account --sampling-prob 1 --noise-multiplier 2 --steps 9 --delta 1e-5 --search-epsilon 0.1",  # noqa: E501
    "account --sampling-prob 0.1 --noise-multiplier 2 --steps 9 --delta 1e-5 --search-rho 0.1 "  # noqa: E501
    "--max-tries 4 --adaptive",
    "account --sampling-prob 0.1 --noise-multiplier 2 --steps 9 --delta 1e-5 --accounting paper",  # noqa: E501
    "calibrate --epsilon 1 --delta 1e-5 --sampling-prob 0.1 --steps 10",
    "calibrate --epsilon 1 --delta 1e-5 --sampling-prob 0.1 --steps 10 --adaptive --json",  # noqa: E501
    "schema t.csv --target income --out new.toml",
    "predict old t.csv --probabilities --out new.csv",
    "predict old t.parquet",
    "show old --json",
    "show half",
    "methods --json",
    "audit --method step --trials 20 --seed 3 --epsilon 2 --delta 0.1 --json",
    "demo --out new",
    "--help",
)
SEEDS = tuple(map(_words, LINES))
VALUES = (
    *("0", "-0.0", "1", "-1", "2", "0.5", "1e-9", "1e-300", "5e-324", "1e9", "1e300"),
    *("nan", "inf", "-inf", "1e400", "9" * 30, "-" + "9" * 30, "1_0", "0x10", " 1 "),
    *("", "-", "--", "=", "\udcff", "é", "\n", "x" * 300, "[" * 2000, "{}", "null"),
    *("t.csv", "schema.toml", "old", "half", "new", ".", "none.csv"),
    *("steps=2", "steps=1e9", "steps=null", 'epsilon="1"', "noise=[1]", "a.b=c", "=1"),
    *("steps=" + "[" * 2000, "steps=1e400", "steps=NaN", "max_grad_norm=0"),
    *("logistic", "svm", "paper", "sound", "adult", "mnist", "step"),
    *METHODS,
)


@cache
def _good_files() -> Path:
    """Make the folder with good files: a table, a run and an unfinished run."""
    folder = Path(mkdtemp(prefix="armijo-fuzz-"))
    small = write_small(folder)
    small_frame(40).to_csv(small.csv, index=False)
    for line, code in ((OLD, 0), (HALF, 130)):
        ended = _ended(folder, line.split())
        assert ended.code == code, ended
    return folder


def _offline(*given: Any) -> NoReturn:
    raise OSError("no network in this test")


def _third_charge_interrupts(owner: type, append: Any) -> Any:
    """Return an append that a person interrupts at the third charge."""
    seen: list[object] = []

    def call(self: Any, charge: Any) -> None:
        seen.append(charge)
        if len(seen) == 3:
            raise KeyboardInterrupt
        append(self, charge)

    return patch.object(owner, "append", call)


@contextmanager
def _surroundings(folder: Path, words: list[str]) -> Iterator[tuple[Any, Any]]:
    """Work in a folder, without network, with an end to what takes long."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        with ExitStack() as stack:
            stack.enter_context(patch.dict(os.environ, {"COLUMNS": "200"}))
            stack.enter_context(patch.object(sys, "argv", ["armijo", *words]))
            stack.enter_context(patch.object(socket.socket, "connect", _offline))
            stack.enter_context(patch.object(socket, "getaddrinfo", _offline))
            for owner in (MemoryLedger, Ledger):
                stack.enter_context(_third_charge_interrupts(owner, owner.append))
            if any(word in WORKING for word in words):
                stack.enter_context(ended_after(MOMENT, KeyboardInterrupt))
            stack.enter_context(warnings.catch_warnings())
            for told in (RechargeWarning, PrivacyLeakWarning):
                warnings.simplefilter("ignore", told)
            # As a terminal: text that is no UTF-8 is an error there.
            out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
            err = io.TextIOWrapper(
                io.BytesIO(), encoding="utf-8", errors="backslashreplace"
            )
            stack.enter_context(redirect_stdout(out))
            stack.enter_context(redirect_stderr(err))
            yield out, err
    finally:
        os.chdir(before)


class Ended(NamedTuple):
    """How the program ended, and what it told."""

    code: object
    out: bytes
    err: str


def _ended(folder: Path, words: list[str]) -> Ended:
    """Run the program in a folder."""
    with _surroundings(folder, words) as (out, err):
        code: object = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
        out.flush()
        err.flush()
    found = Ended(code, out.buffer.getvalue(), err.buffer.getvalue().decode())
    assert code in ENDINGS, found
    assert "Traceback" not in found.err
    assert code == 0 or found.err.strip(), "a refusal says why"
    return found


def _charges(folder: Path) -> int:
    """Return the number of charges in all ledgers of a folder."""
    paths = folder.rglob("ledger.jsonl")
    return sum(len(read_ledger(path).charges) for path in paths)


def arguments(folder: Path, content: bytes) -> bool:
    """Run the program; a refusal has spent nothing and left no half of a file."""
    # A folder above this one is not the program's to write to.
    harmless = content.replace(b"/", b"_").replace(b"..", b"__")
    words = harmless.decode(errors="surrogateescape").split("\0")
    place = folder / "place"
    shutil.copytree(_good_files(), place)
    try:
        before = _charges(place)
        ended = _ended(place, words)
        if ended.code in (2, 3):
            assert _charges(place) == before
            assert not [*place.rglob("*.new"), *place.rglob("*.part")]
        if ended.code == 0 and "--json" in words and "--help" not in words:
            json.loads(ended.out)
        return ended.code in (0, 130)
    finally:
        shutil.rmtree(place)


OPTIONS = sorted(
    {word for line in LINES for word in line.split() if word.startswith("-")}
)
NUMBERS = (
    st.sampled_from(["0", "1", "2", "3", "100", "0.5", "0.01", "1e-7", "1e-300", "1e9"])
    | st.floats().map(str)
    | st.integers().map(str)
    | st.floats(0, 1).map(str)
    | st.integers(0, 20).map(str)
)


def _is_number(word: str) -> bool:
    """Say whether a word of a good line is a number."""
    return word.replace(".", "").replace("e-", "").isdigit()


@st.composite
def _odd_numbers(draw: Any) -> bytes:
    """Return a good line with other numbers."""
    words = draw(st.sampled_from([line for line in LINES if " 1" in line])).split()
    places = [at for at, word in enumerate(words) if _is_number(word)]
    for at in draw(st.sets(st.sampled_from(places), min_size=1, max_size=2)):
        words[at] = draw(NUMBERS)
    return "\0".join(words).encode()


@st.composite
def _odd_words(draw: Any) -> bytes:
    """Return a good line with words lost, replaced or put in."""
    words = draw(st.sampled_from(LINES)).split()
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(1, len(words)))
        value = draw(st.sampled_from(VALUES) | NUMBERS)
        option = draw(st.sampled_from(OPTIONS))
        kept = draw(st.sampled_from([[value], [option, value], [option], []]))
        words[at : at + draw(st.integers(0, 1))] = kept
    return "\0".join(words).encode(errors="surrogateescape")


def fitted(folder: Path, content: bytes) -> bool:
    """Fit a table with any content: taken, or refused before a file is made."""
    place = folder / "fitted"
    place.mkdir()
    try:
        (place / "any.csv").write_bytes(content)
        shutil.copy(_good_files() / "schema.toml", place)
        code = _ended(place, OLD.replace("t.csv", "any.csv").split()).code
        left = {path.name for path in place.iterdir()} - {"any.csv", "schema.toml"}
        assert code == 0 or not left
        return code == 0
    finally:
        shutil.rmtree(place)


def resumed(folder: Path, content: bytes, *, damaged: str) -> bool:
    """Go on with a run one of whose files has any content."""
    place = folder / "resumed"
    shutil.copytree(_good_files(), place)
    try:
        (place / "half" / damaged).write_bytes(content)
        ledger = place / "half" / "ledger.jsonl"
        before = ledger.read_bytes()
        ended = _ended(place, f"{HALF} --resume".split())
        whole = before[: before.rfind(b"\n") + 1]  # a torn line may be cut off
        assert ledger.read_bytes().startswith(whole)
        if ended.code in (2, 3):
            assert b'"charge"' not in ledger.read_bytes()[len(before) :]
        return ended.code in (0, 130)
    finally:
        shutil.rmtree(place)


def resume_target(damaged: str) -> Target:
    """Return the target for one file of an unfinished run."""
    return Target(
        run=partial(resumed, damaged=damaged),
        seeds=((_good_files() / "half" / damaged).read_bytes(),),
        few=8,
        many=300,
    )


TABLE = small_frame(30).to_csv(index=False).encode()
CLI_TARGETS = {
    "arguments": Target(
        run=arguments,
        seeds=SEEDS,
        built=_odd_numbers() | _odd_words(),
        few=40,
        many=1500,
        guided=500,
    ),
    "fit": Target(run=fitted, seeds=(TABLE,), few=10, many=500, guided=0),
}
