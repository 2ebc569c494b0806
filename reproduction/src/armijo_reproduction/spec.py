# SPDX-License-Identifier: Apache-2.0
"""Experiments as data: one TOML file each, read into frozen settings.

An experiment is a product: data sets, losses (or one network), lines of the figure,
budgets, settings that vary, folds and repeats.  Each element of it is a *cell*, a run
of its own whose seed is a digest of the cell's name.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from itertools import product
from typing import Any, Literal

from armijo import _validate
from armijo.errors import ArmijoError

Kind = Literal["convex", "networks"]
NO_SETTING = "-"
"""Stands for the setting of a cell of an experiment in which none varies."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a figure: a method with its parameters.

    Attributes
    ----------
    label : str
        What the figure calls it.
    method : str
        The method's name.
    options : mapping
        Its parameters.
    accounting : {"sound", "paper"}
        "paper" is the printed analysis, which gives no guarantee.
    once : bool
        Whether the result depends neither on the budget nor on noise.
    best_of : str or None
        The experiment whose best setting by test accuracy is taken: not private.
    """

    label: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    accounting: Literal["sound", "paper"] = "sound"
    once: bool = False
    best_of: str | None = None


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of an experiment, by name."""

    dataset: str
    model: str
    line: str
    epsilon: float
    setting: str
    fold: int
    repeat: int

    def seed(self) -> int:
        """Return the seed of the run: a digest of the cell, the same for ever.

        >>> Cell(dataset="adult", model="logistic", line="DP-SGD", epsilon=0.1,
        ...      setting="-", fold=0, repeat=0).seed()
        481400013
        """
        name = "|".join(str(getattr(self, each)) for each in KEY)
        return int.from_bytes(blake2b(name.encode(), digest_size=4).digest()) >> 1


@dataclass(frozen=True, kw_only=True)
class MadeTable:
    """A generated table with other sizes than those at hand.

    Attributes
    ----------
    rows, columns : int
        Its size.
    positive : float
        The share of the positive class.
    scale : float
        What all features are multiplied by.
    """

    rows: int
    columns: int
    positive: float
    scale: float


KEY = tuple(each.name for each in fields(Cell))
"""The columns by which a result file knows a cell."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that defines an experiment; see the files in ``specs``.

    Attributes
    ----------
    name, title, group : str
        Its name, a sentence, and the figure it is a panel of.
    kind : {"convex", "networks"}
        What a cell trains.
    datasets, models : tuple of str
        Data sets ("adult/4" is every fourth row of it), and losses or networks.
    lines : tuple of Line
        The methods.
    epsilons, delta : tuple of float, float
        The budgets.
    vary : mapping
        Parameters with the values they take; every combination is run.
    folds : tuple of int
        Which of ten folds are run (networks: one published split, fold 0).
    repeats : int
        Runs of each fold with different noise.
    max_batches : int or None
        Most batches of a convex run.
    steps, rate, evaluate_every : int, float, int
        Length, sampling ratio and grid of evaluations of a network's run.
    rows : int or None
        Keep only so many rows, for fast versions.
    made : mapping
        Data sets that are generated, by name: see :class:`MadeTable`.
    """

    name: str
    title: str
    group: str
    kind: Kind
    datasets: tuple[str, ...]
    models: tuple[str, ...]
    lines: tuple[Line, ...]
    epsilons: tuple[float, ...]
    delta: float
    vary: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    folds: tuple[int, ...] = tuple(range(10))
    repeats: int = 1
    max_batches: int | None = None
    steps: int = 0
    rate: float = 0.1
    evaluate_every: int = 50
    rows: int | None = None
    made: Mapping[str, MadeTable] = field(default_factory=dict)

    def published(self) -> tuple[str, ...]:
        """Return the data sets it needs that are not generated, without their parts."""
        names = (each.split("/")[0] for each in self.datasets if each not in self.made)
        return tuple(dict.fromkeys(names))

    def line(self, label: str) -> Line:
        """Return a line by its label."""
        return next(each for each in self.lines if each.label == label)

    def settings(self) -> tuple[str, ...]:
        """Return the names of the combinations of what varies."""
        if not self.vary:
            return (NO_SETTING,)
        return tuple(
            " ".join(f"{k}={v}" for k, v in zip(self.vary, values, strict=True))
            for values in product(*self.vary.values())
        )

    def options_of(self, setting: str) -> dict[str, Any]:
        """Return the parameters of a combination by its name."""
        if setting == NO_SETTING:
            return {}
        named = dict(pair.split("=", 1) for pair in setting.split(" "))
        return {
            name: next(v for v in self.vary[name] if str(v) == text)
            for name, text in named.items()
        }

    def cells(self) -> Iterator[Cell]:
        """Go through all cells, so that an early stop leaves whole figures."""
        for repeat, fold, dataset, model, line, setting, epsilon in product(
            range(self.repeats),
            self.folds,
            self.datasets,
            self.models,
            self.lines,
            self.settings(),
            self.epsilons,
        ):
            if line.once and (repeat > 0 or epsilon != self.epsilons[-1]):
                continue
            yield Cell(
                dataset=dataset,
                model=model,
                line=line.label,
                epsilon=epsilon,
                setting=setting,
                fold=fold,
                repeat=repeat,
            )


def experiment_names() -> tuple[str, ...]:
    """Return the names of all experiments, in the order of the paper."""
    return tuple(_shared()["order"])


@cache
def _shared() -> dict[str, Any]:
    """Read what the experiments share: their order and the lines of the figures."""
    return _read("_shared")


def _read(name: str) -> dict[str, Any]:
    """Read one file of the package."""
    path = files("armijo_reproduction") / "specs" / f"{name}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def experiment(name: str, *, fast: bool = False) -> Experiment:
    """Return an experiment by name, or its fast version.

    >>> experiment("logistic-adult").repeats
    5
    >>> experiment("logistic-adult", fast=True).folds
    (0,)
    """
    if name not in experiment_names():
        raise ArmijoError(
            f"There is no experiment {name!r}; armijo reproduce --list names them all."
        )
    document = _read(name)
    quick = document.pop("fast", {})
    if fast:
        document |= quick
    return _built(name, document)


def _built(name: str, document: Mapping[str, Any]) -> Experiment:
    """Turn a TOML document into settings."""
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in document.items()
    }
    lines = _shared()["lines"]
    values["lines"] = tuple(_line(label, lines[label]) for label in values["lines"])
    values["vary"] = {k: tuple(v) for k, v in values.get("vary", {}).items()}
    values["made"] = {k: MadeTable(**v) for k, v in values.get("made", {}).items()}
    built = Experiment(name=name, **values)
    _validate.choice(("convex", "networks"), kind=built.kind)
    return built


def _line(label: str, values: Mapping[str, Any]) -> Line:
    """Return a line, its parameters in one mapping."""
    own = {each.name for each in fields(Line)}
    known = {key: value for key, value in values.items() if key in own}
    options = {key: value for key, value in values.items() if key not in own}
    return replace(Line(label=label, **known), options=options)
