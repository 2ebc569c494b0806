# SPDX-License-Identifier: Apache-2.0
"""``armijo.train``: any torch module under differential privacy, nothing to tune.

What a user hands over is checked before anything is spent, and named.  Only what is
public decides: types, shapes, lengths, and synthetic examples.  A row's content never
raises; :func:`blank_rows` names such rows to the owner of the data.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from inspect import signature
from typing import Any, ParamSpec, Self, TypeVar

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn
from torch.utils.data import TensorDataset

from armijo import _validate
from armijo.accounting.budget import Budget, Computed, Neighboring, as_budget
from armijo.data.distributed import SINGLE, ProcessGroup, TorchProcessGroup
from armijo.data.gate import leaky_answer
from armijo.data.shards import broadcast_init, refuse_shards
from armijo.data.sources import DatasetRows, ExampleSource, TensorRows
from armijo.methods.base import Method, StepRecord
from armijo.objectives.ghost.grads import LARGE_PRODUCT
from armijo.objectives.ghost.guards import Loss, as_tuple
from armijo.objectives.ghost.int8 import ASSUMPTION
from armijo.objectives.ghost.params import flat_size, trainable
from armijo.objectives.module import ModuleObjective
from armijo.randomness import Seed, as_seed
from armijo.registry import network_method
from armijo.training.run import Run, RunFiles

Evaluate = Callable[[nn.Module], float]
Path_ = str | os.PathLike[str]
P = ParamSpec("P")
T = TypeVar("T")

CERTIFIED = "exact sums of integers, certified for each example"
_AT_ONCE = 512


class Trainer(Run):
    """A private training, step by step: iterate over it.

    Each iteration makes one step and gives its record; the module then has the latest
    parameters.  A loop may be left early: ledger and checkpoint are written when the
    iterator is closed, at the latest when the program exits.

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
        such as ``DPSGD(step_size=0.5)``.  The default, "auto", has nothing to set.
    sampling_prob : float or None
        Sampling probability: each example enters a batch independently with it.  None
        is the method's own; "auto" has a public rule for it, and others have batches
        of 256 expected examples or 1/100 of all, whichever is more.
    steps : int or None
        Number of batches; None is the method's own; "auto" has a public rule for it,
        and others make ten expected passes over the examples.
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
        Whether :meth:`run` shows a progress bar on standard error.

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
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ValueError(
                f"Expected a torch.nn.Module, got {type(model).__name__}; give the "
                "module to train. Nothing was spent."
            )
        _validate.at_least(1, evaluate_every=evaluate_every)
        _validate.function(evaluate=evaluate)
        _validate.boolean(isolate=isolate, distributed=distributed, progress=progress)
        self._evaluate, self._every = evaluate, evaluate_every
        self._progress = progress
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
        if several:
            refuse_shards(group, source, dataset)
        chosen, steps = network_method(
            method, budget, n_rows=known, sampling_prob=sampling_prob, steps=steps
        )
        computed = group.all_or_none(lambda: computed_by(objective, source))
        settings = {
            "method": str(method),
            "epsilon": budget.epsilon,
            "delta": budget.delta,
            "relation": promised.value,
            "arithmetic": computed.arithmetic,
            "sampling_prob": getattr(chosen, "sampling_prob", 1.0),
            "steps": steps,
            "n_rows": known,
            "l2": l2,
        }
        seed = as_seed(seed)
        files = {"checkpoint": checkpoint, "ledger": ledger, "resume": resume}
        more = {"seed": seed, "computed": computed, "every": checkpoint_every}
        if several:
            broadcast_init(group, model, {**settings, **files, **more})
        self._model, self._loaded = model, objective.load
        super().__init__(
            objective,
            source,
            chosen,
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

    def run(self) -> Self:
        """Make all steps that are left, with a progress bar if asked for."""
        if not (self._progress and self._group.is_main):
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


def _like(begin: Callable[P, Any]) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """Let a function take what a class takes, for type checkers, IDEs and help."""

    def decorate(function: Callable[..., T]) -> Callable[P, T]:
        function.__signature__ = signature(begin)  # type: ignore[attr-defined]
        _, _, words = (begin.__doc__ or "").partition("    Parameters\n")
        words, _, more = words.partition("    Attributes\n")
        raises = more[more.find("    Raises\n") : more.find("    Examples\n")]
        first, last, example = (function.__doc__ or "").partition("    Examples\n")
        before, returns, told = first.partition("    Returns\n")
        parts = before, "    Parameters\n", words, returns, told, raises, last, example
        function.__doc__ = "".join(parts)
        return function

    return decorate


@_like(Trainer)
def train(*given: Any, **settings: Any) -> Trainer:
    """Train a module under differential privacy, and return the finished run.

    It takes what :class:`Trainer` takes.  The module is trained in place.
    Everything that can be refused is refused before the first charge.  For step-by-step
    use iterate over a :class:`Trainer`.

    Returns
    -------
    Trainer
        The finished run: ``records`` of all steps, ``privacy`` with the guarantee,
        ``evaluations`` of the hook.

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
    return Trainer(*given, **settings).run()


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


def public_rows(n_rows: int | None, found: int, distributed: bool) -> int:
    """Return the public number of examples."""
    if n_rows is not None:
        return _validate.row_count(n_rows)
    if distributed:
        raise ValueError(
            "Expected n_rows, the public number of all examples, when several "
            "processes hold a shard each, got None. Nothing was spent."
        )
    return found


def relation_of(relation: str, *, isolate: bool, n_rows: int | None) -> Neighboring:
    """Return the neighboring relation, refusing one that no proof covers."""
    _validate.choice(("zero-out", "add-remove"), relation=relation)
    if relation == "zero-out":
        return Neighboring.ZERO_OUT
    if not isolate or n_rows is None:
        found = "isolate=False" if not isolate else "n_rows=None"
        raise ValueError(
            f"Expected isolate=True and n_rows with relation='add-remove', got {found}:"
            " torch's kernels may compute a row in another way once a row is missing, "
            "and the number of rows is then private. Take relation='zero-out', or give "
            "both. Nothing was spent."
        )
    return Neighboring.ADD_REMOVE


def source_of(dataset: Any, device: Any, example: Any = None) -> ExampleSource:
    """Return the rows of a pair of tensors or of a dataset."""
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        dataset = dataset.tensors
    if isinstance(dataset, tuple) and len(dataset) == 2:
        return TensorRows(*dataset, device=device)
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise ValueError(
            "Expected a pair of tensors or a dataset with __getitem__ and __len__, got "
            f"{type(dataset).__name__}. Nothing was spent."
        )
    if example is None:
        raise ValueError(
            "Expected example=(input, target) with a map-style dataset, got None; "
            "which shapes and types its examples have must be public and cannot be "
            "read from one of them. Give zeros in the right shapes, such as "
            "example=(torch.zeros(3, 32, 32), 0). Nothing was spent."
        )
    return DatasetRows(dataset, example, device=device)


def check_source(
    objective: ModuleObjective, source: ExampleSource, distributed: bool
) -> None:
    """Refuse no examples, and a module or loss that does not take such examples.

    The shard of one process may be empty.
    """
    if len(source) == 0 and not distributed:
        raise ValueError("Expected at least one example, got none. Nothing was spent.")
    _check_taken(objective, source)


def _check_taken(objective: ModuleObjective, source: ExampleSource) -> None:
    """Refuse a module or loss that does not take synthetic examples of these types."""
    inputs, targets = source.zeros()
    try:
        objective.check(inputs, targets)
    except (ValueError, MemoryError):
        raise
    except Exception as error:
        raise ValueError(
            "Expected a module and a loss that take the examples, got "
            f"{type(error).__name__}: {_first_words(error)}. Tried were two examples "
            f"of zeros: inputs {_described(inputs)}, targets {_described(targets)}; "
            f"the parameters are {_dtype(objective)}. "
            f"{_advice(objective, inputs, targets)}Nothing was spent."
        ) from error


def _first_words(error: Exception) -> str:
    """Return the beginning of what torch said."""
    return (str(error).splitlines() or [""])[0].partition(". ")[0][:200].rstrip(".")


def _dtype(objective: ModuleObjective) -> torch.dtype:
    """Return the type of the trained parameters."""
    return trainable(objective.module)[0].dtype


def _described(tensors: Any) -> str:
    """Name types and shapes, which are public."""
    return " and ".join(
        f"{one.dtype} of shape {tuple(one.shape)}" for one in as_tuple(tensors)
    )


def _advice(objective: ModuleObjective, inputs: Any, targets: Any) -> str:
    """Say what to convert, by the types alone."""
    own, found = _dtype(objective), ""
    if any(one.dtype != own for one in as_tuple(inputs)):
        found += f"Inputs that are no indices need inputs.to({own}). "
    if any(one.dtype != torch.int64 for one in as_tuple(targets)):
        found += "If the loss takes class labels, convert them by labels.long(). "
    return found


def refuse_missing_device(device: Any) -> None:
    """Refuse a device that torch cannot compute on in this process."""
    try:
        torch.zeros(1, device=torch.device(device))
    except Exception as error:
        raise ValueError(
            f"Expected a device that torch can compute on, got device={device!r} "
            f"({_first_words(error)}); give device='cpu', or leave it out to compute "
            "where the model is. Nothing was spent."
        ) from error


def computed_by(objective: ModuleObjective, source: ExampleSource) -> Computed:
    """Test the kernels with synthetic examples; return what a guarantee names."""
    if objective.device.type != "cpu":
        return Computed(
            arithmetic=f"integers on {objective.device.type}",
            uncovered=(
                f"sums and kernels on the device {objective.device.type} are not "
                "covered by the proof, which is about processors",
            ),
        )
    layers = [one for one in objective.module.modules() if isinstance(one, nn.Linear)]
    large = any(one.weight.numel() >= LARGE_PRODUCT for one in layers)
    assumed = (ASSUMPTION,) if large else ()
    if objective.isolate:
        words = f"{CERTIFIED}, one example at a time"
        return Computed(arithmetic=words, assumptions=assumed)
    words = objective.row_wise_test(*source.zeros())
    return Computed(arithmetic=CERTIFIED, assumptions=(words, *assumed))


def blank_rows(
    model: nn.Module, loss: Loss, dataset: Any, *, example: Any = None
) -> list[int]:
    """Return the numbers of examples that a training would leave out.

    For the owner of the data, before a training: what it returns is private and has no
    noise.  An example is left out if it cannot be read, has another shape or type than
    it should have, holds a number that is not finite, or if module, loss or gradient do
    not take it (a class that does not exist, say).

    Examples
    --------
    >>> X, y = torch.zeros(3, 4), torch.tensor([0, 1, 7])
    >>> blank_rows(nn.Linear(4, 2), nn.CrossEntropyLoss(reduction="none"), (X, y))
    [2]
    """
    objective = ModuleObjective(model, loss)
    source = source_of(dataset, objective.device, example)
    _check_taken(objective, source)
    found: list[int] = []
    for start in range(0, len(source), _AT_ONCE):
        index = torch.arange(start, min(start + _AT_ONCE, len(source)))
        kept = leaky_answer(source, objective.kept, index.numpy())
        found += index[~kept.cpu()].tolist()
    return found


def layout(module: nn.Module) -> str:
    """Name a module by its parameters' names, shapes and types, and frozen values.

    >>> layout(nn.Linear(2, 1))
    'Linear with 3 trainable numbers, layout 6553779a5e660410'
    """
    digest = sha256()
    for name, p in module.named_parameters():
        digest.update(f"{name} {tuple(p.shape)} {p.dtype} {p.requires_grad}\n".encode())
        if not p.requires_grad:
            flat = p.detach().cpu().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy().tobytes())
    return (
        f"{type(module).__name__} with {flat_size(module)} trainable numbers, layout "
        f"{digest.hexdigest()[:16]}"
    )


def code_of(module: nn.Module, loss: Any) -> tuple[Any, ...]:
    """Return what can be told of the functions that a training computes with.

    That their code is the same cannot be told; results of redone steps are compared.
    """
    names = (type(loss).__qualname__, getattr(loss, "__qualname__", ""))
    texts = [repr(one) for one in (module, loss) if isinstance(one, nn.Module)]
    return names, texts, dict(module.named_buffers())
