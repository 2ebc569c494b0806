# SPDX-License-Identifier: Apache-2.0
"""Commands for images: fit a folder or a file of them, predict, look for bad ones."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from armijo.cli._ui import emit, emit_rows, refuse_existing, say, warn, write_text
from armijo.errors import TableError

if TYPE_CHECKING:
    import numpy as np

_WORDS = {"false": False, "true": True, "0": False, "1": True}

Images = Annotated[
    Path,
    typer.Argument(help="A folder with one folder for each class, .npz or IDX."),
]
Labels = Annotated[
    Path | None, typer.Option(help="The IDX file of the labels, if named otherwise.")
]
Classes = Annotated[str | None, typer.Option(help="The classes, separated by commas.")]
Size = Annotated[
    str | None,
    typer.Option(help="HEIGHTxWIDTH of a folder's files; others are blank."),
]
Gray = Annotated[
    bool, typer.Option("--gray", help="Read files of a folder without colors.")
]


def fit_images(
    images: Images,
    *,
    out: Annotated[Path, typer.Option(help="File of the model to write.")],
    epsilon: Annotated[float, typer.Option(help="The epsilon of the guarantee.")],
    delta: Annotated[float, typer.Option(help="The delta of the guarantee.")] = 1e-5,
    labels: Labels = None,
    classes: Classes = None,
    size: Size = None,
    gray: Gray = False,
    mirror: Annotated[
        bool | None,
        typer.Option(help="Whether mirror images have the same class."),
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Folder for features, as private as images.")
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(help="File that remembers every charge; OUT.ledger if not named."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume an interrupted run, bit for bit.")
    ] = False,
    insecure_seed: Annotated[
        int | None, typer.Option(help="Repeatable run WITHOUT a guarantee.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object.")
    ] = False,
) -> None:
    """Train a differentially private classifier of images."""
    from armijo.accounting.ledger import close_ledger
    from armijo.images.estimator import PrivateImageClassifier
    from armijo.images.reading import load_images
    from armijo.report.page import digest

    refuse_existing(out)
    checkpoint = out.with_name(out.name + ".checkpoint")
    kept = ledger or out.with_name(out.name + ".ledger")
    _refuse_one_file_for_two(out=out, checkpoint=checkpoint, ledger=kept)
    _check_unfinished(checkpoint, resume=resume)
    found = load_images(images, labels=labels, size=parsed_size(size), gray=gray)
    declared = None if classes is None else parsed_classes(classes, found.labels.dtype)
    with _progress(quiet=json) as advance:
        model = PrivateImageClassifier(
            epsilon=epsilon,
            delta=delta,
            classes=declared,
            mirror=mirror,
            cache=cache,
            ledger=kept,
            random_state=insecure_seed,
            progress=advance,
        ).fit_resumable(
            found.images,
            found.labels,
            readable=found.readable,
            checkpoint=checkpoint,
            resume=resume,
        )
    model.save(out)
    if ledger is None:  # of this run alone: armijo verify compares the model with it
        close_ledger(kept, {out.name: digest(out)})
    checkpoint.unlink(missing_ok=True)
    privacy = model.privacy_statement_
    if not privacy["guarantee"]:
        warn(privacy["statement"])
    names = ("statement", "guarantee", "epsilon", "delta", "relation", "assumptions")
    result = {name: privacy[name] for name in names}
    emit({**result, "model": str(out)}, title="Private model of images", as_json=json)


def parsed_classes(text: str, kind: "np.dtype[Any]") -> list[Any]:
    """Return the classes of a list in the kind of the labels.

    Not in their type: that of texts is as long as the longest of them, a row's own.

    >>> import numpy as np
    >>> parsed_classes("cat,elephant", np.dtype("<U3"))
    ['cat', 'elephant']
    >>> parsed_classes("0,300", np.dtype("uint8"))
    [0, 300]
    """
    reads: dict[str, Any] = {
        "U": str,
        "b": lambda word: _WORDS[word.lower()],
        "f": lambda word: float(kind.type(word)),  # rounded as the labels are
    }
    read = reads.get(kind.kind, int)
    try:
        return [read(word.strip()) for word in text.split(",")]
    except (ValueError, KeyError):
        raise ValueError(
            f"Expected --classes of the kind of the labels ({kind.type.__name__}), "
            f"got {text!r}. Nothing was spent."
        ) from None


def _refuse_one_file_for_two(**files: Path) -> None:
    """Refuse a name for two files: the later one would be written over the first."""
    from armijo.training.replay import key_path

    files["run key"] = key_path(files["checkpoint"])
    files["lock"] = files["ledger"].with_name(files["ledger"].name + ".lock")
    places: dict[Path, str] = {}
    for name, file in files.items():
        other = places.setdefault(file.resolve(), name)
        if other != name:
            raise ValueError(
                f"Expected another file for the {name} than for the {other}, got "
                f"{file} for both. Nothing was spent."
            )


def _check_unfinished(checkpoint: Path, *, resume: bool) -> None:
    """Refuse to forget an unfinished run, and to resume none."""
    if resume and not checkpoint.is_file():
        raise TableError(
            f"Asked to resume, found no unfinished run at {checkpoint}; start without "
            "--resume. Nothing was spent."
        )
    if checkpoint.exists() and not resume:
        raise TableError(
            f"There is an unfinished run at {checkpoint}; give --resume to go on with "
            "it, or another --out. Nothing was spent."
        )


def predict_images(
    model: Annotated[Path, typer.Argument(help="A model of fit-images.")],
    images: Images,
    *,
    labels: Labels = None,
    size: Size = None,
    gray: Gray = False,
    out: Annotated[Path | None, typer.Option(help="CSV file to write.")] = None,
) -> None:
    """Predict the class of every image, one line for each."""
    from armijo.images.estimator import PrivateImageClassifier
    from armijo.images.reading import load_images

    refuse_existing(out)
    loaded = PrivateImageClassifier.load(model)
    found = load_images(images, labels=labels, size=parsed_size(size), gray=gray)
    with _progress(quiet=False) as advance:
        predicted = loaded.set_params(progress=advance).predict(found.images)
    lines = ["prediction", *(str(label) for label in predicted)]
    write_text(out, "\n".join(lines) + "\n")


def check_images(
    images: Path,
    *,
    labels: Path | None = None,
    classes: str | None = None,
    size: str | None = None,
    gray: bool = False,
) -> None:
    """Name the images that training would take for blanks: NOT private."""
    from armijo.estimators.base import unknown_rows
    from armijo.images.reading import Pictures, load_images

    found = load_images(images, labels=labels, size=parsed_size(size), gray=gray)
    pictures = Pictures(found.images)
    fine = pictures.known() & found.readable
    if classes is not None:
        declared = parsed_classes(classes, found.labels.dtype)
        fine[unknown_rows(found.labels, declared)] = False
    bad = [
        found.names[place] if found.names else f"row {place}"
        for place in range(len(fine))
        if not fine[place]
    ]
    if bad:
        emit_rows(
            f"Blank images of {images}", {"image": False}, ([name] for name in bad)
        )
    say(f"{len(fine)} images, {len(bad)} of them blank.")
    if cut := int(pictures.cut().sum()):
        say(
            f"{cut} of them have values that are cut: whole numbers end at 255, "
            "others at 1. Divide by the largest value that a pixel can have."
        )


def parsed_size(text: str | None) -> tuple[int, int] | None:
    """Split HEIGHTxWIDTH.

    >>> parsed_size("28x32")
    (28, 32)
    """
    if text is None:
        return None
    height, _, width = text.lower().partition("x")
    if not (height.isdigit() and width.isdigit()):
        raise ValueError(f"Expected --size HEIGHTxWIDTH, such as 32x32, got {text!r}.")
    return int(height), int(width)


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Any]:
    """Show on standard error how many images have their features."""
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    console = Console(stderr=True, quiet=quiet)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("features")

        def advance(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield advance
