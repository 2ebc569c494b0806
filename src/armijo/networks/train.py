# SPDX-License-Identifier: Apache-2.0
"""``armijo.train``: any torch module under differential privacy, nothing to tune."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn

from armijo import _validate
from armijo.accounting.budget import Budget, as_budget
from armijo.data.distributed import SINGLE, ProcessGroup, TorchProcessGroup
from armijo.methods.base import Method, StepRecord
from armijo.networks.distributed import broadcast_init, refuse_shards
from armijo.networks.inputs import (
    check_source,
    code_of,
    computed_by,
    layout,
    public_rows,
    refuse_missing_device,
    relation_of,
    source_of,
)
from armijo.objectives.ghost.guards import Loss
from armijo.objectives.module import ModuleObjective
from armijo.randomness import Seed, as_seed
from armijo.registry import network_method, network_sizes
from armijo.training.run import Run, RunFiles

Evaluate = Callable[[nn.Module], float]
Path_ = str | os.PathLike[str]


class Trainer(Run):
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
    method : Method
        The calibrated method.
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
        self._evaluate, self._every = evaluate, evaluate_every
        budget = as_budget(budget, epsilon=epsilon, delta=delta)
        if n_rows is not None:
            n_rows = _validate.row_count(n_rows)
        group: ProcessGroup = TorchProcessGroup() if distributed else SINGLE
        if device is not None:
            group.all_or_none(lambda: refuse_missing_device(device))
            model.to(device)
        promised = relation_of(relation, isolate=isolate, n_rows=n_rows)
        objective = ModuleObjective(model, loss, l2=l2, isolate=isolate)
        place, several = device or objective.device, group.size > 1
        source = group.all_or_none(lambda: source_of(dataset, place, example))
        group.all_or_none(lambda: check_source(objective, source, several))
        known = public_rows(n_rows, len(source), several)
        refuse_shards(group, source, dataset)
        sampling_prob, steps = network_sizes(
            method, n_rows=known, sampling_prob=sampling_prob, steps=steps
        )
        computed = group.all_or_none(lambda: computed_by(objective, source))
        settings = {
            "method": str(method),
            "epsilon": budget.epsilon,
            "delta": budget.delta,
            "relation": promised.value,
            "arithmetic": computed.arithmetic,
            "sampling_prob": sampling_prob,
            "steps": steps,
            "n_rows": known,
            "options": {key: str(value) for key, value in (options or {}).items()},
            "l2": l2,
        }
        seed = as_seed(seed)
        files = {"checkpoint": checkpoint, "ledger": ledger, "resume": resume}
        more = {"seed": seed, "computed": computed, "every": checkpoint_every}
        broadcast_init(group, model, {**settings, **files, **more})
        self._model, self._loaded = model, objective.load
        super().__init__(
            objective,
            source,
            network_method(method, options, sampling_prob=sampling_prob, steps=steps),
            budget,
            n_rows=known,
            relation=promised,
            max_batches=steps,
            seed=seed,
            computed=computed,
            files=RunFiles(
                ledger=ledger,
                checkpoint=checkpoint,
                every=checkpoint_every,
                resume=resume,
                named={**settings, "model": layout(model)},
            ),
            group=group,
            code=code_of(model, loss),
        )

    def run(self, *, progress: bool = False) -> Self:
        """Make all steps that are left, with a progress bar if asked for."""
        if not (progress and self._group.is_main):
            return self.complete()
        columns = (
            TextColumn("step {task.completed} of {task.total}"),
            BarColumn(),
            TextColumn("step size {task.fields[size]}, epsilon {task.fields[epsilon]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True)) as bar:
            done, most = len(self.records), self._max_batches
            task = bar.add_task("", total=most, completed=done, size="-", epsilon="0")

            def show(record: StepRecord) -> None:
                size, spent = record.step_size or 0, record.epsilon
                bar.update(task, advance=1, size=f"{size:.3g}", epsilon=f"{spent:.3g}")

            return self.complete(show)

    def _show(self) -> None:
        """Load the latest parameters into the module."""
        self._loaded(self.w)

    def _evaluate_step(self) -> None:
        """Call the hook when it is due."""
        done = len(self.records)
        if self._evaluate is not None and done % self._every == 0:
            with evaluating(self._model):
                self.evaluations.append((done, float(self._evaluate(self._model))))

    def __repr__(self) -> str:
        """Name public settings, how many steps were made, and that nothing holds."""
        void = "" if self.accountant.guarantee.holds else ", NO GUARANTEE"
        told = ("method", "sampling_prob", "steps", "n_rows", "relation")
        named = ", ".join(f"{name}={self._named[name]!r}" for name in told)
        return (
            f"Trainer({type(self._model).__name__}, {self.accountant.budget}, {named}, "
            f"steps_made={len(self.records)}{void})"
        )


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module into eval mode, and each layer back into its own afterwards.

    A hook that calls ``module.eval()`` must not end dropout for the rest of a run.

    >>> module = nn.Dropout()
    >>> with evaluating(module):
    ...     module.training
    False
    >>> module.training
    True
    """
    modes = [(layer, layer.training) for layer in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for layer, mode in modes:
            layer.training = mode


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
