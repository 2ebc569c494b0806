# SPDX-License-Identifier: Apache-2.0
"""Public settings of a training, and what ties its files to it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import nn

from armijo import _validate
from armijo.accounting.budget import Budget, Computed, Neighboring
from armijo.methods.base import Method
from armijo.objectives.ghost.params import flat_size
from armijo.training.replay import ledger_path

EPOCHS = 10
"""Expected passes over the data when no number of steps is given."""

BATCH = 256
"""Expected batch size for small data sets; larger ones use 1/100."""

Path_ = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """Public settings of a training; see :func:`armijo.train`."""

    method: str | Method[Any]
    sampling_prob: float
    steps: int
    n_rows: int
    relation: Neighboring
    computed: Computed
    options: Mapping[str, Any]
    l2: float
    seed: int | None
    ledger: Path_ | None
    checkpoint: Path_ | None
    checkpoint_every: int

    def __post_init__(self) -> None:
        """Refuse a checkpoint that could not be written once steps are paid."""
        _validate.sampling_prob(sampling_prob=self.sampling_prob)
        _validate.at_least(1, steps=self.steps, n_rows=self.n_rows)
        _validate.at_least(1, checkpoint_every=self.checkpoint_every)
        folder = None if self.checkpoint is None else Path(self.checkpoint).parent
        if folder is not None and not folder.is_dir():
            raise ValueError(
                f"Expected a checkpoint in a folder that exists, got {folder}; make "
                "it first. Nothing was spent."
            )

    @property
    def private(self) -> bool:
        """Whether the method promises anything."""
        if isinstance(self.method, str):
            return self.method != "nonprivate"
        return self.method.private

    @property
    def ledger_path(self) -> Path | None:
        """The file of the charges; every checkpoint has one."""
        return ledger_path(self.ledger, self.checkpoint)

    def fingerprint(self, budget: Budget, module: nn.Module) -> dict[str, Any]:
        """Return what a checkpoint must share with the run, as plain values."""
        return {
            "method": str(self.method),
            "epsilon": budget.epsilon,
            "delta": budget.delta,
            "relation": self.relation.value,
            "arithmetic": self.computed.arithmetic,
            "sampling_prob": self.sampling_prob,
            "steps": self.steps,
            "n_rows": self.n_rows,
            "options": {key: str(value) for key, value in self.options.items()},
            "l2": self.l2,
            "seed": self.seed,
            "model": layout(module),
        }


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


def default_sampling_prob(n_rows: int) -> float:
    """Return the probability for batches of 256 examples, or 1/100 if that is more.

    The same passes in larger batches bear less noise, until too few steps are left.

    >>> [default_sampling_prob(n) for n in (60_000, 1_024, 100)]
    [0.01, 0.25, 1.0]
    """
    return min(1.0, max(BATCH / n_rows, 1 / 100))


def default_steps(sampling_prob: float) -> int:
    """Return the number of batches of ten expected passes.

    >>> default_steps(0.25)
    40
    """
    return max(1, round(EPOCHS / sampling_prob))
