# SPDX-License-Identifier: Apache-2.0
"""Crash runs, resume them, and compare with the run that nothing interrupted.

``python -m tests.crash.harness kills --count 500`` kills processes at random instants;
``python -m tests.crash.harness faults`` fails every call that writes, once.  Both print
one JSON object and raise at the first contradiction; ``broken`` shows that they do, by
breaking the package in one way after the other.

Each attempt is a process of its own, forked from this one, which has everything
imported and computes on one thread.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from armijo.accounting.ledger import read_ledger
from armijo.errors import ArmijoError
from tests.crash.broken import BROKEN
from tests.crash.disk import DEATH, FAULTS, FailingDisk
from tests.crash.recorder import Recorder, Witness
from tests.crash.subjects import (
    STEPS,
    Subject,
    command_line,
    linear,
    save_often,
    solve_once,
    tiny_network,
)

REFUSED = 78  # the run said what was wrong and ended


def forked(work: Callable[[], None], *, kill_after: float | None = None) -> int:
    """Do something in a child process; return its exit code, -9 if it was killed."""
    child = os.fork()
    if not child:
        code = 1
        try:
            work()
            code = 0
        except ArmijoError:
            code = REFUSED
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Trial:
    """One run in one folder, attempted until it is whole."""

    def __init__(self, subject: Subject, folder: Path, every: float) -> None:
        self.subject, self.folder, self._every = subject, folder, every
        folder.mkdir()
        self.run = folder / "run"
        self.witness = Witness()
        self._attempts = 0

    def attempt(
        self, disk: FailingDisk | None = None, *, kill_after: float | None = None
    ) -> int:
        """Start or resume the run in a process, and check what that left."""
        self._attempts += 1
        log = self.folder / f"log-{self._attempts}"
        calls = self.folder / "calls"

        def work() -> None:
            save_often(self._every)
            recorder = Recorder(log)
            recorder.install()
            if disk is not None:
                disk.install()
            self.subject.go(self.run, recorder.seen)
            if disk is not None:
                calls.write_text(" ".join(disk.calls))

        code = forked(work, kill_after=kill_after)
        self.witness.hear(log)
        ledger = self.run / self.subject.ledger
        if ledger.exists():
            self.witness.check_ledger(read_ledger(ledger))
        else:
            assert not self.witness.drawn, "bits were drawn before there was a ledger"
        return code

    def finish(self, reference: "Trial | None") -> None:
        """Let the run end, and compare it with the one that nothing interrupted."""
        if self.subject.finished(self.run) is None:
            assert self.attempt() == 0, "the run does not end after a crash"
        left = [path.name for path in self.run.rglob("*.key")]
        assert not left, f"{left} outlived the run"
        if reference is None:
            return
        assert self.subject.finished(self.run) == reference.subject.finished(
            reference.run
        ), "the model differs from that of the uninterrupted run"
        whole, own = (read_ledger(t.run / t.subject.ledger) for t in (reference, self))
        assert own.charges == whole.charges, "charges were lost or doubled"
        assert own.spent == whole.spent
        assert self.witness.seen.items() <= reference.witness.seen.items()
        assert self.witness.drawn == reference.witness.drawn


# An adaptive run, a planned run, the default method (its passes over the rows, steps
# and a search), a network and the command line.
SUBJECTS: dict[str, Callable[[Path], Subject]] = {
    "blsgd": lambda place: linear(
        "blsgd", 4.0, {"gradient_rho": 0.02, "search_epsilon": 0.2}
    ),
    "sgd": lambda place: linear("sgd", 1.0, {"steps": STEPS, "sampling_prob": 0.5}),
    "auto": lambda place: linear("auto", 1.0, {"steps": STEPS + 1}, most=None),
    "network": lambda place: tiny_network(),
    "armijo fit": command_line,
}


def whole_run(subject: Subject, place: Path) -> tuple[Trial, float, list[str]]:
    """Return a run that nothing interrupts, its seconds, and its calls to the disk."""
    # Once in this process: what is solved there is remembered in the children.
    (place / "warm").mkdir()
    subject.go(place / "warm", lambda record: None)
    trial = Trial(subject, place / "whole", 0.0)
    begin = time.monotonic()
    assert trial.attempt(FailingDisk(trial.run)) == 0
    seconds = time.monotonic() - begin
    trial.finish(None)
    assert trial.witness.drawn and trial.witness.seen
    return trial, seconds, (trial.folder / "calls").read_text().split()


def kills(subject: Subject, place: Path, count: int, seed: int) -> dict[str, int]:
    """Kill a run at random instants, up to three times each, until ``count`` kills."""
    draw = random.Random(seed)
    reference, seconds, _ = whole_run(subject, place)
    done = runs = 0
    while done < count:
        trial = Trial(subject, place / f"run-{runs}", draw.choice([0.0, 0.02, 5.0]))
        for _ in range(draw.randint(1, 3)):
            code = trial.attempt(kill_after=draw.uniform(0, seconds))
            assert code in (0, -signal.SIGKILL), f"exit code {code}"
            done += code != 0
            # A run takes longer or shorter with what else the machine does.
            seconds *= 1.05 if code else 0.9
            if subject.finished(trial.run) is not None:
                break
        trial.finish(reference)
        runs += 1
    return {"kills": done, "runs": runs}


def faults(
    subject: Subject, place: Path, again: int, seed: int, most: int = sys.maxsize
) -> dict[str, int]:
    """Fail each call once in each way; then ``again`` runs with two failing calls.

    Of more than ``most`` cases, so many are drawn.
    """
    draw = random.Random(seed)
    reference, _, calls = whole_run(subject, place)
    cases = [
        (fault, number, 0)
        for fault, names in FAULTS.items()
        for number, name in enumerate(calls, 1)
        if name in names
    ]
    twice = [
        (fault, number, draw.randint(1, len(calls)))
        for fault, number, _ in draw.choices(cases, k=again)
    ]
    if most < len(cases):
        cases = draw.sample(cases, most)
    cases += twice
    died = refused = 0
    for place_number, (fault, number, second) in enumerate(cases):
        every = 5.0 if second else 0.0
        trial = Trial(subject, place / f"run-{place_number}", every)
        codes = [trial.attempt(FailingDisk(trial.run, fault, number))]
        if second and trial.subject.finished(trial.run) is None:
            other = FailingDisk(trial.run, draw.choice(list(FAULTS)), second)
            codes.append(trial.attempt(other))
        assert set(codes) <= {0, DEATH, REFUSED}, (fault, number, second, codes)
        died += codes.count(DEATH)
        refused += codes.count(REFUSED)
        trial.finish(reference)
    counts = {"calls": len(calls), "runs": len(cases)}
    return {**counts, "died": died, "refused": refused}


def broken(subject: Subject, place: Path, seed: int) -> dict[str, str]:
    """Return what the faults found in each broken variant of the package."""
    found = {}
    for name, spoil in BROKEN.items():
        own = place / name.replace(" ", "-")
        own.mkdir()

        def work(spoil: Callable[[], None] = spoil, own: Path = own) -> None:
            spoil()
            try:
                faults(subject, own, 0, seed)
            except (AssertionError, ArmijoError) as error:  # or the ledger notices
                (own / "found").write_text(str(error))

        assert forked(work) == 0
        found[name] = (own / "found").read_text() if (own / "found").exists() else ""
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.harness")
    parser.add_argument("what", choices=["kills", "faults", "broken"])
    parser.add_argument("--subject", choices=SUBJECTS, action="append")
    parser.add_argument("--count", type=int, default=60, help="kills of each subject")
    parser.add_argument("--most", type=int, default=sys.maxsize, help="single faults")
    parser.add_argument("--again", type=int, default=20, help="runs with two faults")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    found: dict[str, object] = {}
    solve_once()
    # In memory if possible: what a disk may do to files is up to the double.
    shared = Path("/dev/shm")
    memory = shared if os.access(shared, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        for name in asked.subject or SUBJECTS:
            own = Path(folder, name)
            own.mkdir()
            subject = SUBJECTS[name](own / "table")
            if asked.what == "kills":
                found[name] = kills(subject, own, asked.count, asked.seed)
            elif asked.what == "faults":
                counts = (asked.again, asked.seed, asked.most)
                found[name] = faults(subject, own, *counts)
            else:
                found[name] = broken(subject, own, asked.seed)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
