# SPDX-License-Identifier: Apache-2.0
"""One ledger, one owner: other processes, threads, children and kills."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from armijo.accounting.ledger import Ledger, read_ledger
from armijo.errors import LedgerError
from tests.accounting.ledger_samples import HEADER, charge, extend


def run_python(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a Python process that has the ledger imported and HEADER set."""
    imports = "from armijo.accounting.ledger import Charge, Ledger\n"
    imports += "from armijo.errors import LedgerError\nimport os, sys\n"
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"{imports}HEADER = {HEADER!r}\n{textwrap.dedent(script)}",
            *map(str, arguments),
        ],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def test_the_second_opener_is_refused(path, tmp_path):
    alias = tmp_path / "alias"
    alias.symlink_to(path)
    with Ledger.open(path, header=HEADER) as ledger:
        for name in (path, alias, os.path.relpath(path)):
            with pytest.raises(LedgerError, match=r"run\.ledger is in use by another"):
                Ledger.open(name, header=HEADER)
        other = run_python(
            """
            try:
                Ledger.open(sys.argv[1], header=HEADER)
            except LedgerError as error:
                print(error)
            """,
            path,
        )
        assert (
            f"{path} is in use by another process" in other.communicate(timeout=60)[0]
        )
        ledger.append(charge(0, (0.5,)))
    extend(alias, [(0.25,)])
    assert read_ledger(path).spent == (0.75,)


def test_a_forgotten_ledger_frees_its_lock(path):
    ledger = Ledger.open(path, header=HEADER)
    descriptors = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    del ledger
    gc.collect()
    if descriptors:
        assert len(os.listdir("/proc/self/fd")) == descriptors - 2
    Ledger.open(path, header=HEADER).close()


def test_a_failed_opening_leaves_no_lock_and_no_descriptor(path):
    path.write_text("something else")
    count = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    held = []  # the traceback keeps the half-made object alive
    for _ in range(3):
        with pytest.raises(LedgerError, match="is not a ledger") as refusal:
            Ledger.open(path, header=HEADER)
        held.append(refusal)
    if count:
        assert len(os.listdir("/proc/self/fd")) == count
    path.unlink()
    Ledger.open(path, header=HEADER).close()


def test_killing_the_holder_frees_the_lock_and_loses_no_charge(path):
    script = """
    ledger = Ledger.open(sys.argv[1], header=HEADER)
    while True:
        ledger.append(Charge(ledger.next_index, "step", {}, (0.5,)))
        print(ledger.next_index, flush=True)
    """
    for reached in (3, 40, 90):
        holder = run_python(script, path)
        assert holder.stdout is not None
        seen = 0
        while seen < reached:
            seen = int(holder.stdout.readline())
        with pytest.raises(LedgerError, match="in use"):
            Ledger.open(path, header=HEADER)
        holder.send_signal(signal.SIGKILL)
        # Not communicate(), which passes over what readline has in its buffer.
        seen = max([seen, *map(int, holder.stdout.read().split())])
        holder.communicate(timeout=60)  # closes the pipes
        with Ledger.open(path, header=HEADER) as ledger:
            # At most the charge that was on its way is counted and was not reported.
            assert seen <= ledger.next_index <= seen + 1
            assert ledger.spent == (0.5 * ledger.next_index,)


def test_a_child_process_cannot_charge_nor_free_the_lock(path):
    script = """
    ledger = Ledger.open(sys.argv[1], header=HEADER)
    ledger.append(Charge(0, "", {}, (0.5,)))
    child = os.fork()
    if not child:
        try:
            ledger.append(Charge(1, "", {}, (0.5,)))
        except LedgerError as error:
            ledger.close()
            del ledger
            sys.exit("a child of it" not in str(error))
        sys.exit(2)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    sys.stdin.readline()
    ledger.append(Charge(1, "", {}, (0.25,)))
    """
    parent = run_python(script, path)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "0\n"
    with pytest.raises(LedgerError, match="in use"):
        Ledger.open(path, header=HEADER)
    parent.communicate("\n", timeout=60)
    assert parent.returncode == 0
    assert read_ledger(path).spent == (0.75,)


def test_threads_on_one_ledger_never_break_the_file(path):
    refused = []

    def work(ledger: Ledger) -> None:
        for _ in range(20):
            try:
                ledger.append(charge(ledger.next_index, (0.5,)))
            except LedgerError:  # another thread took the index
                refused.append(1)

    with Ledger.open(path, header=HEADER) as ledger:
        threads = [threading.Thread(target=work, args=(ledger,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(read_ledger(path).charges) == 80 - len(refused)
    assert ledger.spent == read_ledger(path).spent
