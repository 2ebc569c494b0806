# SPDX-License-Identifier: Apache-2.0
"""Methods for networks: from a budget and a number of steps to noise.

================  ==================================================================
``auto``          nothing to set: the step follows a private three-point search
``blsgd``         DP-BLSGD in network mode: Gaussian search with a tenth of each
                  step's budget, a fallback step instead of none, no budget increase
``sgd``           DP-SGD with a given step size
``adam``          DP-Adam
``hyfree``        HyFreeDP
``nonprivate``    Adam without noise: an upper bound, no guarantee
================  ==================================================================
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from armijo import _validate
from armijo.baselines.hyfree import HyFreeSettings
from armijo.methods.armijo_search import ArmijoSearch
from armijo.methods.auto_network import NetworkAuto
from armijo.methods.base import Method
from armijo.methods.line_search import BLSGD
from armijo.methods.sgd import SGD, Adam, AdamSettings, SGDSettings
from armijo.privacy.budget import Budget
from armijo.privacy.calibration import noise_for_plan
from armijo.privacy.mechanisms import Composed, Gaussian
from armijo.privacy.subsampling import Subsampled

NETWORK_METHODS = ("auto", "blsgd", "sgd", "adam", "hyfree", "nonprivate")
"""Names that :func:`armijo.train` takes."""

_NO_CLIP = 1e6


@dataclass(frozen=True, kw_only=True)
class NetworkBLSGD:
    """Public settings of DP-BLSGD in network mode (Chen and Lee 2020, networks).

    Attributes
    ----------
    search_share : float
        The search's part of each step's budget.
    grad_clip, loss_clip : float
        Clips of gradients and, for searches on losses, of losses.
    step_max, refresh_every, headroom : float, int, float
        The first candidate, and how it follows the steps that were taken.
    adapt : {"never", "angle", "always"}
        Whether the gradient's budget grows when a search fails and directions
        disagree; with a fallback step no search fails, so that this asks for
        ``fallback=False``.
    """

    search_share: float = 0.1
    grad_clip: float = 1.0
    loss_clip: float = 1.0
    step_max: float = 1.0
    refresh_every: int = 10
    headroom: float = 1.2
    adapt: Literal["never", "angle", "always"] = "never"
    budget_growth: float = 0.3
    slope: float = 0.1
    shrink: float = 0.8
    max_tries: int = 20
    search_form: Literal["loss", "difference"] = "difference"
    subtract_noise: bool = True
    fallback: bool = True

    def __post_init__(self) -> None:
        """Check the settings; the others are checked where they are used."""
        _validate.open_unit(search_share=self.search_share)
        if self.adapt != "never" and self.fallback:
            raise ValueError(
                f"Expected fallback=False with adapt={self.adapt!r}, got True: with a "
                "fallback step no search fails, so that no budget would ever grow. "
                "Nothing was spent."
            )

    def build(self, budget: Budget, *, rate: float, steps: int) -> BLSGD:
        """Return the method whose ``steps`` equal steps use up the budget."""
        search = ArmijoSearch(
            kind="gaussian",
            slope=self.slope,
            shrink=self.shrink,
            max_tries=self.max_tries,
            form=self.search_form,
            subtract_noise=self.subtract_noise,
            fallback=self.fallback,
        )

        def rhos(noise: float) -> tuple[float, float]:
            rho = 0.5 / noise**2
            return (1 - self.search_share) * rho, self.search_share * rho

        def plan_at(noise: float) -> list[tuple[Subsampled, int]]:
            for_gradient, for_search = rhos(noise)
            gradient = Gaussian.from_rho(for_gradient)
            both = Composed((gradient, search.mechanism((2 * for_search) ** 0.5)))
            return [(Subsampled(both, rate), steps)]

        for_gradient, for_search = rhos(noise_for_plan(budget, plan_at))
        return BLSGD(
            gradient_rho=for_gradient,
            search_epsilon=(2 * for_search) ** 0.5,
            search=search,
            rate=rate,
            grad_clip=self.grad_clip,
            loss_clip=self.loss_clip,
            step_max=self.step_max,
            refresh_every=self.refresh_every,
            headroom=self.headroom,
            adapt=self.adapt,
            budget_growth=self.budget_growth,
        )


@dataclass(frozen=True, kw_only=True)
class NetworkSGD(SGDSettings):
    """DP-SGD for networks: the paper's step size 0.2."""

    step_size: float | None = 0.2
    grad_clip: float = 1.0


@dataclass(frozen=True, kw_only=True)
class NetworkAdam(AdamSettings):
    """DP-Adam for networks: the usual step size 0.001."""

    step_size: float | None = 1e-3
    grad_clip: float = 1.0


@dataclass(frozen=True, kw_only=True)
class NetworkHyFree(HyFreeSettings):
    """HyFreeDP for networks: automatic clipping with its published constant."""

    stability: float = 0.01
    step_size: float | None = 1e-3
    loss_clip: float = 3.0
    headroom: float = 2.0


_IGNORED = ("grad_clip", "noise_multiplier")
"""What a run without noise takes from nobody."""

_SETTINGS: dict[str, type[Any]] = {
    "auto": NetworkAuto,
    "blsgd": NetworkBLSGD,
    "sgd": NetworkSGD,
    "adam": NetworkAdam,
    "hyfree": NetworkHyFree,
    "nonprivate": NetworkAdam,
}


def network_method(
    name: str,
    budget: Budget,
    *,
    rate: float,
    steps: int,
    options: Mapping[str, Any] | None = None,
) -> Method[Any]:
    """Return a method by name, its noise solved for ``steps`` batches of ``rate``.

    A parameter that the method does not take is refused by name.
    """
    _validate.choice(NETWORK_METHODS, method=name)
    _validate.rate(rate=rate)
    _validate.at_least(1, steps=steps)
    kind = _SETTINGS[name]
    takes = set(kind.__dataclass_fields__) - {"rate", "steps"}
    if name == "nonprivate":
        takes -= set(_IGNORED)
    foreign = sorted(set(options or {}) - takes)
    if foreign:
        raise ValueError(
            f"Method {name!r} does not take {', '.join(foreign)}; it takes "
            f"{', '.join(sorted(takes))}. Nothing was spent."
        )
    if kind in (NetworkAuto, NetworkBLSGD):
        return kind(**(options or {})).build(budget, rate=rate, steps=steps)
    settings = kind(rate=rate, steps=steps, **(options or {}))
    if isinstance(settings, HyFreeSettings):
        noise = noise_for_plan(budget, lambda z: settings.with_noise(z).schedule())
        return settings.with_noise(noise)
    if name == "nonprivate":
        return _without_noise(settings)
    if isinstance(settings, AdamSettings):
        return settings.solved_adam(budget, 1e-3)
    return SGD(**settings.solved(budget, 0.2))


def _without_noise(settings: AdamSettings) -> Adam:
    """Return Adam on gradients that are neither clipped nor noised."""
    silent = Gaussian(noise_scale=0.0, sensitivity=_NO_CLIP)
    return Adam(
        rate=settings.rate,
        steps=settings.steps,
        step_size=settings.step_size or 1e-3,
        gradient=silent,
        decay=settings.decay,
        square_decay=settings.square_decay,
        floor=settings.floor,
    )
