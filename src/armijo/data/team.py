# SPDX-License-Identifier: Apache-2.0
"""One process or several: sums over all, noise and decisions from one of them.

Each process holds a shard of the rows and samples it by Poisson coins of its own, which
together are the coins of one sample.  Sums are added up; noise is drawn once, by the
lead, and everybody goes on with the lead's answer.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from armijo.errors import ArmijoError


class Team(Protocol):
    """What the gate asks of the processes of a run."""

    @property
    def leads(self) -> bool:
        """Whether this process draws noise and writes the ledger."""
        ...

    def total(self, vector: Tensor) -> Tensor:
        """Return the sum of everybody's vector."""
        ...

    def from_lead(self, make: Callable[[], Tensor], like: Tensor) -> Tensor:
        """Return what the lead makes; the others pass something of its shape."""
        ...

    def decided(self, decide: Callable[[], bool]) -> bool:
        """Return the lead's decision."""
        ...


class Alone:
    """A run in one process."""

    leads = True

    def total(self, vector: Tensor) -> Tensor:
        """Return the vector."""
        return vector

    def from_lead(self, make: Callable[[], Tensor], like: Tensor) -> Tensor:
        """Make it."""
        return make()

    def decided(self, decide: Callable[[], bool]) -> bool:
        """Decide."""
        return decide()


class ProcessTeam:
    """The processes of ``torch.distributed``, which must be initialized."""

    def __init__(self) -> None:
        import torch.distributed as dist

        if not dist.is_initialized():
            raise ArmijoError(
                "Expected torch.distributed to be initialized; start the script by "
                "torchrun and call torch.distributed.init_process_group first."
            )
        self._dist = dist
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    @property
    def leads(self) -> bool:
        """Rank zero leads."""
        return bool(self.rank == 0)

    def total(self, vector: Tensor) -> Tensor:
        """Add up everybody's vector."""
        summed = vector.clone()
        self._together(self._dist.all_reduce, summed)
        return summed

    def from_lead(self, make: Callable[[], Tensor], like: Tensor) -> Tensor:
        """Send the lead's vector to everybody."""
        vector = make().contiguous() if self.leads else torch.empty_like(like)
        self._together(self._dist.broadcast, vector, src=0)
        return vector

    def decided(self, decide: Callable[[], bool]) -> bool:
        """Send the lead's decision to everybody, also that it failed to decide."""
        answer = torch.full((1,), -1, dtype=torch.int64)
        try:
            if self.leads:
                answer[0] = int(decide())
        finally:
            self._together(self._dist.broadcast, answer, src=0)
        if answer.item() < 0:
            raise ArmijoError(
                "The lead of the processes failed; see its own error. What it charged "
                "stays charged, nothing else was released."
            )
        return bool(answer.item())

    def _together(self, call: Any, vector: Tensor, **settings: Any) -> None:
        """Make a collective call; a process that died is told in plain words."""
        try:
            call(vector, **settings)
        except RuntimeError as error:
            raise ArmijoError(
                f"Process {self.rank} of {self.size} lost contact with the others "
                f"({str(error).splitlines()[0]}); the run stops here. What was charged "
                "stays charged; resume it from its checkpoint."
            ) from error


def number_total(team: Team, number: int) -> int:
    """Return the sum of everybody's integer."""
    if isinstance(team, Alone):
        return number
    return int(team.total(torch.tensor([number], dtype=torch.int64))[0])


def vector_total(team: Team, vector: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sum of everybody's integers."""
    if isinstance(team, Alone):
        return vector
    return team.total(torch.from_numpy(vector)).numpy()
