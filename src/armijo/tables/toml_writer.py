# SPDX-License-Identifier: Apache-2.0
"""Write a schema document as TOML with comments; `tomllib` can only read."""

import json
from collections.abc import Iterable, Mapping

Entry = Mapping[str, object]
Notes = Mapping[tuple[str | None, str | None], str]
_WIDTH = 72


def render(
    top: Entry,
    columns: Iterable[Entry],
    *,
    heading: Iterable[str] = (),
    notes: Notes | None = None,
) -> str:
    r"""Return a schema document as TOML text.

    Parameters
    ----------
    top : mapping
        The keys of the document itself.
    columns : iterable of mapping
        One mapping per column, each with a name.
    heading : iterable of str
        Comment lines for the top of the file.
    notes : mapping, optional
        Comments by (column name, key): the name is None for a key of the document, the
        key is None for a line above a column.

    >>> render({"version": 1}, [{"name": "a"}], notes={(None, "version"): "format"})
    'version = 1  # format\n\n[[columns]]\nname = "a"\n'
    """
    notes = notes or {}
    lines = [_comment(line) for line in heading]
    for key, value in top.items():
        lines += _pair(key, value, notes.get((None, key), ""))
    for column in columns:
        name = str(column["name"])
        above = notes.get((name, None), "")
        lines += ["", *([_comment(above)] if above else []), "[[columns]]"]
        for key, value in column.items():
            lines += _pair(key, value, notes.get((name, key), ""))
    return "\n".join(lines) + "\n"


def _pair(key: str, value: object, note: str) -> list[str]:
    """Return the lines of one key, a long list with one entry per line."""
    tail = f"  {_comment(note)}" if note else ""
    if isinstance(value, list) and len(_value(value)) > _WIDTH:
        entries = [f"    {_value(entry)}," for entry in value]
        return [f"{key} = [{tail}", *entries, "]"]
    return [f"{key} = {_value(value)}{tail}"]


def _value(value: object) -> str:
    """Return one TOML value: text, truth value, number or list."""
    if isinstance(value, list):
        return f"[{', '.join(_value(entry) for entry in value)}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return (
            str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
        )
    if isinstance(value, int):
        return str(value)
    # JSON and TOML escape alike, but for the one control character JSON leaves alone.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _comment(text: str) -> str:
    """Return one comment line; TOML allows no control character in it."""
    printable = "".join(mark if mark.isprintable() else "?" for mark in text)
    return f"# {printable}".rstrip()
