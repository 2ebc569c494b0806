# SPDX-License-Identifier: Apache-2.0
"""One contract for the settings of all methods: what is no setting is refused by name.

The ranges stand here again, by the names of the fields, so that a field whose type says
too little is seen, and a new field has to be entered.
"""

import math
from dataclasses import fields

import pytest

from armijo.baselines import AGD, AMP, OutpertGD, PrivGene
from armijo.methods import BLGD, BLSGD, ArmijoSearch, Auto, SearchedSGD
from armijo.registry import LINEAR, NETWORK

ENTRIES = (*LINEAR.values(), *NETWORK.values())
KINDS = {entry.kind.__name__: entry.kind for entry in ENTRIES}
KINDS["ArmijoSearch"] = ArmijoSearch
NOT_NUMBERS = (math.nan, -math.inf, "1", True, [1.0])
OUTSIDE = {
    "sampling_prob step_decay": (0.0, -0.1, 1.5),
    "steps epochs batch_size splits grid_size reset_every": (0, -1, 2.5),
    "expected_steps max_tries evidence_window parents": (0, -1, 2.5),
    "points": (2, 3.5),
    "population_size": (1, 2.5),
    "population_seed": (-1, 0.5),
    "step_size max_grad_norm loss_clip initial_step max_step": (0.0, -1.0, math.inf),
    "growth_cap eps stability first_step data_norm": (0.0, -1.0, math.inf),
    "norm_share center_share angle_high angle_low": (0.0, -1.0, math.inf),
    "probe_fraction averaging_power gradient_tolerance": (0.0, -1.0, math.inf),
    "gradient_rho search_epsilon": (0.0, -1.0),  # infinite without noise
    "budget_growth moment_share noise_multiplier": (-0.1, math.inf),
    "significance penalty": (-1.0, math.inf),
    "search_share slope shrink beta1 beta2 angle_decay": (-0.1, 1.0, 2.0),
    "output_share noise_share score_share": (0.0, -0.1, 1.0, 2.0),
    "clip_decay": (-0.1, 1.0, math.inf),
    "step_change noise_growth repetitions": (1.0, 0.5, math.inf),
}
NUMBERS = {
    name: bad + NOT_NUMBERS for names, bad in OUTSIDE.items() for name in names.split()
}
CHOICES = """kind form search search_form armijo_scaling adapt average initial_split
selection variant relation""".split()
FLAGS = "average_iterates subtract_noise fallback".split()
SEQUENCES = "step_sizes max_grad_norms".split()
REFUSED = {
    **NUMBERS,
    **dict.fromkeys(CHOICES, ("nonsense", 1)),
    **dict.fromkeys(FLAGS, ("plain", 1, None)),
    **dict.fromkeys(SEQUENCES, ((), (1.0, -1.0), (0.0,), 1.0)),
}
# The original form of PrivGene alone has a population.
GIVEN = {
    name: {"variant": "original"}
    for name in ("population_size", "parents", "population_seed")
}


def made(kind, /, **settings):
    bound = {"data_norm": 1.0} if "data_norm" in kind.__dataclass_fields__ else {}
    return kind(**{**bound, **settings})


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_field_is_checked(kind):
    made(kind)  # defaults are settings
    for field in fields(kind):
        if field.metadata.get("solved"):
            continue
        for bad in REFUSED[field.name]:
            if bad is None and field.default is None:
                continue  # what is usual for the problem
            with pytest.raises(ValueError, match=rf"Expected.*{field.name}"):
                made(kind, **{**GIVEN.get(field.name, {}), field.name: bad})


@pytest.mark.parametrize(
    ("kind", "settings", "match"),
    [
        (BLGD, {"budget_growth": 0.0}, "budget_growth > 0"),
        (AGD, {"budget_growth": 0.0}, "budget_growth > 0"),
        (ArmijoSearch, {"slope": 0.0}, "0 < slope < 1"),
        (BLSGD, {"search_share": 0.0}, "0 < search_share < 1"),
        (SearchedSGD, {"search_share": 0.0}, "0 < search_share < 1"),
        (Auto, {"first_step": 0.5}, "1 <= first_step <= 32"),
        (Auto, {"first_step": 33.0}, "1 <= first_step <= 32"),
        (Auto, {"center_share": 0.95}, "center_share.*add up to one"),
        (AMP, {"gradient_tolerance": 1e-15}, "gradient_tolerance >= 1e-14"),
        (OutpertGD, {"relation": "add-remove"}, "relation"),
        (
            OutpertGD,
            {"variant": "replica", "relation": "zero-out"},
            "relation='replace-one'",
        ),
        (PrivGene, {"relation": "zero-out"}, "relation"),
        (PrivGene, {"population_size": 20}, "variant='original' with population_size"),
        (PrivGene, {"parents": 2}, "variant='original' with parents"),
        (PrivGene, {"parents": 201, "variant": "original"}, "parents <= population"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(kind, settings, match):
    with pytest.raises(ValueError, match=match):
        made(kind, **settings)
