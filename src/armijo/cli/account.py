# SPDX-License-Identifier: Apache-2.0
"""``armijo account`` and ``armijo calibrate``: epsilon for noise, noise for epsilon."""

import math
from typing import Annotated

import typer

from armijo import _validate
from armijo.accounting.above_threshold import AboveThreshold
from armijo.accounting.budget import Budget
from armijo.accounting.calibration import (
    AccountantName,
    epsilon_of,
    noise_multiplier_for,
    step_mechanism,
)
from armijo.cli._ui import emit, warn

Rate = Annotated[float, typer.Option(help="Probability of one row to be in a batch.")]
Steps = Annotated[int, typer.Option(help="Number of steps, a batch each.")]
Delta = Annotated[float, typer.Option(help="The delta of the guarantee.")]
SearchEpsilon = Annotated[
    float | None,
    typer.Option(help="Budget of a Laplace line search on every batch."),
]
SearchRho = Annotated[
    float | None,
    typer.Option(help="Budget of a Gaussian line search on every batch."),
]
MaxTries = Annotated[
    int | None,
    typer.Option(help="Most candidates of one search (required with --search-rho)."),
]
Adaptive = Annotated[
    bool,
    typer.Option(
        "--adaptive", help="Budgets or stopping chosen on the way: privacy filter."
    ),
]
Accounting = Annotated[
    str, typer.Option(help='"sound", or "paper" (as printed: no guarantee).')
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def _search(
    epsilon: float | None, rho: float | None, max_tries: int | None
) -> AboveThreshold | None:
    """Return the search on each batch, if one was asked for."""
    if max_tries is not None:
        _validate.at_least(1, max_tries=max_tries)
    if epsilon is not None and rho is not None:
        raise ValueError(
            f"Expected one of --search-epsilon and --search-rho, got {epsilon!r} and "
            f"{rho!r}; a search has Laplace or Gaussian noise, not both."
        )
    if epsilon is not None:
        _validate.positive(search_epsilon=epsilon)
        return AboveThreshold.laplace(epsilon, max_tries)
    if rho is not None:
        if max_tries is None:
            raise ValueError(
                "Expected --max-tries with --search-rho, got none; the cap is part of "
                "the Gaussian guarantee."
            )
        _validate.positive(search_rho=rho)
        return AboveThreshold.gaussian(rho, max_tries)
    return None


def account(
    *,
    sampling_prob: Rate,
    noise_multiplier: Annotated[
        float, typer.Option(help="Noise over the clip of the gradient sum.")
    ],
    steps: Steps,
    delta: Delta,
    search_epsilon: SearchEpsilon = None,
    search_rho: SearchRho = None,
    max_tries: MaxTries = None,
    adaptive: Adaptive = False,
    accounting: Accounting = "sound",
    json: AsJson = False,
) -> None:
    """Tell the epsilon of a number of noisy steps."""
    _validate.choice(("sound", "paper"), accounting=accounting)
    _validate.sampling_prob(sampling_prob=sampling_prob)
    search = _search(search_epsilon, search_rho, max_tries)
    step = step_mechanism(sampling_prob, noise_multiplier, search)
    result: dict[str, object]
    if accounting == "paper":
        from armijo.accounting.paper import BROKEN_PREMISES, printed_epsilon

        epsilon, accountant = printed_epsilon(step, steps, delta), "paper-as-printed"
        premises = list(BROKEN_PREMISES)
        warn("paper accounting as printed is not a valid guarantee.")
    else:
        name: AccountantName = "adaptive" if adaptive else "planned"
        epsilon, accountant = epsilon_of(step, steps, delta, accountant=name)
        premises = []
    if epsilon == math.inf:
        raise ValueError(
            f"Expected a noise_multiplier with a finite epsilon, got "
            f"{noise_multiplier!r}; raise the noise."
        )
    result = {
        "epsilon": epsilon,
        "delta": delta,
        "accountant": accountant,
        "relation": "add-remove",
        "guarantee": not premises,
        "sampling_prob": sampling_prob,
        "noise_multiplier": noise_multiplier,
        "steps": steps,
        "search_epsilon": search_epsilon,
        "search_rho": search_rho,
        "max_tries": max_tries,
        "broken_premises": premises,
    }
    emit(result, title="Privacy of the planned steps", as_json=json)


def calibrate(
    *,
    epsilon: Annotated[float, typer.Option(help="The epsilon of the guarantee.")],
    delta: Delta,
    sampling_prob: Rate,
    steps: Steps,
    search_epsilon: SearchEpsilon = None,
    search_rho: SearchRho = None,
    max_tries: MaxTries = None,
    adaptive: Adaptive = False,
    json: AsJson = False,
) -> None:
    """Tell the smallest noise multiplier that keeps a budget."""
    budget = Budget(epsilon=epsilon, delta=delta)
    search = _search(search_epsilon, search_rho, max_tries)
    name: AccountantName = "adaptive" if adaptive else "planned"
    noise = noise_multiplier_for(
        budget, sampling_prob=sampling_prob, steps=steps, search=search, accountant=name
    )
    reached, accountant = epsilon_of(
        step_mechanism(sampling_prob, noise, search), steps, delta, accountant=name
    )
    result = {
        "noise_multiplier": noise,
        "gradient_rho": 0.5 / noise**2,
        "epsilon": epsilon,
        "epsilon_reached": reached,
        "delta": delta,
        "accountant": accountant,
        "relation": "add-remove",
        "sampling_prob": sampling_prob,
        "steps": steps,
    }
    emit(result, title="Noise for the budget", as_json=json)
