# SPDX-License-Identifier: Apache-2.0
"""Valid files, spoiled: bytes, lines and fields cut, doubled, moved and replaced."""

import json
from typing import Any

from hypothesis import strategies as st

MARKS = [*',;\t|"\n\r\\[]{}=#.:-+0123456789eE_xinfatrul ', "\ufeff", "\x00", "é"]
# What readers of numbers, texts and nested values are known to stumble over.
WORDS = [
    *(b"-1", b"0", b"1e308", b"1e400", b"-1e-400", b"9" * 400, b"0x1p3", b"1_0"),
    *(b"NaN", b"-Infinity", b"inf", b"null", b"true", b'""', b"[]", b"{}", b"'"),
    *(b"9223372036854775808", b"-9223372036854775809", b"\\ud800", b"\xed\xa0\x80"),
    *(b"\xff\xfe", b"\x80", b"\xef\xbb\xbf", b"\r\n\r\n", b'","', b"[" * 2000),
]
SEPARATORS = (b",", b"\t", b":", b"\0", b" ")


def _replace(draw: Any, content: bytearray) -> None:
    """Cut a few bytes out and put others there."""
    at = draw(st.integers(0, len(content)))
    mark = st.sampled_from(MARKS).map(str.encode)
    new = draw(st.binary(max_size=6) | mark | st.sampled_from(WORDS))
    content[at : at + draw(st.integers(0, 6))] = new


def _flip(draw: Any, content: bytearray) -> None:
    """Change one bit."""
    if content:
        at = draw(st.integers(0, len(content) - 1))
        content[at] ^= 1 << draw(st.integers(0, 7))


def _cut(draw: Any, content: bytearray) -> None:
    """Drop the end, or all but the end."""
    at = draw(st.integers(0, len(content)))
    if draw(st.booleans()):
        del content[at:]
    else:
        del content[:at]


def _double(draw: Any, content: bytearray) -> None:
    """Put a piece in again, perhaps many times."""
    at = draw(st.integers(0, len(content)))
    piece = content[at : at + draw(st.integers(1, 40))]
    content[at:at] = piece * draw(st.sampled_from([1, 1, 2, 50, 1000]))


def _part(draw: Any, content: bytearray) -> None:
    """Delete, double, exchange or replace a line, or a field of all that there are."""
    separator = draw(st.sampled_from((b"\n", *SEPARATORS)))
    parts = bytes(content).split(separator)
    here, there = (draw(st.integers(0, len(parts) - 1)) for _ in range(2))
    change = draw(st.integers(0, 3))
    if change == 0:
        del parts[here]
    elif change == 1:
        parts.insert(there, parts[here])
    elif change == 2:
        parts[here], parts[there] = parts[there], parts[here]
    else:
        parts[here] = draw(st.sampled_from(WORDS))
    content[:] = separator.join(parts)


CHANGES = (_replace, _replace, _flip, _cut, _double, _part, _part)


@st.composite
def mutated(draw: Any, seeds: tuple[bytes, ...]) -> bytes:
    """Return one of the valid contents with a few changes."""
    content = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 4))):
        draw(st.sampled_from(CHANGES))(draw, content)
    return bytes(content)


def anything() -> st.SearchStrategy[bytes]:
    """Return bytes that follow from no valid content."""
    marks = st.lists(st.sampled_from(MARKS)).map(lambda parts: "".join(parts).encode())
    texts = st.text().map(lambda text: text.encode(errors="replace"))
    words = st.lists(st.sampled_from(WORDS)).map(b"\n".join)
    return st.binary() | texts | marks | words


ODD = st.recursive(
    st.sampled_from([0, -1, 1e308, float("inf"), float("nan"), 10**400, 2**63, 0.5])
    | st.sampled_from([None, True, "", "\ud800", "\0", "x" * 5000, "nan", "1"])
    | st.integers()
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the way to every value inside a document."""
    items: list[tuple[Any, Any]] = []
    if isinstance(document, dict):
        items = list(document.items())
    elif isinstance(document, list):
        items = list(enumerate(document))
    below = [place for key, value in items for place in places(value, (*path, key))]
    return [*((*path, key) for key, _ in items), *below]


@st.composite
def odd_documents(draw: Any, originals: tuple[Any, ...], odd: Any = ODD) -> Any:
    """Return a document of plain values with one or two of them lost or replaced."""
    document = json.loads(json.dumps(draw(st.sampled_from(originals))))
    for _ in range(draw(st.integers(1, 2))):
        found = places(document)
        if not found:
            break
        *way, last = draw(st.sampled_from(found))
        owner = document
        for key in way:
            owner = owner[key]
        change = draw(st.integers(0, 4))
        if change == 0:
            del owner[last]
        elif change == 1 and isinstance(owner, dict):
            owner[draw(st.text(max_size=5))] = owner.pop(last)
        else:
            owner[last] = draw(odd)
    return document


def odd_json(seeds: tuple[bytes, ...]) -> st.SearchStrategy[bytes]:
    """Return JSON like the seeds with any value in any place."""
    originals = tuple(json.loads(seed) for seed in seeds)
    return odd_documents(originals).map(lambda document: json.dumps(document).encode())
