# SPDX-License-Identifier: Apache-2.0
"""Clipped and noised steps of the paper's networks beside a plain step and peers.

Two threads, batches of 300 and 250, all ways on the same module and batch, in turns, so
that a busy machine slows all of them; medians.  ``BENCH_CPU_TIME=1`` measures processor
time on one thread instead, for machines that are never quiet.  The plain step is
forward, backward and SGD.  Ours comes twice: the clipped sum with torch's noise, as
the peers have it, and the step through the gate with the package's own noise.  Memory
is the peak of a process that takes three steps.
"""

import functools
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from armijo import networks
from armijo.data.private import BatchPlan, PrivateDataset
from armijo.data.sources import TensorRows
from armijo.objectives.ghost import (
    clipped_gradient_sum,
    flat_parameters,
    parameters_at,
)
from armijo.objectives.module import ModuleObjective
from armijo.privacy.budget import Budget
from armijo.privacy.filter import PrivacyFilter
from armijo.privacy.mechanisms import Gaussian
from benchmarks import Row, at_most, times_faster, under
from benchmarks._network_peers import (
    CLIP,
    NOISE,
    OPACUS_MODES,
    STEP_SIZE,
    OpacusStep,
    Step,
    installed,
    jax_step,
    vmap_step,
)

CPU_TIME = os.environ.get("BENCH_CPU_TIME") == "1"
THREADS = 1 if CPU_TIME else 2
DIGITS, PICTURES = (300, 1, 28, 28), (250, 3, 32, 32)
# The batch, and the most that a step may cost in plain steps.
MODELS: dict[str, tuple[tuple[int, ...], float]] = {
    "mlp_1000": (DIGITS, 1.8),
    "mlp_256": (DIGITS, 1.4),
    "cnn_small": (DIGITS, 1.3),
    "cnn_cifar": (PICTURES, 1.4),
}
ROUNDS, SECONDS_EACH = 40, 12.0
MEMORY_FACTOR, MEMORY_GIB = 1.4, 3.0
AGREEMENT = 1e-3


def made(name: str) -> tuple[nn.Sequential, Tensor, Tensor]:
    """Return a network, the same each time, with a batch."""
    torch.manual_seed(0)
    shape = MODELS[name][0]
    module: nn.Sequential = getattr(networks, name)()
    return module, torch.rand(shape), torch.randint(10, shape[:1])


def losses(scores: Tensor, labels: Tensor) -> Tensor:
    """Return one cross-entropy for each example."""
    return functional.cross_entropy(scores, labels, reduction="none")


def plain_step(module: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Return a step of SGD without privacy."""
    optimizer = torch.optim.SGD(module.parameters(), lr=STEP_SIZE)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(module(x), y).backward()
        optimizer.step()

    return step


def clipped_step(module: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Return a step of our clipped sum with the noise that Opacus has by default."""
    w = flat_parameters(module)
    noise = torch.empty_like(w)

    def step() -> None:
        with parameters_at(module, w):
            total = clipped_gradient_sum(module, losses, (x, y), clip=CLIP).total
        total.add_(noise.normal_(), alpha=CLIP * NOISE)
        w.sub_(total, alpha=STEP_SIZE / len(x))

    return step


def gate_step(module: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Return a DP-SGD step through the gate: charged, clipped, rounded, noised."""
    objective = ModuleObjective(module, losses)
    accountant = PrivacyFilter(Budget(epsilon=1e6, delta=1e-5))
    data = PrivateDataset(TensorRows(x, y), n_rows=len(x), accountant=accountant)
    mechanism = Gaussian(noise_scale=CLIP * NOISE, sensitivity=CLIP)
    plan = BatchPlan(mechanisms=(mechanism,))
    w = objective.start()

    def step() -> None:
        query = objective.gradient_sum(w, clip=CLIP)
        total = data.open(plan).noisy_vector(query, mechanism)
        w.sub_(total, alpha=STEP_SIZE / len(x))

    return step


def loss_evaluation(module: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Return one evaluation of all losses, what a candidate of a search costs."""

    @torch.no_grad()
    def step() -> Tensor:
        return losses(module(x), y)

    return step


WAYS: dict[str, Callable[[nn.Sequential, Tensor, Tensor], Step]] = {
    "plain": plain_step,
    "clipped": clipped_step,
    "gate": gate_step,
    "loss": loss_evaluation,
    "vmap": vmap_step,
    "jax": jax_step,
    **{m: functools.partial(OpacusStep, mode=m) for m in OPACUS_MODES},
}


def in_turns(steps: dict[str, Step]) -> dict[str, float]:
    """Return the median seconds of each step; slow ones sit out the later rounds."""
    clock = time.process_time if CPU_TIME else time.perf_counter
    found: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    for _ in range(ROUNDS):
        for name, step in steps.items():
            if sum(found[name]) < SECONDS_EACH:
                start = clock()
                step()
                found[name].append(clock() - start)
    return {name: statistics.median(times) for name, times in found.items()}


def correct_modes(name: str) -> dict[str, Step]:
    """Return the steps of Opacus whose clipped sum is the exact one."""
    module, x, y = made(name)
    exact = clipped_gradient_sum(module, losses, (x, y), clip=CLIP).total
    found: dict[str, Step] = {}
    for mode in OPACUS_MODES:
        step = OpacusStep(*made(name), mode=mode)
        error = (step.clipped_total() - exact).norm() / exact.norm()
        if error < AGREEMENT:
            found[mode] = step
    return found


def peak_gib(name: str, way: str) -> float:
    """Return the peak memory of a process that takes three steps."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.networks", name, way],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def _rows_of(name: str) -> list[Row]:
    """Measure one network."""
    ways = ["plain", "clipped", "gate", "loss", "vmap"]
    ways += ["jax"] if installed("jax") else []
    steps = {way: WAYS[way](*made(name)) for way in ways}
    opacus = correct_modes(name) if installed("opacus") else {}
    seconds = in_turns({**steps, **opacus})
    plain, ours, limit = seconds["plain"], seconds["gate"], MODELS[name][1]
    clipped, loss = seconds["clipped"], seconds["loss"]
    found = [
        at_most(f"{name}: clipped, torch noise, over plain", clipped, plain, limit),
        at_most(f"{name}: DP-SGD step over plain", ours, plain, limit),
        _told(f"{name}: one loss evaluation beside plain", loss, plain),
        times_faster(f"{name}: DP-SGD step against vmap", ours, seconds["vmap"], 1.0),
    ]
    for mode in opacus:
        title = f"{name}: DP-SGD step against Opacus {mode}"
        found.append(times_faster(title, ours, seconds[mode], 1.0))
    for peer, key in (("Opacus", "opacus"), ("JAX", "jax")):
        if not installed(key):
            found.append(_told(f"{name}: {peer} is not installed", ours))
    if "jax" in seconds:
        title = f"{name}: DP-SGD step against JAX vmap and jit"
        found.append(times_faster(title, ours, seconds["jax"], 1.0))
    return found + _memory_rows(name)


def _told(title: str, ours: float, peer: float | None = None) -> Row:
    """Return a row without a goal."""
    ratio = None if peer is None else peer / ours
    return Row(name=title, ours=ours, peer=peer, ratio=ratio, goal="-", met=True)


def _memory_rows(name: str) -> list[Row]:
    """Compare the peak memory of a step with that of a plain one."""
    ours, plain = peak_gib(name, "gate"), peak_gib(name, "plain")
    found = [at_most(f"{name}: peak GiB over plain", ours, plain, MEMORY_FACTOR)]
    if name == "cnn_cifar":
        found.append(under(f"{name}: peak GiB", ours, MEMORY_GIB))
    return found


def rows() -> list[Row]:
    """Measure the four networks."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(THREADS)
    return [row for name in MODELS for row in _rows_of(name)]


def main(name: str, way: str) -> None:
    """Take three steps and print the peak memory in GiB."""
    torch.set_num_threads(THREADS)
    # What torch's optimizers import when they are used first is in every process.
    plain_step(nn.Linear(1, 10), torch.ones(1, 1), torch.zeros(1, dtype=torch.long))()
    step = WAYS[way](*made(name))
    for _ in range(3):
        step()
    # Not ru_maxrss: that begins with the size of the process which started this one.
    with open("/proc/self/status") as file:
        status = dict(line.split(":", 1) for line in file)
    print(int(status["VmHWM"].split()[0]) / 2**20)


if __name__ == "__main__":
    main(*sys.argv[1:])
