# SPDX-License-Identifier: Apache-2.0
"""The only driver: accountant, gate, method, loop and files of a run put together.

Estimators, :func:`armijo.solve`, :func:`armijo.train`, the audit and the command line
all train by a :class:`Run`.  A step is charged, made, committed, and only then seen.
"""

import atexit
import json
import math
import os
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from inspect import GEN_RUNNING, getgeneratorstate
from pathlib import Path
from typing import Any, Literal, Self, Unpack
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from armijo import _validate
from armijo.accounting.accountants import (
    Accountant,
    NonPrivateAccountant,
    PlannedAccountant,
    PrivacyFilter,
    PrivacyStatement,
    RunTerms,
)
from armijo.accounting.budget import Budget, Computed, Neighboring
from armijo.accounting.calibration import epsilon_of, order_for
from armijo.accounting.ledger import Charge, Ledger, MemoryLedger
from armijo.accounting.mechanisms import Mechanism, Subsampled
from armijo.accounting.paper import PaperAccountant
from armijo.data.blocks import RowBlocks
from armijo.data.distributed import SINGLE, ProcessGroup
from armijo.data.gate import PrivateDataset, refuse_in_blocks
from armijo.data.sources import RowSource
from armijo.errors import BudgetExceeded, Diverged, LedgerError
from armijo.methods.additive import Additive
from armijo.methods.base import (
    Method,
    OneShot,
    Problem,
    S,
    State,
    StepRecord,
    leaves,
    minimize,
)
from armijo.methods.line_search import LineSearch
from armijo.objectives.additive import AdditiveObjective
from armijo.objectives.base import Objective
from armijo.objectives.elementwise import elementwise_self_test
from armijo.objectives.linear import LinearObjective
from armijo.randomness import Randomness
from armijo.training.checkpoint import (
    Checkpoint,
    from_bytes,
    read_checkpoint,
    save_checkpoint,
)
from armijo.training.replay import ReplayableRun

Accounting = Literal["sound", "paper"]
Callback = Callable[[StepRecord], object]
Steps = Generator[StepRecord, None, None]

MAX_WEIGHT = 1e80
"""Far above any trained weight; its square, and its scores, are still numbers."""

_SAVE_EVERY = 5.0  # seconds between checkpoints: what a killed run may have to redo
_OPEN: "WeakKeyDictionary[Steps, int]" = WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True)
class RunFiles:
    """Where a run leaves its charges and its state.

    Attributes
    ----------
    ledger : path or None
        The charges; a checkpoint without it gets one beside it.
    checkpoint : path or None
        The state; the key of the run lies beside it until the run has ended.
    every : int or None
        Steps between checkpoints; None writes one every few seconds.
    resume : bool
        Whether to go on from the checkpoint and its ledger.
    named : mapping
        Public JSON values that ledger and checkpoint must share with the run.
    ready : callable or None
        Called once nothing is left to refuse, before the first file is made; it may
        make the folder.
    """

    ledger: str | os.PathLike[str] | None = None
    checkpoint: str | os.PathLike[str] | None = None
    every: int | None = None
    resume: bool = False
    named: Mapping[str, Any] = field(default_factory=dict)
    ready: Callable[[], object] | None = None

    def __post_init__(self) -> None:
        _validate.path(ledger=self.ledger, checkpoint=self.checkpoint)
        _validate.boolean(resume=self.resume)
        if self.every is not None:
            _validate.at_least(1, checkpoint_every=self.every)
        if self.checkpoint is None:
            if self.resume:
                raise ValueError("Expected a checkpoint to resume from, got None.")
            return
        folder = Path(self.checkpoint).parent
        if self.ready is None and not folder.is_dir():
            raise ValueError(
                f"Expected a checkpoint in a folder that exists, got {folder}; make "
                "it first. Nothing was spent."
            )

    @property
    def ledger_path(self) -> Path | None:
        """The file of the charges: beside the checkpoint, if no other is named.

        A checkpoint alone would forget what its steps cost: a run that was killed would
        be resumed with fresh noise on the whole budget.
        """
        if self.ledger is not None or self.checkpoint is None:
            return None if self.ledger is None else Path(self.ledger)
        path = Path(self.checkpoint)
        return path.with_name(path.name + ".ledger")


class Run:
    """A private run, step by step: iterate over it.

    Everything that can be refused is refused before the first charge.  A loop may be
    left early: ledger and checkpoint are written when the iterator is closed, at the
    latest when the program exits.

    Parameters
    ----------
    objective : Objective
        What is minimized.
    source : RowSource
        The private rows.
    method : Method
        The algorithm, calibrated here.
    budget : Budget
        The preset guarantee.
    n_rows : int
        The public number of rows.
    relation : Neighboring
        The neighboring relation, where the method's proof has none of its own.
    accounting : {"sound", "paper"}
        "paper" reproduces the analysis as published and gives no guarantee.
    max_batches : int or None
        Most batches; None goes on until the budget refuses.
    seed : int or None
        None draws from the operating system; a seed voids the guarantee.
    computed : Computed or None
        How numbers are computed; None is for linear models.
    leaky : bool
        Whether exact values are recorded beside the run, which voids the guarantee.
    files : RunFiles or None
        Where charges and state are written; None keeps them in memory.
    group : ProcessGroup or None
        The processes that hold the rows together; None is this one alone.
    code : object
        What else the results depend on, as plain values.

    Attributes
    ----------
    method : Method
        The calibrated method.
    accountant : Accountant
        What watches the run.
    records : list of StepRecord
        Released values of the steps so far.
    evaluations : list of (int, float)
        Step and value of each evaluation of a hook.

    Raises
    ------
    BudgetExceeded
        Not one batch is affordable.
    """

    def __init__(
        self,
        objective: Objective,
        source: RowSource,
        method: Method[Any],
        budget: Budget,
        *,
        n_rows: int,
        relation: Neighboring,
        accounting: Accounting = "sound",
        max_batches: int | None = None,
        seed: int | None = None,
        computed: Computed | None = None,
        leaky: bool = False,
        files: RunFiles | None = None,
        group: ProcessGroup | None = None,
        code: object = None,
    ) -> None:
        self.objective, self._max_batches = objective, max_batches
        self._files, self._group = files or RunFiles(), group or SINGLE
        self._process, self._saved = os.getpid(), time.monotonic()
        self._abandoned = False
        self._named = {**self._files.named, "seed": seed}
        described_objective = None
        if isinstance(objective, LinearObjective | AdditiveObjective):
            described_objective = objective  # all of it is public settings
        _refuse_unfit(method, objective, accounting, method.relation or relation)
        _refuse_source(method, source, self._group)
        problem = Problem(objective=described_objective, n_rows=n_rows)
        self.method = method.calibrate(budget, problem)
        self._refuse_cut()
        start = self.method.init(objective.start())
        if isinstance(source, RowBlocks):
            refuse_in_blocks(self.method.plan(start), source)
        past = self._past(start) if self._files.resume else None
        self.records = [] if past is None else past.records
        self.evaluations = [] if past is None else past.evaluations
        self.accountant = accountant_for(
            self.method,
            start,
            budget,
            accounting=accounting,
            relation=method.relation or relation,
            insecure_deterministic=seed is not None,
            leaky_diagnostics=leaky,
            computed=computed or Computed(assumptions=(elementwise_self_test(),)),
        )
        # Sums on a GPU, or over processes that died, need not repeat to the last bit.
        repeats = self._group.size == 1 and start.w.device.type == "cpu"
        described = (n_rows, relation, accounting, max_batches, leaky)
        self._replay: ReplayableRun | None = None
        if self._files.checkpoint is not None:
            self._replay = ReplayableRun(
                self._files.checkpoint,
                source,
                (self._named, budget, method, described, described_objective, code),
                repeats=repeats,
                only_whole=self.method.only_whole,
            )
            if past is not None:
                self._replay.refuse_other_rows()
        self._position = start if past is None else past.state, 0
        if self._files.ready is not None:
            self._refuse_used_up()  # what is there stays as it is
            self._files.ready()
        self._group.all_or_none(lambda: self._open_ledger(past))
        self._share_ledger()
        self._position = self.state, self.accountant.n_charges
        randomness = Randomness()
        if self._replay is not None:
            randomness = self._replay.randomness
        if seed is not None:
            randomness = Randomness(
                seed=seed, rank=self._group.rank, insecure_deterministic=True
            )
        try:
            self._data = PrivateDataset(
                source,
                n_rows=n_rows,
                accountant=self.accountant,
                randomness=randomness,
                group=self._group,
                commit=None if self._replay is None else self._replay.commit_total,
            )
            self._refuse_used_up()
        except BaseException:
            self.accountant.ledger.close()
            raise

    @property
    def state(self) -> Any:
        """The method's state after the last finished step."""
        return self._position[0]

    @property
    def w(self) -> Tensor:
        """The released parameters after the last finished step."""
        return self.state.w

    @property
    def privacy(self) -> PrivacyStatement:
        """Guarantee and charges so far."""
        return PrivacyStatement.of(self.accountant)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.method!r}, {self.accountant.guarantee}, "
            f"steps_made={len(self.records)})"
        )

    def __iter__(self) -> Steps:
        steps = self._steps()
        _OPEN[steps] = self._process
        return steps

    def _steps(self) -> Steps:
        """Make the steps, and leave consistent files in any case."""
        left, ledger = self._max_batches, self.accountant.ledger
        if left is not None:
            left = max(left - len(self.records), 0)
        with closing(ledger):
            try:
                self._save()
                for state, record in minimize(
                    self.objective,
                    self._data,
                    self.method,
                    self.state,
                    max_batches=left,
                ):
                    self._keep(state, record)
                    yield record
            except Diverged:
                ledger.finish({})
                self._abandon()
                raise
            finally:
                if may_compute(self._process):
                    self._show()
                    self._save()
            ledger.finish(released(self.w))
            self._end()

    def complete(self, callback: Callback | None = None) -> Self:
        """Make all steps that are left; a callback that returns True stops the run."""
        with closing(iter(self)) as steps:
            for record in steps:
                if callback is not None and callback(record) is True:
                    if self._files.checkpoint is None:  # nobody can go on from here
                        self.accountant.ledger.finish(released(self.w))
                    break
        return self

    def _keep(self, state: State, record: StepRecord) -> None:
        """Take a finished step, before anybody else sees it."""
        if self._replay is not None:
            self._replay.commit(state, record)
        refuse_diverged(state, record)  # which is seen, hence after it was committed
        self.records.append(record)
        # One assignment, so that an interrupt finds all of a step or nothing of it.
        self._position = state, record.batch + 1
        self._show()
        self._evaluate_step()
        every = self._files.every
        if every is None:
            due = time.monotonic() - self._saved > _SAVE_EVERY
        else:
            due = len(self.records) % every == 0
        if due:
            self._save()

    def _show(self) -> None:
        """Put the released parameters where the user sees them."""

    def _evaluate_step(self) -> None:
        """Call a hook on the released parameters when it is due."""

    def _save(self) -> None:
        """Write the checkpoint, if there is a place for it; the main process does."""
        self._saved, path = time.monotonic(), self._files.checkpoint
        if path is None or self._abandoned or not self._group.is_main:
            return
        assert self._replay is not None
        state, charges = self._position
        records = [record for record in self.records if record.batch < charges]
        checkpoint = Checkpoint(
            state, records, charges=charges, evaluations=self.evaluations
        )
        save_checkpoint(
            path, run=self._named, checkpoint=self._replay.signed(checkpoint)
        )

    def _end(self) -> None:
        """Destroy the key: it is for an unfinished run only."""
        if self._replay is not None:
            self._replay.end()

    def _abandon(self) -> None:
        """End a run that left nothing to go on from."""
        self._end()  # first: what a crash leaves then cannot undo noise
        path, self._abandoned = self._files.checkpoint, True
        if path is not None and self._group.is_main:
            Path(path).unlink(missing_ok=True)

    def _past(self, start: S) -> Checkpoint:
        """Read the checkpoint to go on from: for everybody that of the main process."""
        path, group = self._files.checkpoint, self._group
        assert path is not None

        def read() -> bytes:
            data = read_checkpoint(path) if group.is_main else b""
            if group.is_main:
                from_bytes(data, path=path, run=self._named, like=start)
                self._refuse_missing_ledger()
            return data

        data = group.all_or_none(read)
        sent = group.broadcast_bytes(lambda: data)
        return from_bytes(sent, path=path, run=self._named, like=start)

    def _refuse_missing_ledger(self) -> None:
        ledger = self._files.ledger_path
        if ledger is not None and not ledger.exists():
            raise LedgerError(
                f"Asked to resume, but the ledger {ledger} is not there; without it "
                "what was spent is not known. Bring it back; nothing was spent now."
            )

    def _open_ledger(self, past: Checkpoint | None) -> None:
        """Open the main process's ledger for the charges after the checkpoint."""
        if not self._group.is_main:
            return
        path = self._files.ledger_path
        if path is None:
            return
        header = {**self.accountant.header(), "run_settings": self._named}
        ledger = Ledger.open(path, header=header)
        try:
            if self._replay is not None:
                self._replay.take_up(ledger, past)
            self.accountant.attach(ledger)
        except BaseException:
            ledger.close()
            raise

    def _share_ledger(self) -> None:
        """Let the other processes go on from the same charges, without a file."""
        if self._group.size == 1:
            return
        made = [vars(charge) for charge in self.accountant.ledger.charges]
        sent = self._group.broadcast_bytes(lambda: json.dumps(made).encode())
        if not self._group.is_main:
            ledger = MemoryLedger()
            for values in json.loads(sent):
                ledger.append(Charge(**values))
            self.accountant.attach(ledger)

    def _refuse_cut(self) -> None:
        """Refuse to cut a planned run by max_batches: its noise is for all of it."""
        schedule, most = self.method.schedule(), self._max_batches
        if most is not None:
            _validate.at_least(0, max_batches=most)
        planned = sum(count for _, count in schedule or ())
        if most and planned > most:
            raise ValueError(
                f"Expected at most max_batches={most} batches, got a plan of {planned};"
                " lower the steps or raise max_batches. Nothing was spent."
            )

    def _refuse_used_up(self) -> None:
        """Refuse to begin with a ledger that leaves nothing for a batch."""
        if self.records or self._max_batches == 0:
            return
        if self.accountant.affords(self.method.plan(self.state).mechanism):
            return
        self._end()
        budget = self.accountant.budget
        raise BudgetExceeded(
            f"Not one batch is affordable: {self.accountant.n_charges} charges of the "
            f"ledger use up epsilon {budget.epsilon:g} at delta {budget.delta:g}, or a "
            "single one exceeds it. Nothing more was spent; resume from the checkpoint "
            "for what they bought, raise epsilon in a new ledger, or lower the budgets "
            "of a step."
        )


def _refuse_unfit(
    method: Method[Any], objective: Objective, accounting: str, relation: Neighboring
) -> None:
    name, coded = type(method).__name__, isinstance(objective, AdditiveObjective)
    if coded and not isinstance(method, Additive):
        raise ValueError(
            f"Expected the additive method for a coded table, got {name}; give arrays, "
            "or leave the method out. Nothing was spent."
        )
    if coded and relation is Neighboring.REPLACE_ONE:
        raise ValueError(
            "Expected the add-remove or zero-out relation for a coded table, got "
            "replace-one: its noise is for one row more or less. Nothing was spent."
        )
    classes = getattr(objective, "outputs", 1)
    if classes > 1 and not method.multi_class:
        raise ValueError(
            f"Expected two classes, got {classes}; {name} is for binary "
            "labels. Nothing was spent."
        )
    _validate.choice(("sound", "paper"), accounting=accounting)
    if accounting == "paper" and not isinstance(method, LineSearch):
        raise ValueError(
            "Expected accounting='sound', got 'paper', which reproduces the published "
            f"analysis of the line-search methods only, not of {name}. Nothing was "
            "spent."
        )


def _refuse_source(method: Method[Any], source: RowSource, group: ProcessGroup) -> None:
    """Refuse a method that asks for more than where the rows lie can answer."""
    name = type(method).__name__
    if isinstance(source, RowBlocks) and not method.only_sums:
        raise ValueError(
            f"Expected a method that only sums over rows, got {name}: rows that do not "
            'lie in memory cannot serve it. Use method="auto", or load the rows. '
            "Nothing was spent."
        )
    if group.size > 1 and isinstance(method, OneShot):
        raise ValueError(
            f"Expected one process for {name}, got several: it is no sum over rows. "
            "Run it without torchrun. Nothing was spent."
        )


def released(w: Tensor) -> dict[str, str]:
    """Return the digest of released parameters, for the closing line of a ledger.

    SHA-256 of their bytes in the type that they have, in order.
    """
    held = w.detach().cpu().contiguous().view(torch.uint8).numpy()
    return {"parameters": sha256(held.tobytes()).hexdigest()}


def accountant_for(
    method: Method[S],
    start: S,
    budget: Budget,
    *,
    accounting: Accounting = "sound",
    **terms: Unpack[RunTerms],
) -> Accountant:
    """Return the accountant of a method, after checking that one step fits at all.

    Charges that are fixed beforehand are planned, others go through a filter whose
    order is chosen for the first of them.
    """
    schedule = method.schedule()
    if not method.private:
        accesses = sum(count for _, count in schedule or ())
        return NonPrivateAccountant(budget, accesses=accesses, **terms)
    if schedule is not None:
        return PlannedAccountant(budget, schedule, **terms)
    if accounting == "paper":
        return PaperAccountant(budget, **terms)
    order = _order_of_filter(budget, method.plan(start).mechanism)
    return PrivacyFilter(budget, order=order, **terms)


@lru_cache(maxsize=256)
def _order_of_filter(budget: Budget, step: Subsampled) -> int:
    """Return the order chosen for a first step; kept, since folds ask for the same."""
    _refuse_tiny(budget, step)
    return order_for(budget, step)


def _refuse_tiny(budget: Budget, step: Mechanism) -> None:
    """Say what epsilon would do when not even one step fits."""
    needed, _ = epsilon_of(step, 1, budget.delta, accountant="adaptive")
    if needed > budget.epsilon:
        raise BudgetExceeded(
            f"Epsilon {budget.epsilon:g} at delta {budget.delta:g} is too small for a "
            f"single step, which needs epsilon {_rounded_up(needed):g}; raise epsilon "
            "to that, or lower what a step costs (gradient_rho and search_epsilon, or "
            "more expected steps or splits). Nothing was spent."
        )


def _rounded_up(value: float) -> float:
    """Round up to four digits, so that what a message names is enough."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return float(f"{math.ceil(value / unit) * unit:.4g}")


def refuse_diverged(state: State, record: StepRecord) -> None:
    """Raise if the step left something that no later step could use.

    To be asked of released values only: whether it raises is seen by everybody.

    Raises
    ------
    Diverged
        A weight is above :data:`MAX_WEIGHT`, or some value is no finite number.
    """
    told = {**vars(record), "gradient_rho": 0.0}  # infinite in a step without noise
    values = leaves((*vars(state).values(), *told.values()))
    if float(state.w.abs().max()) <= MAX_WEIGHT and all(map(_finite, values)):
        return
    raise Diverged(
        f"The run diverged: expected finite values and weights of at most "
        f"{MAX_WEIGHT:g}, found others after batch {record.batch}. The "
        f"{record.batch + 1} charges (epsilon {record.epsilon:.4g} so far) stay spent, "
        "and there is no model; begin a new run, with a budget of its own and a "
        "smaller step size."
    )


def _finite(leaf: Any) -> bool:
    if isinstance(leaf, Tensor):
        # One pass in most cases: a sum of finite numbers may still be too large.
        return math.isfinite(leaf.sum()) or bool(torch.isfinite(leaf).all())
    return not isinstance(leaf, float) or math.isfinite(leaf)


def may_compute(process: int) -> bool:
    """Say whether a run of ``process`` may use torch and write its files here.

    Not in a forked child, which would write the parent's files, and not once the
    interpreter tears down its modules.
    """
    return os.getpid() == process and not sys.is_finalizing()


@atexit.register
def _close_all() -> None:
    """Close runs that are still open when the interpreter exits, while torch works.

    An iterator that is suspended in a variable of a script would otherwise be finalized
    while modules are torn down: computing with tensors then fails or aborts the process
    (an assertion of torch about a tensor that comes back to life), and the last
    checkpoint is lost.  A generator that another thread is running is left to it.
    """
    for steps, process in list(_OPEN.items()):
        if process == os.getpid() and getgeneratorstate(steps) != GEN_RUNNING:
            steps.close()
