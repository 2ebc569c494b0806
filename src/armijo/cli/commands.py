# SPDX-License-Identifier: Apache-2.0
"""The commands.  What they need is imported when they run: ``--help`` is at once."""

import json as json_module
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from armijo import _validate
from armijo.cli._ui import (
    FitProgress,
    emit,
    emit_json,
    emit_rows,
    fail,
    finish_step_on_interrupt,
    game_progress,
    refuse_existing,
    say,
    warn,
    write_text,
)
from armijo.cli.images import Classes, Gray, Labels, Size, check_images

if TYPE_CHECKING:
    from armijo.accounting.above_threshold import AboveThreshold

NOT_VERIFIED = 4
"""Exit code of a run that does not verify, and of an audit that refutes a claim."""
INTERRUPTED = 130
NOT_FITTING = 2
"""Exit code of a table with cells that do not fit their schema."""
_CLAIMS = (
    *("statement", "guarantee", "epsilon", "delta", "relation", "accountant"),
    *("broken_premises", "assumptions"),
)
_BAR = 8  # characters that stand for the claimed epsilon

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Epsilon = Annotated[float, typer.Option(help="The epsilon of the guarantee.")]
Delta = Annotated[float, typer.Option(help="The delta of the guarantee.")]
SamplingProb = Annotated[
    float, typer.Option(help="Probability that a batch holds a given row.")
]
Steps = Annotated[int, typer.Option(help="Number of steps.")]
SearchEpsilon = Annotated[
    float | None, typer.Option(help="Budget of a Laplace line search in every step.")
]
SearchRho = Annotated[
    float | None, typer.Option(help="Budget of a Gaussian line search in every step.")
]
MaxTries = Annotated[
    int | None,
    typer.Option(help="Most candidates of one search (required with --search-rho)."),
]
Adaptive = Annotated[
    bool,
    typer.Option(
        "--adaptive", help="Budgets or stopping depend on releases: privacy filter."
    ),
]
Accounting = Annotated[
    str, typer.Option(help='"sound", or "paper" (as published: no guarantee).')
]
Table = Annotated[Path, typer.Argument(help="A CSV or Parquet file.")]
Streamed = Annotated[
    str,
    typer.Argument(
        help="A CSV or Parquet file, or Parquet files that are streamed: a folder, "
        'a pattern such as "data/*.parquet", or an address such as s3://bucket/x.'
    ),
]
Target = Annotated[str | None, typer.Option(help="The column to learn.")]
Multiline = Annotated[
    bool,
    typer.Option(
        "--multiline",
        help="Quoted cells of the CSV file may hold line breaks. The guarantee then "
        "assumes that the borders of its rows are right.",
    ),
]


def _search(
    epsilon: float | None, rho: float | None, max_tries: int | None
) -> "AboveThreshold | None":
    """Return the search of each step, if one was asked for."""
    from armijo.accounting.above_threshold import AboveThreshold

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
    if rho is None:
        return None
    if max_tries is None:
        raise ValueError(
            "Expected --max-tries with --search-rho, got none; the cap is part of the "
            "Gaussian guarantee."
        )
    _validate.positive(search_rho=rho)
    return AboveThreshold.gaussian(rho, max_tries)


def account(
    *,
    sampling_prob: SamplingProb,
    noise_multiplier: Annotated[
        float, typer.Option(help="Noise over the clipping norm of the gradient sum.")
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
    """Compute epsilon of a DP-SGD run."""
    from armijo.accounting.calibration import epsilon_of, step_mechanism
    from armijo.accounting.paper import BROKEN_PREMISES, printed_epsilon

    _validate.choice(("sound", "paper"), accounting=accounting)
    _validate.sampling_prob(sampling_prob=sampling_prob)
    search = _search(search_epsilon, search_rho, max_tries)
    step = step_mechanism(sampling_prob, noise_multiplier, search)
    premises: list[str] = []
    if accounting == "paper":
        epsilon, accountant = printed_epsilon(step, steps, delta), "paper-as-printed"
        premises = list(BROKEN_PREMISES)
        warn("paper accounting as published is not a valid guarantee.")
    else:
        epsilon, accountant = epsilon_of(
            step, steps, delta, accountant="adaptive" if adaptive else "planned"
        )
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
    emit(result, title="Privacy of the run", as_json=json)


def calibrate(
    *,
    epsilon: Epsilon,
    delta: Delta,
    sampling_prob: SamplingProb,
    steps: Steps,
    search_epsilon: SearchEpsilon = None,
    search_rho: SearchRho = None,
    max_tries: MaxTries = None,
    adaptive: Adaptive = False,
    json: AsJson = False,
) -> None:
    """Compute the smallest noise multiplier within a budget."""
    from armijo.accounting.budget import Budget
    from armijo.accounting.calibration import (
        AccountantName,
        epsilon_of,
        noise_multiplier_for,
        step_mechanism,
    )

    budget = Budget(epsilon=epsilon, delta=delta)
    search = _search(search_epsilon, search_rho, max_tries)
    name: AccountantName = "adaptive" if adaptive else "planned"
    noise = noise_multiplier_for(
        budget, sampling_prob=sampling_prob, steps=steps, search=search, accountant=name
    )
    step = step_mechanism(sampling_prob, noise, search)
    reached, accountant = epsilon_of(step, steps, delta, accountant=name)
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


def schema(
    table: Table,
    *,
    target: Target = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write; default: standard output.")
    ] = None,
    multiline: Multiline = False,
) -> None:
    """Draft a schema file for you to edit.

    What the draft read from the values is NOT private, and it says so: replace it by
    public knowledge before training.
    """
    from armijo.tables import draft_schema

    refuse_existing(out)
    write_text(out, draft_schema(table, target, multiline=multiline))
    warn(
        "what this draft says was READ FROM THE DATA is not private. Replace it by "
        "public knowledge, then set reviewed = true."
    )


def check(
    table: Table,
    *,
    schema: Annotated[
        Path | None, typer.Option(help="The schema file; images have none.")
    ] = None,
    multiline: Multiline = False,
    labels: Labels = None,
    classes: Classes = None,
    size: Size = None,
    gray: Gray = False,
) -> None:
    """Name cells and rows that do not fit the schema: for your eyes, NOT private.

    Training takes such cells for missing and rows without a label for blank, which add
    nothing, and never tells.  Without a schema the path holds images, and every file or
    row that cannot be read is named; the last four options are those of fit-images.
    """
    from armijo.cli.fit import check_table

    if schema is None:
        check_images(table, labels=labels, classes=classes, size=size, gray=gray)
        return
    if gray or any(given is not None for given in (labels, classes, size)):
        raise ValueError(
            "Expected --labels, --classes, --size and --gray for images only, got them "
            "with --schema; leave one of them out."
        )
    rows, faults = check_table(table, schema=schema, multiline=multiline)
    if faults:
        fail("; ".join(map(str, faults)))
        raise typer.Exit(NOT_FITTING)
    emit({"rows": rows, "faults": []}, title=f"Rows of {table}", as_json=False)


def fit(
    table: Streamed,
    *,
    schema: Annotated[Path, typer.Option(help="The reviewed schema file.")],
    out: Annotated[Path, typer.Option(help="Folder for model, report and ledger.")],
    epsilon: Epsilon,
    delta: Delta,
    target: Target = None,
    person: Annotated[
        str | None,
        typer.Option(
            help="The column that says whose row it is: the guarantee is for a person "
            "with all their rows, and n_rows of the schema is the number of persons."
        ),
    ] = None,
    monotone: Annotated[
        list[str] | None,
        typer.Option(help="NAME=+1 or NAME=-1: a shape never falls, or never rises."),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help="additive, or a linear model on declared bounds: logistic, svm."
        ),
    ] = "additive",
    method: Annotated[
        str | None,
        typer.Option(help="Algorithm of a linear model: `armijo methods` lists them."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE: an option of the method; again for more."),
    ] = None,
    max_batches: Annotated[
        int | None,
        typer.Option(help="Most batches of a linear model; default: all paid for."),
    ] = None,
    accounting: Accounting = "sound",
    insecure_seed: Annotated[
        int | None, typer.Option(help="Repeatable run WITHOUT a guarantee.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume an interrupted run, bit for bit.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Move what is in the folder aside.")
    ] = False,
    leaky_diagnostics: Annotated[
        bool,
        typer.Option(
            "--leaky-diagnostics",
            help="Also write exact values of the rows, WITHOUT a guarantee.",
        ),
    ] = False,
    multiline: Multiline = False,
    memory: Annotated[
        str | None,
        typer.Option(
            help="What streamed rows may take, such as 4GB; default: half of the free "
            "memory."
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="dask or spark: their workers read and sum the Parquet files."
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            help="Where the engine is: tcp://host:8786 of Dask, a master or "
            "sc://host of Spark; default: workers on this machine."
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Tell rows, passes, bytes, time and memory from file metadata. "
            "Nothing else is read, nothing is spent.",
        ),
    ] = False,
    json: AsJson = False,
) -> None:
    """Train a differentially private model on a table.

    Classes, or numbers, by what the schema says of the target. Nothing has to be set.
    """
    from armijo.cli import fit as fits

    _validate.at_least(0, insecure_seed=insecure_seed or 0)
    directions = dict(_direction(text) for text in monotone or [])
    of_model: dict[str, dict[str, Any]] = {
        "additive": {"person": person, "monotone": directions or None},
        "linear": {
            "method": method,
            "options": dict(parsed_option(text) for text in option or []) or None,
            "max_batches": max_batches,
            "accounting": None if accounting == "sound" else accounting,
            "leaky_diagnostics": leaky_diagnostics or None,
        },
    }
    parameters = {
        "epsilon": epsilon,
        "delta": delta,
        "random_state": insecure_seed,
        **_given("additive" if model == "additive" else "linear", of_model),
    }
    common: dict[str, Any] = {
        "schema": schema,
        "target": target,
        "kind": model,
        "parameters": parameters,
        "memory": None if memory is None else parsed_bytes(memory),
        "engine": engine,
        "scheduler": scheduler,
    }
    if dry_run:
        plan = fits.dry_run(table, **common)
        emit(plan, title="What the fit would do", as_json=json)
        return
    with FitProgress(quiet=json) as progress, finish_step_on_interrupt() as stopped:
        step = progress.start(epsilon)
        outcome = fits.fit_table(
            table,
            **common,
            out=out,
            callback=lambda record: step(record) or stopped(),
            resume=resume,
            overwrite=overwrite,
            multiline=multiline,
        )
    if not outcome.finished:
        warn(
            f"interrupted after {outcome.estimator.n_iter_} batches; run the same "
            "command with --resume to go on. What was charged stays charged."
        )
        raise typer.Exit(INTERRUPTED)
    assert outcome.model is not None
    privacy = outcome.model.privacy
    if not privacy["guarantee"]:
        warn(privacy["statement"])
    for doubt in getattr(outcome.estimator, "doubts_", ()):
        warn(doubt)
    result = {
        **{name: privacy[name] for name in _CLAIMS},
        "batches": outcome.estimator.n_iter_,
        "model": str(out / "model.json"),
        "report": str(out / "report.html"),
        "ledger": str(out / "ledger.jsonl"),
    }
    emit(result, title="Private model", as_json=json)


def _given(model: str, options: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the options that were given; refuse those of another kind of model."""
    for kind, of_kind in options.items():
        given = {name: value for name, value in of_kind.items() if value is not None}
        if kind == model:
            found = given
        elif given:
            name = next(iter(given)).replace("_", "-").replace("options", "option")
            raise ValueError(
                f"Expected options of the {model} model, got --{name}, which is for "
                f"{'--model additive' if kind == 'additive' else '--model logistic'}. "
                "Nothing was spent."
            )
    return found


def _direction(text: str) -> tuple[str, int]:
    """Split NAME=+1 or NAME=-1."""
    name, equals, value = text.rpartition("=")
    if not name or not equals or value not in ("+1", "1", "-1"):
        raise ValueError(
            f"Expected --monotone NAME=+1 (never falls) or NAME=-1 (never rises), got "
            f"{text!r}. Nothing was spent."
        )
    return name, int(value)


def parsed_bytes(text: str) -> int:
    """Return a number of bytes, written with a unit or without.

    >>> parsed_bytes("4GB"), parsed_bytes("512 MiB"), parsed_bytes("0")
    (4000000000, 536870912, 0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *([KMGT]?)(i?)B?", text.strip(), re.I)
    if found is None:
        raise ValueError(
            f"Expected --memory as a number of bytes such as 4GB or 512MiB, got "
            f"{text!r}. Nothing was spent."
        )
    power = " KMGT".index(found[2].upper() or " ")
    return int(float(found[1]) * (1024 if found[3] else 1000) ** power)


def parsed_option(text: str) -> tuple[str, Any]:
    """Split NAME=VALUE; a value that is no JSON is text.

    >>> parsed_option("steps=50"), parsed_option("search_form=loss")
    (('steps', 50), ('search_form', 'loss'))
    """
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"Expected --option NAME=VALUE, got {text!r}.")
    try:
        return name, json_module.loads(value)
    except (ValueError, RecursionError):
        return name, value


def methods(*, json: AsJson = False) -> None:
    """List the methods and the options that each takes."""
    from armijo.registry import describe_methods

    described = describe_methods()
    if json:
        emit_json({"methods": described})
        return
    lines = {
        entry["name"]: f"{entry['summary']}\n  takes: "
        f"{', '.join(entry['parameters']) or '-'}"
        for entry in described
    }
    emit(lines, title="Methods", as_json=False)


def predict(
    model: Annotated[Path, typer.Argument(help="The model file or its folder.")],
    table: Streamed,
    *,
    out: Annotated[
        Path | None, typer.Option(help="CSV file to write; default: standard output.")
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Add a column for each class.")
    ] = False,
    multiline: Multiline = False,
) -> None:
    """Predict each row of a table with a fitted model."""
    from armijo.cli.fit import predict_table

    refuse_existing(out)
    frame = predict_table(
        model, table, probabilities=probabilities, multiline=multiline
    )
    write_text(out, frame.to_csv(index=False))


def show(
    folder: Annotated[Path, typer.Argument(help="A folder that fit left.")],
    *,
    json: AsJson = False,
) -> None:
    """Show guarantee, ledger and model of a run, and whether it verifies."""
    from armijo.report.verify import summarize_run

    summary: dict[str, Any] = summarize_run(folder)
    emit(summary, title=f"Run in {folder}", as_json=json)
    if summary["faults"]:
        fail("; ".join(summary["faults"]))
        raise typer.Exit(NOT_VERIFIED)


def verify(
    run: Annotated[
        Path,
        typer.Argument(help="A folder that fit left, a ledger file, or a checkpoint."),
    ],
    *,
    ledger: Annotated[
        Path | None, typer.Option(help="Ledger of a checkpoint; default: beside it.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Verify ledger and files of a run, and recompute epsilon from its charges.

    The exit code is 4 if anything is wrong or the run is unfinished.
    """
    from armijo.report.verify import verify_run

    verification = verify_run(run, ledger=ledger)
    result = verification.to_dict()
    faults = [str(fault) for fault in verification.faults]
    if not json:
        result["faults"] = faults
    emit(result, title=f"Verification of {run}", as_json=json)
    if not verification.verified:
        fail("; ".join(faults) or f"{verification.ledger}: {verification.verdict}")
        raise typer.Exit(NOT_VERIFIED)


def demo(
    *,
    out: Annotated[Path, typer.Option(help="Folder for tables, models, reports.")] = (
        Path("demo")
    ),
) -> None:
    """Train on a synthetic census table at three budgets and compare accuracies."""
    from armijo.cli import _census

    with FitProgress() as progress:
        accuracies = _census.run_demo(out, on_fit=progress.start)
    say(
        "The table is SYNTHETIC: no row describes a person, and accuracies on it mean "
        "nothing beyond this demo."
    )
    rows = ((label, f"{accuracy:.4f}") for label, accuracy in accuracies.items())
    emit_rows("Held-out accuracy", {"model": False, "accuracy": True}, rows)
    say(f"Each private model is (epsilon, {_census.DELTA:g})-differentially private.")
    for epsilon in _census.EPSILONS:
        say(f"Report: {out / f'epsilon-{epsilon:g}' / 'report.html'}")


def audit(
    *,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="What to audit, again for more: a private method, step, "
            "search-laplace, search-gaussian, support, network-norms, "
            "network-cancelling, network-contents, person, one-run-sgd, one-run-auto, "
            "one-run-network. Default: all of them."
        ),
    ] = None,
    epsilon: Annotated[float, typer.Option(help="What audited runs claim.")] = 2.0,
    delta: Annotated[
        float, typer.Option(help="Of that claim; a large one needs fewer trials.")
    ] = 0.05,
    trials: Annotated[
        int | None,
        typer.Option(help="Releases on each of two data sets (default 2000)."),
    ] = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="300 trials: about a minute.")
    ] = False,
    confidence: Annotated[
        float, typer.Option(help="With which all bounds hold together.")
    ] = 0.95,
    seed: Annotated[
        int | None,
        typer.Option(help="Repeat an audit; default: the system's randomness."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for audit.json, .png and .svg.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Bound epsilon from below by attacks; 4 is the exit code if a claim is refuted."""
    from armijo.accounting.budget import Budget
    from armijo.audit import suite

    if trials is None:
        trials = suite.FAST_TRIALS if fast else suite.TRIALS
    with game_progress(quiet=json) as progress:
        report = suite.run_audit(
            method or suite.AUDITS,
            budget=Budget(epsilon=epsilon, delta=delta),
            trials=trials,
            confidence=confidence,
            seed=seed,
            progress=progress,
        )
    if out is not None:
        suite.write_audit(out, report)
    if json:
        emit_json(report.to_dict())
    else:
        headings = {"game": False, "delta": True, "claimed ≤": True, "audited ≥": True}
        rows = (
            (
                outcome.name,
                f"{outcome.claim.delta:g}",
                f"{outcome.claim.epsilon:g}",
                f"{outcome.epsilon:.3f}",
                _bar(outcome.epsilon, outcome.claim.epsilon),
                outcome.bound,
                "[red]REFUTED[/red]" if outcome.exceeds else "passed",
            )
            for outcome in report.outcomes
        )
        title = f"Epsilon by attacks, with confidence {report.confidence:g} in all"
        others = dict.fromkeys(("of claim", "bound", "verdict"), False)
        emit_rows(title, headings | others, rows)
        say("An audit can refute a claim, never prove it.")
        if out is not None:
            say(f"Written: {out / 'audit.json'}, audit.png, audit.svg")
    if report.refuted:
        fail(
            f"the claim of {', '.join(report.refuted)} is refuted: a release told more "
            "than its epsilon allows. Do not release anything made by this code."
        )
        raise typer.Exit(NOT_VERIFIED)


def _bar(audited: float, claimed: float) -> str:
    """Draw the audited epsilon as a part of the claimed one.

    >>> _bar(0.5, 2.0), _bar(3.0, 2.0)
    ('██······', '████████!')
    """
    share = min(audited / claimed, 1.0) if claimed > 0 else float(audited > 0)
    filled = round(_BAR * share)
    return "█" * filled + "·" * (_BAR - filled) + "!" * (audited > claimed)
