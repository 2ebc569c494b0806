# SPDX-License-Identifier: Apache-2.0
"""One process or several: sums over all, noise and decisions from one of them.

Each process holds a shard of the rows and samples it by Poisson coins of its own, which
together are the coins of one sample.  Sums are added up; noise is drawn once, by the
lead, and everybody goes on with the lead's answer.
"""

from collections.abc import Callable
from hashlib import sha256
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from armijo.errors import ArmijoError

Result = TypeVar("Result")


class ProcessGroup:
    """The processes of a run, as the gate asks for them: here a single one."""

    rank = 0
    """The number of this process."""
    size = 1
    """How many processes there are."""

    @property
    def is_main(self) -> bool:
        """Whether this process draws noise and writes the ledger."""
        return self.rank == 0

    def total(self, vector: Tensor) -> Tensor:
        """Return the sum of everybody's vector."""
        return vector

    def broadcast(self, make: Callable[[], Tensor], like: Tensor) -> Tensor:
        """Return what the main process makes; others pass something of its shape."""
        return make()

    def broadcast_bytes(self, make: Callable[[], bytes]) -> bytes:
        """Return the bytes that the main process makes, of any number."""
        return make()

    def broadcast_bool(self, decide: Callable[[], bool]) -> bool:
        """Return the decision of the main process."""
        return decide()

    def assert_same(self, what: str, value: str) -> None:
        """Refuse, in all processes, a public value that differs between them."""

    def all_or_none(self, do: Callable[[], Result]) -> Result:
        """Do what concerns this process alone; if one fails, all of them do."""
        return do()


SINGLE = ProcessGroup()


class TorchProcessGroup(ProcessGroup):
    """The processes of ``torch.distributed``, which must be initialized."""

    def __init__(self) -> None:
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_initialized()):
            raise ArmijoError(
                "Expected torch.distributed to be initialized; start the script by "
                "torchrun and call torch.distributed.init_process_group first."
            )
        self._dist = dist
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        # This backend moves nothing but what lies on a GPU.
        self._only_cuda = dist.get_backend() == "nccl"

    def total(self, vector: Tensor) -> Tensor:
        """Add up everybody's vector."""
        summed = vector.clone(memory_format=torch.contiguous_format)
        return self._together(self._dist.all_reduce, summed)

    def broadcast(self, make: Callable[[], Tensor], like: Tensor) -> Tensor:
        """Send the main process's vector to everybody."""
        vector = make() if self.is_main else torch.empty_like(like)
        return self._together(self._dist.broadcast, vector.contiguous(), src=0)

    def broadcast_bytes(self, make: Callable[[], bytes]) -> bytes:
        """Send their number, then the bytes."""
        held = np.frombuffer(make() if self.is_main else b"", dtype=np.uint8)
        found = torch.tensor([held.size])
        size = int(self.broadcast(lambda: found, found).item())
        like = torch.empty(size, dtype=torch.uint8)
        return bytes(self.broadcast(lambda: torch.tensor(held), like).numpy())

    def broadcast_bool(self, decide: Callable[[], bool]) -> bool:
        """Send the lead's decision to everybody, also that it failed to decide."""
        answer = torch.full((1,), -1, dtype=torch.int64)
        try:
            if self.is_main:
                answer[0] = int(decide())
        finally:
            answer = self._together(self._dist.broadcast, answer, src=0)
        if answer.item() < 0:
            raise ArmijoError(
                "The lead of the processes failed; see its own error. What it charged "
                "stays charged, nothing else was released."
            )
        return bool(answer.item())

    def assert_same(self, what: str, value: str) -> None:
        """Compare digests; everybody learns of a difference at the same time."""
        digest = int.from_bytes(sha256(value.encode()).digest()[:7], "big")
        ends = torch.tensor([digest, -digest])
        most = self._dist.ReduceOp.MAX
        high, low = self._together(self._dist.all_reduce, ends, op=most).tolist()
        if high != -low:
            raise ArmijoError(
                f"Expected the same {what} in all processes, got {value} in process "
                f"{self.rank} of {self.size} and another elsewhere; start them alike. "
                "Nothing was spent by this request."
            )

    def all_or_none(self, do: Callable[[], Result]) -> Result:
        """Do it, then ask who failed, so that nobody waits for a process that did."""
        failed = torch.zeros(self.size, dtype=torch.int64)
        try:
            result = do()
        except Exception:
            failed[self.rank] = 1
            self.total(failed)
            raise
        others = self.total(failed).nonzero().flatten().tolist()
        if others:
            raise ArmijoError(
                f"Process {', '.join(map(str, others))} of {self.size} could not "
                "prepare its part of the run; see its own error. Nothing was spent by "
                "this request."
            )
        return result

    def _together(self, call: Any, vector: Tensor, **settings: Any) -> Tensor:
        """Make a collective call; a process that died is told in plain words."""
        travels = vector
        if self._only_cuda and vector.device.type == "cpu":
            travels = vector.to("cuda")
        try:
            call(travels, **settings)
        except RuntimeError as error:
            raise ArmijoError(
                f"Process {self.rank} of {self.size} lost contact with the others "
                f"({str(error).partition(chr(10))[0]}); the run stops here. What was "
                "charged stays charged; resume it from its checkpoint."
            ) from error
        return travels.to(vector.device)


def number_total(group: ProcessGroup, number: int) -> int:
    """Return the sum of everybody's integer."""
    if group.size == 1:
        return number
    return int(group.total(torch.tensor([number], dtype=torch.int64))[0])
