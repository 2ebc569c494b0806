# SPDX-License-Identifier: Apache-2.0
"""Experiments as data: ``experiments.toml``, read into frozen settings.

An experiment is a product: data sets, losses (or one network), series of the figure,
budgets, settings that vary, folds and repeats.  Each element of it is a run of its own
with a `RunKey`, whose digest is the seed.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from itertools import product
from typing import Any, Literal

from armijo import _validate
from armijo.errors import ArmijoError

Kind = Literal["convex", "networks"]
RELEASED_NAMES = {
    "rate": "sampling_prob",
    "grad_clip": "max_grad_norm",
    "feature_norm": "data_norm",
}
"""Parameters as released result files and seeds call them, with today's names."""
NO_SETTING = "-"
"""Stands for the setting of a run of an experiment in which none varies."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """One series of a figure: a method with its parameters.

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


def renamed(setting: str, names: Mapping[str, str]) -> str:
    """Return a setting with its parameters renamed.

    >>> renamed("rate=0.1 steps=50", RELEASED_NAMES)
    'sampling_prob=0.1 steps=50'
    """
    pairs = (pair.partition("=") for pair in setting.split(" "))
    return " ".join(names.get(name, name) + is_ + to for name, is_, to in pairs)


@dataclass(frozen=True, kw_only=True)
class RunKey:
    """What names one run of an experiment; ``line`` is the label of its series."""

    dataset: str
    model: str
    line: str
    epsilon: float
    setting: str
    fold: int
    repeat: int

    def seed(self) -> int:
        """Return the seed of the run: a digest of the key, the same for ever.

        >>> RunKey(dataset="adult", model="logistic", line="DP-SGD", epsilon=0.1,
        ...      setting="-", fold=0, repeat=0).seed()
        481400013
        """
        released = {new: old for old, new in RELEASED_NAMES.items()}
        values = asdict(self) | {"setting": renamed(self.setting, released)}
        name = "|".join(map(str, values.values()))
        return int.from_bytes(blake2b(name.encode(), digest_size=4).digest()) >> 1


@dataclass(frozen=True, kw_only=True)
class SyntheticTable:
    """A synthetic table with other sizes than those at hand.

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


KEY = tuple(column.name for column in fields(RunKey))
"""The columns by which a result file knows a run."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that defines an experiment; see ``experiments.toml``.

    Attributes
    ----------
    name, title, group : str
        Its name, a sentence, and the figure it is a panel of.
    kind : {"convex", "networks"}
        What a run trains.
    datasets, models : tuple of str
        Data sets ("adult/4" is every fourth row of it), and losses or networks.
    series : tuple of Series
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
    steps, sampling_prob, evaluate_every : int, float, int
        Length, sampling ratio and grid of evaluations of a network's run.
    rows : int or None
        Keep only so many rows, for fast versions.
    synthetic : mapping
        Data sets that are generated, by name: see `SyntheticTable`.
    """

    name: str
    title: str
    group: str
    kind: Kind
    datasets: tuple[str, ...]
    models: tuple[str, ...]
    series: tuple[Series, ...]
    epsilons: tuple[float, ...]
    delta: float
    vary: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    folds: tuple[int, ...] = tuple(range(10))
    repeats: int = 1
    max_batches: int | None = None
    steps: int = 0
    sampling_prob: float = 0.1
    evaluate_every: int = 50
    rows: int | None = None
    synthetic: Mapping[str, SyntheticTable] = field(default_factory=dict)

    def published(self) -> tuple[str, ...]:
        """Return the data sets it needs that are not generated, without their parts."""
        published = (name for name in self.datasets if name not in self.synthetic)
        return tuple(dict.fromkeys(name.split("/")[0] for name in published))

    def series_named(self, label: str) -> Series:
        """Return a series by its label."""
        return next(series for series in self.series if series.label == label)

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

    def run_keys(self) -> Iterator[RunKey]:
        """Go through all runs, so that an early stop leaves whole figures."""
        for repeat, fold, dataset, model, series, setting, epsilon in product(
            range(self.repeats),
            self.folds,
            self.datasets,
            self.models,
            self.series,
            self.settings(),
            self.epsilons,
        ):
            if series.once and (repeat > 0 or epsilon != self.epsilons[-1]):
                continue
            yield RunKey(
                dataset=dataset,
                model=model,
                line=series.label,
                epsilon=epsilon,
                setting=setting,
                fold=fold,
                repeat=repeat,
            )


@cache
def _document() -> dict[str, Any]:
    """Read the experiments, what they are based on, and the series of the figures."""
    path = files("armijo_reproduction") / "experiments.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def experiment_names() -> tuple[str, ...]:
    """Return the names of all experiments, in the order of the paper."""
    return tuple(_document()["experiment"])


def experiment(name: str, *, fast: bool = False) -> Experiment:
    """Return an experiment by name, or its fast version.

    >>> experiment("logistic-adult").repeats
    5
    >>> experiment("logistic-adult", fast=True).folds
    (0,)
    """
    if name not in experiment_names():
        raise ArmijoError(
            f"There is no experiment {name!r}; `python -m armijo_reproduction list` "
            "names them all."
        )
    whole, quick = _with_base(_document()["experiment"][name])
    return _built(name, whole | quick if fast else whole)


def _with_base(table: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return an experiment and what its fast version changes, bases included."""
    own = dict(table)
    quick = own.pop("fast", {})
    if "base" not in own:
        return own, quick
    whole, base_quick = _with_base(_document()["base"][own.pop("base")])
    return whole | own, base_quick | quick


def _built(name: str, document: Mapping[str, Any]) -> Experiment:
    """Turn a TOML document into settings."""
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in document.items()
    }
    known = _document()["series"]
    values["series"] = tuple(_series(label, known[label]) for label in values["series"])
    values["vary"] = {k: tuple(v) for k, v in values.get("vary", {}).items()}
    tables = values.get("synthetic", {})
    values["synthetic"] = {k: SyntheticTable(**v) for k, v in tables.items()}
    built = Experiment(name=name, **values)
    _validate.choice(("convex", "networks"), kind=built.kind)
    return built


def _series(label: str, values: Mapping[str, Any]) -> Series:
    """Return a series; what is no field of it is a parameter of its method."""
    names = {each.name for each in fields(Series)}
    known = {key: value for key, value in values.items() if key in names}
    options = {key: value for key, value in values.items() if key not in names}
    return Series(label=label, options=options, **known)
