# SPDX-License-Identifier: Apache-2.0
"""Clipped and noised steps of the paper's networks beside a plain step and peers.

Two threads, batches of 300 and 250, all ways on the same module and batch, in turns, so
that a busy machine slows all of them; medians.  ``BENCH_CPU_TIME=1`` measures processor
time on one thread instead, for machines that are never quiet.  The plain step is
forward, backward and SGD.  Ours comes twice: the clipped sum with torch's noise, as
the peers have it, and the step through the gate with the package's own noise.  Whole
steps of DP-BLSGD, sampling and searches included, are averaged over a training on
synthetic classes, each beside a step of the fastest Opacus mode that clips right.
Memory is the peak of a process that takes three steps.  ``BENCH_NETWORKS`` names
networks to measure alone, with commas between; ``BENCH_SECONDS`` is how long each way
is measured.
"""

import functools
import os
import statistics
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.grad import conv2d_weight

from armijo import networks
from armijo.accounting.accountants import PrivacyFilter
from armijo.accounting.budget import Budget
from armijo.accounting.mechanisms import Gaussian
from armijo.data.gate import BatchPlan, PrivateDataset
from armijo.data.sources import TensorRows
from armijo.methods import BLSGD
from armijo.methods.base import Problem, StepRecord, minimize
from armijo.objectives.ghost import (
    Batch,
    Clip,
    clipped_gradient_sum,
    flat_parameters,
    parameters_at,
)
from armijo.objectives.ghost.engine import Task, plain_sum
from armijo.objectives.ghost.grads import ConvGrad, OuterProduct, PerExampleGrad
from armijo.objectives.ghost.params import views
from armijo.objectives.ghost.strategy import strategy_for
from armijo.objectives.module import ModuleObjective
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
from benchmarks._timing import CPU_TIME, clock, in_turns

THREADS = 1 if CPU_TIME else 2
DIGITS, PICTURES = (300, 1, 28, 28), (250, 3, 32, 32)
# The batch, and the most that a step may cost in plain steps.
MODELS: dict[str, tuple[tuple[int, ...], float]] = {
    "mlp_1000": (DIGITS, 2.3),
    "mlp_256": (DIGITS, 2.4),
    "cnn_small": (DIGITS, 1.6),
    "cnn_cifar": (PICTURES, 1.6),
}
ROUNDS, SECONDS_EACH = 40, float(os.environ.get("BENCH_SECONDS", "6"))
MEMORY_FACTOR, MEMORY_GIB = 1.4, 3.0
AGREEMENT = 1e-3
STEPS, BATCHES = 100, 20  # of a training, on batches of a twentieth
SEARCH_FACTOR = 1.3
FORMED_GIB = 2.0


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


def float_step(module: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Return the same with sums in single precision, which no theorem covers.

    What integers, certificates and exact sums cost is the difference.
    """
    w = flat_parameters(module)
    noise, total = torch.empty_like(w), torch.empty_like(w)

    def step() -> None:
        with parameters_at(module, w):
            strategy = strategy_for(module, (x,))
            capture, _, _ = Task.of(module, losses, Batch(x, y), None).capture()
        grads = capture.gradients()
        norms = torch.stack([g.squared_norms(strategy.keeps) for g in grads.values()])
        weights = Clip(bound=CLIP).weights(norms.sum(0).sqrt()).to(w.dtype)
        places = views(strategy.parameters, total)
        for parameter, place in zip(strategy.parameters, places, strict=True):
            place.copy_(_weighted(grads[parameter,], weights).view_as(place))
        total.add_(noise.normal_(), alpha=CLIP * NOISE)
        w.sub_(total, alpha=STEP_SIZE / len(x))

    return step


def _weighted(gradient: PerExampleGrad, weights: Tensor) -> Tensor:
    """Return the weighted sum of gradients by one product, where there is one."""
    if isinstance(gradient, OuterProduct) and gradient.left.shape[1] == 1:
        return (gradient.left[:, 0] * weights[:, None]).t() @ gradient.right[:, 0]
    if isinstance(gradient, ConvGrad):
        return conv2d_weight(
            gradient.padded(slice(None)),
            (*gradient.shape[:2], *gradient.kernel),
            gradient.gradients * weights[:, None, None, None],
            stride=gradient.stride,
            dilation=gradient.dilation,
            groups=gradient.groups,
        )
    return weights @ gradient.formed(slice(None)).flatten(1)


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


def training(name: str) -> Iterator[tuple[object, StepRecord]]:
    """Return a training by DP-BLSGD in network mode, a step at a time."""
    module, images, _ = made(name)
    batch, shape = len(images), images.shape[1:]
    labels = torch.randint(10, (BATCHES * batch,))
    rows = torch.rand(10, *shape)[labels] + 0.3 * torch.randn(len(labels), *shape)
    budget = Budget(epsilon=3.0, delta=1e-5)
    method = BLSGD(sampling_prob=1 / BATCHES, expected_steps=STEPS)
    method = method.calibrate(budget, Problem(n_rows=len(rows)))
    # The filter proves less for the same noise than the plan that the noise is for.
    accountant = PrivacyFilter(Budget(epsilon=1e6, delta=1e-5))
    data = PrivateDataset(
        TensorRows(rows, labels), n_rows=len(rows), accountant=accountant
    )
    objective = ModuleObjective(module, losses)
    state = method.init(objective.start())
    return minimize(objective, data, method, state, max_batches=STEPS)


def trained_beside(name: str, peer: Step) -> tuple[float, float, float]:
    """Return mean seconds of a step of training and of a peer's, and mean tries."""
    found: list[tuple[float, float, float]] = []
    start = clock()
    for _, record in training(name):
        own = clock() - start
        start = clock()
        peer()
        found.append((own, clock() - start, record.tries))
        start = clock()
    ours, theirs, tries = map(statistics.mean, zip(*found[1:], strict=True))
    return ours, theirs, tries


def loss_evaluation(module: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Return one evaluation of all losses, what a candidate of a search costs."""

    @torch.no_grad()
    def step() -> Tensor:
        return losses(module(x), y)

    return step


WAYS: dict[str, Callable[[nn.Sequential, Tensor, Tensor], Step]] = {
    "plain": plain_step,
    "clipped": clipped_step,
    "floats": float_step,
    "gate": gate_step,
    "loss": loss_evaluation,
    "vmap": vmap_step,
    "jax": jax_step,
    **{m: functools.partial(OpacusStep, mode=m) for m in OPACUS_MODES},
}


def fits(name: str) -> bool:
    """Say whether the gradients of all examples fit where others work too."""
    module, images, _ = made(name)
    numbers = len(images) * sum(p.numel() for p in module.parameters())
    return 4 * numbers < FORMED_GIB * 2**30


def formed_by(name: str) -> dict[str, str]:
    """Return the peers that form the gradients of all examples, where these fit."""
    peers = {"vmap": "vmap", "jax": "JAX vmap and jit"}
    if not installed("jax"):
        del peers["jax"]
    return peers if fits(name) else {}


def correct_modes(name: str) -> dict[str, Step]:
    """Return the steps of Opacus whose clipped sum is the exact one."""
    module, x, y = made(name)
    # Sums in floats: what peers add up is not rounded to a lattice, as ours is.
    exact, _ = plain_sum(module, losses, Batch(x, y), clip=Clip(bound=CLIP))
    found: dict[str, Step] = {}
    for mode in OPACUS_MODES if fits(name) else ("ghost",):
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
    formed = formed_by(name)
    ways = ["plain", "clipped", "floats", "gate", "loss", *formed]
    steps = {way: WAYS[way](*made(name)) for way in ways}
    opacus = correct_modes(name) if installed("opacus") else {}
    seconds = in_turns({**steps, **opacus}, rounds=ROUNDS, seconds_each=SECONDS_EACH)
    plain, ours, limit = seconds["plain"], seconds["gate"], MODELS[name][1]
    clipped, loss, floats = (seconds[way] for way in ("clipped", "loss", "floats"))
    found = [
        at_most(f"{name}: clipped, torch noise, over plain", clipped, plain, limit),
        at_most(f"{name}: DP-SGD step over plain", ours, plain, limit),
        _without_goal(f"{name}: price of rigor, over sums in floats", clipped, floats),
        _without_goal(f"{name}: one loss evaluation beside plain", loss, plain),
    ]
    for way, title in formed.items():
        title = f"{name}: DP-SGD step against {title}"
        found.append(times_faster(title, ours, seconds[way], 1.0))
    if opacus:
        fastest = min(opacus, key=seconds.__getitem__)
        searched, peer, tries = trained_beside(name, opacus[fastest])
        title = f"{name}: DP-BLSGD step, {tries:.1f} tries, over Opacus {fastest}"
        found.append(at_most(title, searched, peer, SEARCH_FACTOR))
    for mode in opacus:
        title = f"{name}: DP-SGD step against Opacus {mode}"
        found.append(times_faster(title, ours, seconds[mode], 1.0))
    return found + _memory_rows(name)


def _without_goal(title: str, ours: float, peer: float | None = None) -> Row:
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
    wanted = os.environ.get("BENCH_NETWORKS", ",".join(MODELS)).split(",")
    return [row for name in wanted for row in _rows_of(name)]


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
