# SPDX-License-Identifier: Apache-2.0
"""Names that the field says otherwise do not come back."""

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# The name to use, and the names that it took the place of: whole identifiers, or
# whole words of one that has underscores.
NAMES = {
    "ProcessGroup": "Team",
    "SINGLE": "Alone SingleProcess",
    "TorchProcessGroup": "ProcessTeam",
    "broadcast": "from_lead decided",
    "assert_same": "agree",
    "broadcast_init": "share_start",
    "load_on_all_ranks": "shared_past",
    "rank_rng": "own_randomness",
    "max_grad_norm": "grad_clip",
    "max_grad_norms": "grad_clips",
    "smooth": "kink",
    "poisson_sample": "poisson_coins",
    "sum_skipping_failures": "sparing spared_sum",
    "ForkSafeLock": "Turns",
    "RechargeWarning": "PaidAgainWarning",
    "ReplayableRun": "KeyedRun",
    "commit": "settle",
    "resume_key": "take_up_key",
    "Checkpoint": "Past Position",
    "Fingerprint": "Facts Feed",
    "PerExampleGrad": "Use",
    "Materialized": "Stored",
    "OuterProduct": "Outer",
    "EmbeddingGrad": "Lookup",
    "Sum": "Several",
    "capture_activations": "recording",
    "GraphRoot": "_Begin",
    "UnsupportedForward": "NotRecorded",
    "vmap_fallback": "one_by_one",
    "synthetic_batch": "made_up",
    "probe_single": "pass_alone",
    "noise_sq_norm": "noise_energy",
    "Standardization": "Frame",
    "_adjoint": "_pulled_back",
    "probe_fraction": "boldness",
    "averaging_power": "forgetting",
    "MIN_SNR": "SURE",
    "TARGET_SNR": "READABLE",
    "TAIL_PENALTY": "FAR_PENALTY",
    "RADIUS_SLACK_SD": "RADIUS_ROOM",
    "MAX_NORM_SHARE": "MOST_FOR_NORM",
    "INTERCEPT_DAMPING": "INTERCEPT_CAUTION",
    "average_iterates": "tail_mean",
    "initial_step": "step_max",
    "growth_cap": "headroom",
    "reset_every": "refresh_every",
    "data_norm": "feature_norm row_bound",
    "beta2": "square_decay",
    "ExponentialMechanism": "NoisyMax",
    "summarize_run": "describe_run",
    "synthetic": "stand_ins",
    "SyntheticTable": "MadeTable",
    "RunKey": "Cell",
    "Series": "Line",
    "PairedDiff": "Gap",
    "WinCount": "Tally",
    "Verdict": "Judge",
    "drop_partial": "mend",
}
INSTEAD = {old: new for new, names in NAMES.items() for old in names.split()}
OLD = re.compile(r"(?<![^\W_])(?:" + "|".join(INSTEAD) + r")(?![^\W_])")


def source_files():
    for folder in ("src", "reproduction/src", "examples"):
        yield from (ROOT / folder).rglob("*.py")


def identifiers(source):
    """Yield the lines and identifiers of code; text and comments are no names."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            yield token.start[0], token.string


def code_spans(text):
    """Yield the lines and what Markdown or a docstring marks as code in them."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif fenced:
            yield number, line
        else:
            yield from ((number, span) for span in re.findall(r"`([^`]+)`", line))


def old_names(pairs):
    for number, text in pairs:
        for name in OLD.findall(text):
            yield f"line {number}: {name}, now {INSTEAD[name]}"


def refused(path):
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return [*old_names(identifiers(text)), *old_names(code_spans(text))]
    return list(old_names(code_spans(text)))


def test_code_uses_the_names_of_the_field():
    assert not {str(p): hits for p in source_files() if (hits := refused(p))}


def test_pages_use_the_names_of_the_field():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")]
    assert not {str(p): hits for p in pages if (hits := refused(p))}


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("code.py", "def fit(grad_clip=1.0): ...", True),
        ("code.py", "self._grad_clip = ()", True),
        ("code.py", "class Team: ...", True),
        ("code.py", "# Team play; the past is settled.", False),
        ("code.py", '"""Pass ``feature_norm``."""', True),
        ("page.md", "Pass `grad_clip=1`.", True),
        ("page.md", "```python\nfit(feature_norm=1)\n```", True),
        ("page.md", "Use the team's agreement.", False),
    ],
)
def test_an_old_name_is_seen(tmp_path, name, text, found):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    assert bool(refused(path)) is found
