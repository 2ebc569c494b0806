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

RELEASED_NAMES = {
    "rate": "sampling_prob",
    "grad_clip": "max_grad_norm",
    "feature_norm": "data_norm",
}
"""Parameters as released result files and seeds call them, with today's names."""
NO_SETTING = "-"
"""Stands for the setting of a run of an experiment in which none varies."""
PUBLISHED = " (printed)"
"""Ends the label, in files and seeds, of a series under the paper's own analysis."""
DOCUMENT: dict[str, Any] = tomllib.loads(
    (files("armijo_reproduction") / "experiments.toml").read_text(encoding="utf-8")
)
DATASETS: dict[str, str] = DOCUMENT["names"]["datasets"]
MODELS: dict[str, str] = DOCUMENT["names"]["models"]


@dataclass(frozen=True, kw_only=True)
class Series:
    """One series of a figure: a method with its parameters; see ``[series]``."""

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


@dataclass(frozen=True)
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

        >>> RunKey("adult", "logistic", "DP-SGD", 0.1, "-", fold=0, repeat=0).seed()
        481400013
        """
        released = {new: old for old, new in RELEASED_NAMES.items()}
        values = asdict(self) | {"setting": renamed(self.setting, released)}
        name = "|".join(map(str, values.values()))
        return int.from_bytes(blake2b(name.encode(), digest_size=4).digest()) >> 1


KEY = tuple(column.name for column in fields(RunKey))
"""The columns by which a result file knows a run."""


@dataclass(frozen=True, kw_only=True)
class SyntheticTable:
    """Size, share of the positive class and unit of a synthetic table."""

    rows: int
    columns: int
    positive: float
    scale: float


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that defines an experiment; ``experiments.toml`` says what it means.

    A data set "adult/4" is every fourth row of one.
    """

    name: str
    title: str
    group: str
    kind: Literal["convex", "networks"]
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
    measured: int = 5_000
    quick: int | None = None
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
        methods = product(self.datasets, self.models, self.series)
        runs = product(
            range(self.repeats), self.folds, methods, self.settings(), self.epsilons
        )
        for repeat, fold, (dataset, model, series), setting, epsilon in runs:
            if series.once and (repeat > 0 or epsilon != self.epsilons[-1]):
                continue
            line = series.label
            yield RunKey(dataset, model, line, epsilon, setting, fold, repeat)


def experiment_names() -> tuple[str, ...]:
    """Return the names of all experiments, in the order of the paper."""
    return tuple(DOCUMENT["experiment"])


@cache
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
    whole, quick = _with_base(DOCUMENT["experiment"][name])
    return _built(name, whole | quick if fast else whole)


def _with_base(table: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return an experiment and what its fast version changes, bases included."""
    whole = dict(table)
    quick = whole.pop("fast", {})
    if "base" not in whole:
        return whole, quick
    base, base_quick = _with_base(DOCUMENT["base"][whole.pop("base")])
    return base | whole, base_quick | quick


def _built(name: str, document: Mapping[str, Any]) -> Experiment:
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in document.items()
    }
    values["series"] = tuple(map(_series, values["series"]))
    values["vary"] = {k: tuple(v) for k, v in values.get("vary", {}).items()}
    tables = values.get("synthetic", {})
    values["synthetic"] = {k: SyntheticTable(**v) for k, v in tables.items()}
    built = Experiment(name=name, **values)
    _validate.choice(("convex", "networks"), kind=built.kind)
    return built


def _series(label: str) -> Series:
    """Return a series; what is no field of it is a parameter of its method."""
    values = dict(DOCUMENT["series"][label])
    known = {f.name: values.pop(f.name) for f in fields(Series) if f.name in values}
    return Series(label=label, options=values, **known)


def dataset_name(name: str) -> str:
    """Return a data set's name on one line.

    >>> dataset_name("acs-national"), dataset_name("adult/4")
    ('US census (ACS), not IPUMS-US', 'Adult/4')
    """
    whole, *parts = name.split("/")
    return "/".join([DATASETS.get(whole, whole).replace("\n", ", "), *parts])


def shown(label: str) -> str:
    """Return the label of a series as readers see it.

    >>> shown("DP-SGD (network)"), shown("DP-SGD (CIFAR)"), shown("DP-BLGD (printed)")
    ('DP-SGD', 'DP-SGD', 'DP-BLGD (as published)')
    """
    for suffix in (" (network)", " (CIFAR)", " (steps)"):
        label = label.removesuffix(suffix)
    return label.replace(PUBLISHED, " (as published)")
