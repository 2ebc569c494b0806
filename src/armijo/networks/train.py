# SPDX-License-Identifier: Apache-2.0
"""``armijo.train``: any torch module under differential privacy, nothing to tune."""

import math
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Self

from torch import nn

from armijo import _validate
from armijo.accounting.accountants import Accountant, PrivacyStatement
from armijo.accounting.budget import Budget, as_budget
from armijo.data.private import PrivateDataset
from armijo.data.process_group import ProcessGroup, SingleProcess, TorchProcessGroup
from armijo.data.sources import ExampleSource
from armijo.errors import BudgetExceeded, Diverged, LedgerError
from armijo.methods.base import Method, StepRecord, minimize
from armijo.networks.at_exit import closed_at_exit, may_compute
from armijo.networks.distributed import (
    broadcast_init,
    load_on_all_ranks,
    rank_rng,
    share_ledger,
)
from armijo.networks.inputs import (
    check_source,
    computed_by,
    public_rows,
    refuse_missing_device,
    relation_of,
    source_of,
)
from armijo.networks.progress import evaluating, shown
from armijo.networks.settings import (
    Path_,
    TrainSettings,
    code_of,
    default_sampling_prob,
    default_steps,
)
from armijo.networks.shards import refuse_shards
from armijo.objectives.ghost.checks import Loss
from armijo.objectives.module import ModuleObjective
from armijo.randomness import Seed, as_seed
from armijo.registry import network_method, sizes_of
from armijo.training.accounts import accountant_for
from armijo.training.checkpoint import Checkpoint, save_checkpoint
from armijo.training.divergence import refuse_diverged
from armijo.training.replay import ReplayableRun, released

Evaluate = Callable[[nn.Module], float]


class Trainer:
    """A private training, step by step: iterate over it.

    Each iteration makes one step and gives its record; the module then has the latest
    parameters.  A loop may be left early: ledger and checkpoint are written when the
    iterator is closed, at the latest when the program exits.

    Parameters
    ----------
    model, loss, dataset, budget, ...
        Those of :func:`armijo.train`, which makes all steps at once.

    Attributes
    ----------
    records : list of StepRecord
        Released values of the steps so far.
    evaluations : list of (int, float)
        Step and value of each evaluation of the hook.
    privacy : PrivacyStatement
        The guarantee and the charges so far.
    accountant : Accountant
        What watches the run.

    Examples
    --------
    >>> import armijo, torch
    >>> trainer = armijo.Trainer(
    ...     torch.nn.Linear(4, 3),
    ...     torch.nn.CrossEntropyLoss(reduction="none"),
    ...     (torch.zeros(300, 4), torch.arange(300) % 3),
    ...     armijo.Budget(epsilon=1.0, delta=1e-5),
    ...     method="sgd",
    ...     steps=4,
    ... )
    >>> [record.batch for record in trainer]
    [0, 1, 2, 3]
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        dataset: Any,
        budget: Budget | None = None,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        method: str | Method[Any] = "auto",
        sampling_prob: float | None = None,
        steps: int | None = None,
        n_rows: int | None = None,
        relation: str = "zero-out",
        isolate: bool = False,
        example: Any = None,
        options: Mapping[str, Any] | None = None,
        l2: float = 0.0,
        device: Any = None,
        seed: Seed = None,
        ledger: Path_ | None = None,
        checkpoint: Path_ | None = None,
        checkpoint_every: int = 100,
        resume: bool = False,
        evaluate: Evaluate | None = None,
        evaluate_every: int = 100,
        distributed: bool = False,
    ) -> None:
        _validate.at_least(1, evaluate_every=evaluate_every)
        budget = as_budget(budget, epsilon=epsilon, delta=delta)
        if n_rows is not None:
            n_rows = _validate.row_count(n_rows)
        group: ProcessGroup = TorchProcessGroup() if distributed else SingleProcess()
        if device is not None:
            group.all_or_none(lambda: refuse_missing_device(device))
            model.to(device)
        promised = relation_of(relation, isolate=isolate, n_rows=n_rows)
        objective = ModuleObjective(model, loss, l2=l2, isolate=isolate)
        place = device or objective.device
        source = group.all_or_none(lambda: source_of(dataset, place, example))
        group.all_or_none(lambda: check_source(objective, source, distributed))
        known = public_rows(n_rows, len(source), distributed)
        refuse_shards(group, source, dataset)
        own_sampling_prob, own_steps = sizes_of(method)
        sampling_prob = own_sampling_prob if sampling_prob is None else sampling_prob
        sampling_prob = (
            default_sampling_prob(known) if sampling_prob is None else sampling_prob
        )
        steps = own_steps if steps is None else steps
        _validate.sampling_prob(sampling_prob=sampling_prob)
        settings = TrainSettings(
            method=method,
            sampling_prob=sampling_prob,
            steps=default_steps(sampling_prob) if steps is None else steps,
            n_rows=known,
            relation=promised,
            computed=group.all_or_none(lambda: computed_by(objective, source)),
            options=dict(options or {}),
            l2=l2,
            seed=as_seed(seed),
            ledger=ledger,
            checkpoint=checkpoint,
            checkpoint_every=checkpoint_every,
        )
        self._process = os.getpid()
        self._objective, self._settings, self._group = objective, settings, group
        self._evaluate, self._every = evaluate, evaluate_every
        self._abandoned = False
        self._open(source, budget, resume=resume)

    def _open(self, source: ExampleSource, budget: Budget, *, resume: bool) -> None:
        """Build method, accountant and gate, at the start or at the checkpoint."""
        objective, settings, group = self._objective, self._settings, self._group
        broadcast_init(group, objective.module, settings, budget, resume=resume)
        self._run_id = settings.fingerprint(budget, objective.module)
        self.method = network_method(
            settings.method,
            budget,
            sampling_prob=settings.sampling_prob,
            steps=settings.steps,
            options=settings.options,
        )
        self._randomness = rank_rng(group, settings.seed)
        start = self.method.init(objective.start())
        past = self._past(start) if resume else None
        last = past or Checkpoint(start, [])
        self._state, self.records = last.state, last.records
        self.evaluations = list(last.evaluations)
        self._keyed = self._keyed_run(source)
        self.accountant = self._accountant(budget, start, past)
        self._charges = self.accountant.n_charges
        if settings.seed is None:
            self._randomness = self._keyed.randomness
        try:
            self._data = PrivateDataset(
                source,
                n_rows=settings.n_rows,
                accountant=self.accountant,
                randomness=self._randomness,
                group=group,
            )
            self._refuse_used_up()
        except BaseException:
            self.accountant.ledger.close()
            raise

    def _keyed_run(self, source: ExampleSource) -> ReplayableRun:
        """Return the key's keeper; steps are redone on one processor only.

        Sums on a GPU, or over processes that died, need not repeat to the last bit.
        """
        own, objective = self._settings, self._objective
        alone = (
            isinstance(self._group, SingleProcess) and objective.device.type == "cpu"
        )
        return ReplayableRun(
            own.checkpoint if alone else None,
            source,
            (self._run_id, code_of(objective.module, objective.loss)),
        )

    def _accountant(
        self, budget: Budget, start: Any, past: Checkpoint | None
    ) -> Accountant:
        """Return the accountant of a run from ``start``; the lead writes a ledger."""
        own, group = self._settings, self._group
        accountant = accountant_for(
            self.method,
            start,
            budget,
            relation=own.relation,
            private=own.private,
            seeded=own.seed is not None,
            computed=own.computed,
        )
        path = own.ledger_path
        header = {**accountant.header(), "run_settings": self._run_id}

        def lead() -> None:
            if path is not None and group.is_main:
                ledger = self._keyed.open_ledger(path, header, past)
                try:
                    accountant.attach(ledger)
                except BaseException:
                    ledger.close()
                    raise

        group.all_or_none(lead)
        share_ledger(group, accountant)
        return accountant

    def __iter__(self) -> Generator[StepRecord, None, None]:
        """Make the steps, one record each; the module has the latest parameters."""
        return closed_at_exit(self._steps())

    def _steps(self) -> Generator[StepRecord, None, None]:
        """Make the steps that are left, and leave consistent files in any case."""
        left, ledger = self._settings.steps - len(self.records), self.accountant.ledger
        with closing(ledger):
            try:
                self._save()
                for state, record in minimize(
                    self._objective,
                    self._data,
                    self.method,
                    self._state,
                    max_batches=max(left, 0),
                ):
                    self._keep(state, record)
                    yield record
            except Diverged:
                ledger.finish({})
                self._abandon()
                raise
            finally:
                if may_compute(self._process):
                    self._objective.load(self._state.w)
                    self._save()
            ledger.finish(released(self._state.w))
            self._keyed.end()

    def run(self, *, progress: bool = False) -> Self:
        """Make all steps that are left, with a progress bar if asked for."""
        done, visible = len(self.records), progress and self._group.is_main
        for _ in shown(self, self._settings.steps, done=done, visible=visible):
            pass
        return self

    @property
    def privacy(self) -> PrivacyStatement:
        """Guarantee and charges so far."""
        return PrivacyStatement.of(self.accountant)

    def __repr__(self) -> str:
        """Name public settings, and how many steps were made."""
        own = self._settings
        return (
            f"Trainer({type(self._objective.module).__name__}, "
            f"{self.accountant.budget}, method={own.method!r}, "
            f"sampling_prob={own.sampling_prob:g}, "
            f"steps={own.steps}, n_rows={own.n_rows}, "
            f"relation={own.relation.value!r}, steps_made={len(self.records)})"
        )

    def _keep(self, state: Any, record: StepRecord) -> None:
        """Take a finished step, evaluate and save when it is due."""
        self._keyed.commit(state, record)
        if not math.isfinite(state.w.sum()):  # cheap; finite ones may overflow
            refuse_diverged(state, record)
        self.records.append(record)
        # Together, so that an interrupt finds all of a step or nothing of it.
        self._state, self._charges = state, record.batch + 1
        self._objective.load(state.w)
        done, module = len(self.records), self._objective.module
        if self._evaluate is not None and done % self._every == 0:
            with evaluating(module):
                self.evaluations.append((done, float(self._evaluate(module))))
        if done % self._settings.checkpoint_every == 0:
            self._save()

    def _save(self) -> None:
        """Write the checkpoint, if there is a place for it: that of the lead."""
        path = self._settings.checkpoint
        if path is None or self._abandoned or not self._group.is_main:
            return
        position = Checkpoint(
            state=self._state,
            records=[one for one in self.records if one.batch < self._charges],
            charges=self._charges,
            evaluations=self.evaluations,
        )
        save_checkpoint(path, run=self._run_id, checkpoint=self._keyed.signed(position))

    def _abandon(self) -> None:
        """End a run that left nothing to go on from."""
        self._keyed.end()  # first: what a crash leaves then cannot undo noise
        path, self._abandoned = self._settings.checkpoint, True
        if path is not None and self._group.is_main:
            Path(path).unlink(missing_ok=True)

    def _past(self, start: Any) -> Checkpoint:
        """Read the checkpoint to go on from."""
        path = self._settings.checkpoint
        if path is None:
            raise ValueError("Expected a checkpoint to resume from, got None.")
        past = load_on_all_ranks(self._group, Path(path), run=self._run_id, like=start)
        self._group.all_or_none(self._refuse_missing_ledger)
        return past

    def _refuse_missing_ledger(self) -> None:
        """Refuse to resume without the ledger."""
        ledger = self._settings.ledger_path
        if self._group.is_main and ledger is not None and not ledger.exists():
            raise LedgerError(
                f"Asked to resume, but the ledger {ledger} is not there; without it "
                "what was spent is not known. Bring it back; nothing was spent now."
            )

    def _refuse_used_up(self) -> None:
        """Refuse to begin with a ledger that leaves nothing for a step."""
        if self.records or self._data.affords(self.method.plan(self._state)):
            return
        raise BudgetExceeded(
            f"Not one step is affordable: {self.accountant.n_charges} charges of the "
            "ledger use up the budget. Nothing more was spent; resume from the "
            "checkpoint for what they bought."
        )


def train(
    model: nn.Module,
    loss: Loss,
    dataset: Any,
    budget: Budget | None = None,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    method: str | Method[Any] = "auto",
    sampling_prob: float | None = None,
    steps: int | None = None,
    n_rows: int | None = None,
    relation: str = "zero-out",
    isolate: bool = False,
    example: Any = None,
    options: Mapping[str, Any] | None = None,
    l2: float = 0.0,
    device: Any = None,
    seed: Seed = None,
    ledger: Path_ | None = None,
    checkpoint: Path_ | None = None,
    checkpoint_every: int = 100,
    resume: bool = False,
    evaluate: Evaluate | None = None,
    evaluate_every: int = 100,
    distributed: bool = False,
    progress: bool = False,
) -> Trainer:
    """Train a module under differential privacy, and return the finished run.

    The module is trained in place.  Everything that can be refused is refused before
    the first charge.  For step-by-step use iterate over a :class:`armijo.Trainer`.

    Parameters
    ----------
    model : torch.nn.Module
        Trained in place.  Frozen parameters stay as they are; layers that mix examples
        (BatchNorm) are refused by name.
    loss : callable
        ``loss(model(inputs), targets)`` of shape (B,): one number for each example,
        such as ``torch.nn.CrossEntropyLoss(reduction="none")``.
    dataset : pair of tensors, or map-style dataset
        Inputs and targets, or ``dataset[i] -> (input, target)``.  Examples that cannot
        be used add nothing; :func:`armijo.blank_rows` names them to their owner.
    budget : Budget or None
        The (epsilon, delta) of the guarantee.
    epsilon, delta : float or None
        The same as two numbers, instead of ``budget``.
    method : str or Method
        One of :data:`armijo.registry.NETWORK_METHODS`, or an object with its options,
        such as ``DPSGD(sampling_prob=0.01, steps=500)``.  The default, "auto", has
        nothing to set.
    sampling_prob : float or None
        Sampling probability: each example enters a batch independently with it.  By
        default batches have 256 expected examples or 1/100 of all, whichever is more.
    steps : int or None
        Number of batches; by default ten expected passes over the examples.
    n_rows : int or None
        The public number of examples, from which the divisor of averages is computed.
        None takes the number found, which is public under the zero-out relation.
    relation : {"zero-out", "add-remove"}
        What a neighboring dataset is: a blank in the place of one example, or one
        example more or less.  The second needs ``isolate=True`` and ``n_rows``.
    isolate : bool
        Whether examples go through the model one at a time: slower, and the guarantee
        then assumes nothing about torch's kernels.
    example : pair or None
        With a map-style dataset: an input and a target of the public shapes and types
        of its examples; values do not matter.
    options : mapping or None
        Parameters of the method by name.
    l2 : float
        Penalty ``l2/2 ||w||^2`` on the trainable parameters, outside the clipping.
    device : str, torch.device or None
        Where to compute; None is where the model is.
    seed : None, int, numpy.random.Generator or numpy.random.RandomState
        None draws batches and noise from the operating system.  A seeded run repeats,
        is for tests and carries no guarantee.  ``random_state`` of the estimators means
        the same.
    ledger : path or None
        File to which each charge is written before noise is drawn; None keeps charges
        in memory.
    checkpoint : path or None
        File from which the run can be resumed.  A checkpoint without ``ledger`` gets
        its ledger beside it; the secret key of the run lies there, too, until the run
        has ended.
    checkpoint_every : int
        Number of steps between checkpoints.
    resume : bool
        Whether to go on from the checkpoint and its ledger.
    evaluate : callable or None
        Called with the model in eval mode; its values are kept in ``evaluations``.  It
        must use *held-out, public* data, since what it returns has no noise.
    evaluate_every : int
        Number of steps between evaluations.
    distributed : bool
        Whether this is one process of ``torchrun``: ``dataset`` is then this process's
        shard, no row of which another one holds, and ``n_rows`` the public number of
        all.  The other arguments are the same everywhere.
    progress : bool
        Whether to show a progress bar on standard error.

    Returns
    -------
    Trainer
        The finished run: ``records`` of all steps, ``privacy`` with the guarantee,
        ``evaluations`` of the hook.

    Raises
    ------
    ValueError
        If an argument, the module or the loss cannot be used.  Nothing was spent.
    BudgetExceeded
        If the ledger leaves nothing for a step.  Nothing more was spent.
    Diverged
        If the parameters grew beyond all bounds.  What was charged stays spent.

    Examples
    --------
    >>> import armijo, torch
    >>> X = torch.rand(1000, 2)
    >>> y = (X[:, 0] > X[:, 1]).long()
    >>> model = torch.nn.Linear(2, 2)
    >>> run = armijo.train(
    ...     model,
    ...     torch.nn.CrossEntropyLoss(reduction="none"),  # one loss for each example
    ...     (X, y),
    ...     armijo.Budget(epsilon=3.0, delta=1e-5),
    ...     steps=40,
    ... )
    >>> len(run.records), run.privacy.epsilon, run.privacy.relation.value
    (40, 3.0, 'zero-out')
    >>> bool((model(X).argmax(1) == y).float().mean() > 0.8)
    True
    """
    trainer = Trainer(
        model,
        loss,
        dataset,
        budget,
        epsilon=epsilon,
        delta=delta,
        method=method,
        sampling_prob=sampling_prob,
        steps=steps,
        n_rows=n_rows,
        relation=relation,
        isolate=isolate,
        example=example,
        options=options,
        l2=l2,
        device=device,
        seed=seed,
        ledger=ledger,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        resume=resume,
        evaluate=evaluate,
        evaluate_every=evaluate_every,
        distributed=distributed,
    )
    return trainer.run(progress=progress)
