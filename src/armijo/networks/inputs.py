# SPDX-License-Identifier: Apache-2.0
"""What a user hands to ``armijo.train``: checked before anything is spent, and named.

Only what is public decides: types, shapes, lengths, and synthetic examples.  A row's
content never raises; :func:`blank_rows` names such rows to the owner of the data.
"""

from hashlib import sha256
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from armijo import _validate
from armijo.accounting.budget import Computed, Neighboring
from armijo.data.gate import leaky_answer
from armijo.data.sources import DatasetRows, ExampleSource, TensorRows
from armijo.objectives.ghost.grads import LARGE_PRODUCT
from armijo.objectives.ghost.guards import Loss, as_tuple
from armijo.objectives.ghost.int8 import ASSUMPTION
from armijo.objectives.ghost.params import flat_size, trainable
from armijo.objectives.module import ModuleObjective

CERTIFIED = "exact sums of integers, certified for each example"
_AT_ONCE = 512


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
