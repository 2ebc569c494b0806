# SPDX-License-Identifier: Apache-2.0
"""Fuzz one reader guided by the coverage of the package: a program of its own.

``python -m tests.fuzz.guided NAME FOLDER RUNS`` begins with the seeds of the reader,
mutates what reaches new code, and ends with a failure at the first finding, which it
leaves in the folder.
"""

import os
import sys
import warnings
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["armijo"], enable_loader_override=False):
    from tests.fuzz.targets import TARGETS

from tests.fuzz.limits import bounded_memory
from tests.fuzz.mutations import WORDS
from tests.fuzz.target import PLANTED


def main(name: str, folder: Path, runs: int) -> None:
    """Run so many inputs."""
    target = {**TARGETS, "planted": PLANTED}[name]
    corpus, place = folder / "corpus", folder / "place"
    for new in (corpus, place):
        new.mkdir()
    for number, seed in enumerate(target.seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    words = "".join(f'"{_escaped(word)}"\n' for word in WORDS if len(word) <= 40)
    (folder / "words").write_text(words)
    os.fsync = lambda fd: None  # thousands of files are written
    warnings.simplefilter("error")
    # The target itself ends what takes too long; memory is bounded around all.
    options = ["-timeout=600", "-rss_limit_mb=0", "-max_len=20000", "-len_control=0"]
    options += [f"-dict={folder / 'words'}", f"-artifact_prefix={folder}{os.sep}"]
    atheris.Setup(
        [sys.argv[0], f"-runs={runs}", "-print_final_stats=1", *options, str(corpus)],
        lambda content: target.survive(place, content) and None,
    )
    with bounded_memory():
        atheris.Fuzz()


def _escaped(word: bytes) -> str:
    """Write a word as the list of words wants it."""
    return "".join(f"\\x{byte:02x}" for byte in word)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
