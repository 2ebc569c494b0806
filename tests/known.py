# SPDX-License-Identifier: Apache-2.0
"""What is solved or probed is so once for equal settings: it takes most of a test."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import nn

from armijo.accounting import accountants, calibration, verify
from armijo.methods import base, line_search, sgd
from armijo.objectives import module as objective
from armijo.training import run


def remembered(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keep the results of a function whose arguments are compared by their text."""
    held: dict[str, Any] = {}

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        key = repr((given, sorted(named.items())))
        if key not in held:
            held[key] = function(*given, **named)
        return held[key]

    return call


def solved_once(solve: Callable[..., float]) -> Callable[..., float]:
    """Keep the noise of plans that are equal at two scales, which nothing else is."""
    held: dict[Any, float] = {}

    @wraps(solve)
    def call(budget: Any, plan_at: Callable[[float], Any]) -> float:
        try:
            key = budget, tuple(plan_at(1.0)), tuple(plan_at(2.5))
            hash(key)
        except (TypeError, ValueError):
            return solve(budget, plan_at)
        if key not in held:
            held[key] = solve(budget, plan_at)
        return held[key]

    return call


def probed_once(probe: Callable[..., Any]) -> Callable[..., Any]:
    """Keep what a probe says of a module that it lets pass."""
    held: dict[Any, Any] = {}

    def call(module: nn.Module, loss: Any, batch: Any) -> Any:
        parts = [*module.modules(), *([loss] if isinstance(loss, nn.Module) else [])]
        kinds = tuple(map(type, parts)), None if parts[-1] is loss else loss
        key = kinds, repr(([vars(part) for part in parts], batch))
        if key not in held:
            held[key] = probe(module, loss, batch)
        return held[key]

    return call


PROBES = ("refuse_mixing_loss", "refuse_mixing_examples", "row_wise_test")
PLANNED = solved_once(calibration.noise_for_plan)
KNOWN = {
    **{
        (place, "noise_for_plan"): PLANNED for place in (calibration, base, line_search)
    },
    (calibration, "renyi_noise_for_plan"): solved_once(
        calibration.renyi_noise_for_plan
    ),
    (sgd, "noise_multiplier_for"): remembered(sgd.noise_multiplier_for),
    (run, "order_for"): remembered(run.order_for),
    (run, "epsilon_of"): remembered(run.epsilon_of),
    (accountants, "planned_epsilon"): remembered(accountants.planned_epsilon),
    (verify, "recompute_planned"): remembered(verify.recompute_planned),
    **{(objective, name): probed_once(getattr(objective, name)) for name in PROBES},
}


def know(put: Callable[[Any, str, Any], None] = setattr) -> None:
    for (place, name), function in KNOWN.items():
        put(place, name, function)
