# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments: the keyword gives the message its name and its value.

A field of a dataclass whose type is one of those below is checked by :func:`fields`.
"""

import math
import numbers
import os
from collections.abc import Callable, Iterator
from functools import cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np


def _number(name: str, value: object) -> float:
    """Return ``value`` as a float, refusing what is not one real finite number."""
    if type(value) is float and math.isfinite(value):
        return value  # by far the most frequent, in every step of a run
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError(
            f"Expected {name} to be a number, got {value!r}; give one real number."
        )
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(
            f"Expected {name} to be finite, got {value!r}; give a finite number."
        )
    return number


def _numbers(
    holds: Callable[[float], bool], expected: str, remedy: str
) -> Callable[..., None]:
    """Return a check of numbers by keyword: refuse those of which this is not true."""

    def check(**values: object) -> None:
        for name, value in values.items():
            if not holds(_number(name, value)):
                wanted = expected.format(name)
                raise ValueError(f"Expected {wanted}, got {value!r}; give {remedy}.")

    return check


finite = _numbers(lambda x: True, "", "")
"""Refuse anything but finite real numbers."""

positive = _numbers(lambda x: x > 0, "{} > 0", "a number above zero")
"""Refuse anything but finite numbers above zero.

>>> positive(max_grad_norm=-1.0)
Traceback (most recent call last):
ValueError: Expected max_grad_norm > 0, got -1.0; give a number above zero.
"""

non_negative = _numbers(lambda x: x >= 0, "{} >= 0", "zero or a number above it")
"""Refuse anything but finite numbers that are zero or more."""

sampling_prob = _numbers(
    lambda x: 0 < x <= 1,
    "0 < {} <= 1",
    "the probability with which one row enters a batch (1 for all rows)",
)
"""Refuse anything but a sampling probability in (0, 1]."""

open_unit = _numbers(
    lambda x: 0 < x < 1, "0 < {} < 1", "a number strictly between zero and one"
)
"""Refuse anything but a number strictly between zero and one."""

above_one = _numbers(lambda x: x > 1, "{} > 1", "a number above one")
"""Refuse anything but finite numbers above one."""


def at_least(minimum: int, **values: object) -> None:
    """Refuse anything but integers of ``minimum`` or more."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise ValueError(
                f"Expected {name} to be an integer, got {value!r}; give a whole number."
            )
        if int(value) < minimum:
            raise ValueError(
                f"Expected {name} >= {minimum}, got {value!r}; give {minimum} or more."
            )


def row_count(n_rows: object) -> int:
    """Return the public number of rows, refusing anything but a positive integer.

    >>> row_count("2000")
    Traceback (most recent call last):
    ValueError: Expected n_rows to be an integer >= 1, got '2000'; give the public ...
    """
    whole = isinstance(n_rows, numbers.Integral) and not isinstance(n_rows, bool)
    if not whole or int(n_rows) < 1:  # type: ignore[call-overload]
        plain = isinstance(n_rows, numbers.Real | str)
        raise ValueError(
            "Expected n_rows to be an integer >= 1, got "
            f"{repr(n_rows) if plain else type(n_rows).__name__}; give the public "
            "number of rows, such as n_rows=2000. Nothing was spent."
        )
    return int(n_rows)  # type: ignore[call-overload]


def choice(options: tuple[str, ...], **values: object) -> None:
    """Refuse anything but one of the named options."""
    for name, value in values.items():
        if value not in options:
            raise ValueError(
                f"Expected {name} to be one of {', '.join(options)}, got {value!r}; "
                "pick one of them."
            )


def same_length(what: str, *lengths: int) -> None:
    """Refuse ``what`` unless all lengths are equal.

    How many rows there are may be private: no number is named.
    """
    if len(set(lengths)) > 1:
        raise ValueError(
            f"Expected {what}, got different numbers of them; pass what belongs "
            "together. Nothing was spent."
        )


def boolean(**values: object) -> None:
    """Refuse anything but True and False, of Python or NumPy."""
    for name, value in values.items():
        if not isinstance(value, bool | np.bool_):
            raise ValueError(f"Expected {name} True or False, got {value!r}.")


def path(**values: object) -> None:
    """Refuse anything but None, a text and what names a path by itself."""
    for name, value in values.items():
        if not (value is None or isinstance(value, str | os.PathLike)):
            raise ValueError(
                f"Expected {name} to be a path or None, got {type(value).__name__}; "
                "give a text or a pathlib.Path. Nothing was spent."
            )


def function(**values: object) -> None:
    """Refuse anything but None and what can be called."""
    for name, value in values.items():
        if not (value is None or callable(value)):
            raise ValueError(
                f"Expected {name} to be a function or None, got "
                f"{type(value).__name__}; give something that can be called. Nothing "
                "was spent."
            )


Positive = Annotated[float, positive]
NonNegative = Annotated[float, non_negative]
Share = Annotated[float, open_unit]
SamplingProb = Annotated[float, sampling_prob]
AboveOne = Annotated[float, above_one]
Count = Annotated[int, partial(at_least, 1)]


def fields(settings: Any) -> None:
    """Check all fields of a dataclass by their types.

    An ``Annotated`` type carries its check, a ``Literal`` takes its values, a ``bool``
    True and False; None passes where the type names it.
    """
    kind: Any = type(settings)
    for name, optional, check in _field_checks(kind):
        value = getattr(settings, name)
        if not (optional and value is None):
            check(**{name: value})


@cache
def _field_checks(kind: type) -> tuple[tuple[str, bool, Callable[..., None]], ...]:
    """Return name, whether None passes, and check, of the fields that have one."""

    def checks() -> Iterator[tuple[str, bool, Callable[..., None]]]:
        for name, hint in get_type_hints(kind, include_extras=True).items():
            union = get_origin(hint) in (Union, UnionType)
            options = get_args(hint) if union else (hint,)
            for check in filter(None, map(_check_of, options)):
                yield name, NoneType in options, check

    return tuple(checks())


def _check_of(hint: Any) -> Callable[..., None] | None:
    if get_origin(hint) is Literal:
        return partial(choice, get_args(hint))
    return (
        boolean if hint is bool else next(iter(getattr(hint, "__metadata__", ())), None)
    )
