# SPDX-License-Identifier: Apache-2.0
"""Each kind of column codes its cells by what is declared, one cell at a time."""

import dataclasses

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from armijo.data.coded import MISSING_LEVEL, CategoryColumn, NumericColumn
from armijo.errors import TableError
from armijo.tables import (
    Boolean,
    Categorical,
    Date,
    Ignore,
    Label,
    Numeric,
    Person,
    Target,
)
from armijo.tables.columns import MAX_LEVELS


def cells(*values):
    return pd.Series(values, dtype=object, name="c")


def coded(column, *values, faults=None):
    return [array.tolist() for array in column.code(cells(*values), faults)]


def test_a_number_stays_in_its_unit_and_what_is_none_is_missing():
    (found,) = Numeric("c", 0, 10).code(cells(3, "4.5", "x", None, "inf", -7, True))
    np.testing.assert_array_equal(found, [3, 4.5, np.nan, np.nan, np.inf, -7, np.nan])
    for column in (Numeric("c"), Numeric("c", low=1), Numeric("c", high=2.0)):
        (part,) = column.parts
        assert part.info == NumericColumn(name="c", low=column.low, high=column.high)


@pytest.mark.parametrize("dtype", ["bool", "boolean", "complex", "M8[s]", "m8[s]"])
def test_a_type_without_numbers_is_public_and_refused(dtype):
    series = pd.Series([0, 1], name="c").astype(dtype)
    with pytest.raises(TableError, match="got the type"):
        Numeric("c").code(series)


def test_categories_of_a_list_have_one_level_more_for_all_others():
    column = Categorical("c", ("a", 1))
    assert coded(column, "1.0", " a", "b", None, "", 1) == [[1, 0, 2, -1, -1, 1]]
    (part,) = column.parts
    assert part.info == CategoryColumn(name="c", n_levels=3)
    assert part.level_names == ("a", "1", "other")
    assert part.feature_names == ("c=a", "c=1")


def test_texts_without_a_list_are_hashed_with_the_name_of_the_column_as_salt():
    words = [f"w{i}" for i in range(500)]
    here, there = (coded(Categorical(n), *words)[0] for n in ("c", "d"))
    assert set(here) == set(range(64)) and here != there
    assert coded(Categorical("c"), *words[::-1])[0] == here[::-1]
    few = Categorical("c", buckets=5)
    assert set(coded(few, *words)[0]) == set(range(5))
    assert few.parts[0].info == CategoryColumn(name="c", n_levels=5)
    assert coded(Categorical("c"), None, "", "\ud800")[0][:2] == [MISSING_LEVEL] * 2


@pytest.mark.parametrize(("more", "hashed"), [(0, False), (1, True)])
def test_a_long_list_is_hashed(more, hashed):
    levels = tuple(str(i) for i in range(MAX_LEVELS + more))
    column = Categorical("c", levels)
    (part,) = column.parts
    assert column.hashed is hashed
    assert part.info.n_levels == (64 if hashed else MAX_LEVELS + 1)
    assert coded(column, "7") == coded(Categorical("c"), "7") if hashed else [[7]]


def test_truth_values_in_all_their_forms():
    found = coded(Boolean("c"), True, "false", "TRUE", 0, 1.0, "yes", None, 2)
    assert found == [[1, 0, 1, 0, 1, -1, -1, -1]]


DATES = [
    pd.Series(["2024-02-29T13:30:00", None, "soon"]),
    pd.Series(["2024-02-29 13:30", "", "2024-02-30"], dtype=object),
    pd.Series(pd.to_datetime(["2024-02-29T13:30", None, None])),
    pd.Series(pd.to_datetime(["2024-02-29T13:30", None, None])).dt.tz_localize("Japan"),
    pd.Series(
        pa.array([1709213400, None, None], pa.timestamp("s")),
        dtype=pd.ArrowDtype(pa.timestamp("s")),
    ),
]


@pytest.mark.parametrize("series", DATES)
def test_a_date_becomes_days_month_weekday_and_hour(series):
    days, months, weekdays, hours = Date("c", time=True).code(series)
    # 29 February 2024 was a Thursday, 24 years and 6 leap days after the origin.
    np.testing.assert_allclose(
        days, [24 * 365 + 6 + 31 + 28 + 13.5 / 24, np.nan, np.nan]
    )
    assert months.tolist() == [1, -1, -1]
    assert weekdays.tolist() == [3, -1, -1]
    assert hours.tolist() == [13, -1, -1]
    parts = Date("c", time=True).parts
    assert [p.info.name for p in parts] == ["c.days", "c.month", "c.weekday", "c.hour"]
    assert parts[2].levels[3] == "Thu" and parts[1].levels[1] == "2"
    whole = Date("c").code(series)
    assert len(whole) == 3 and whole[0][0] == 24 * 365 + 6 + 31 + 28


def test_days_of_arrow_have_no_time():
    kind = pd.ArrowDtype(pa.date32())
    series = pd.Series(pa.array([10957, None], pa.date32()), dtype=kind)
    days, months, weekdays = Date("c").code(series)
    np.testing.assert_array_equal(days, [0.0, np.nan])  # 2000-01-01, a Saturday
    assert (months.tolist(), weekdays.tolist()) == ([0, -1], [5, -1])


@pytest.mark.parametrize("unit", ["s", "ns"])
@pytest.mark.parametrize("zone", [None, "Europe/Paris", "Japan"])
def test_a_date_far_away_raises_nothing_for_the_others(unit, zone):
    """An error that one cell can cause would tell of it."""
    kind = f"datetime64[{unit}]" if zone is None else f"datetime64[{unit}, {zone}]"
    series = pd.Series([2**62, -(2**62), 0], dtype=kind)
    arrays = Date("c", time=True).code(series)
    assert all(
        array[2] == Date("c", time=True).code(series[2:])[i][0]
        for i, array in enumerate(arrays)
    )


def test_bounds_of_a_date_are_days():
    info = Date("c", "2000-01-02", "2001-01-01").parts[0].info
    assert (info.low, info.high) == (1.0, 366.0)


def test_numbers_are_no_dates():
    with pytest.raises(TableError, match="declare it numeric"):
        Date("c").code(pd.Series([20200101], name="c"))


def test_labels_targets_and_persons():
    label = Label("c", ("no", "yes"))
    assert coded(label, "yes", "no", "maybe", None) == [[1, 0, -1, -1]]
    (found,) = Target("c").code(cells(2, "3", "x", np.inf, None))
    np.testing.assert_array_equal(found, [2, 3, np.nan, np.nan, np.nan])
    assert coded(Person("c"), 1, "1.0", "bob", None, "") == [
        ["1", "1", "bob", None, None]
    ]
    assert Ignore("c").code(cells(1)) == ()


COLUMNS = [
    Numeric("c", 0, 10),
    Categorical("c", ("a", "b")),
    Categorical("c"),
    Boolean("c"),
    Date("c", time=True),
    Label("c", ("a", "b")),
    Target("c"),
    Person("c"),
]
anything = st.one_of(
    st.none(),
    st.text(max_size=4),
    st.floats(),
    st.integers(),
    st.booleans(),
    st.dates().map(str),
    st.sampled_from(["a", "b", "nan", "-inf", "2020-01-01T25:00", b"x", (1,)]),
)


@given(st.lists(anything, min_size=1, max_size=6))
def test_every_cell_is_coded_on_its_own_and_none_raises(values):
    for column in COLUMNS:
        whole = column.code(cells(*values))
        for place, value in enumerate(values):
            for array, alone in zip(whole, column.code(cells(value)), strict=True):
                np.testing.assert_array_equal(array[place : place + 1], alone)
        for array, part in zip(whole, column.parts, strict=False):
            if isinstance(part.info, CategoryColumn):
                assert ((array >= -1) & (array < part.info.n_levels)).all()


@pytest.mark.parametrize(
    ("column", "values", "told"),
    [
        (
            COLUMNS[0],
            (1, "x", "y"),
            "2 cells are no numbers and count as missing; data",
        ),
        (
            COLUMNS[0],
            (1, 11, -1),
            "2 cells lie outside the declared bounds; data rows 2",
        ),
        (COLUMNS[1], ("a", "bb"), "did you mean 'b'?) and count as \"other\""),
        (COLUMNS[3], (True, "perhaps"), "1 cells are no booleans"),
        (COLUMNS[4], ("soon", None), "1 cells are no dates"),
        (COLUMNS[5], ("A", "b"), "did you mean 'a'?) and are no class"),
        (COLUMNS[5], ("a", None), "1 cells have no label: their rows are blank"),
        (COLUMNS[6], (1, np.nan), "1 cells have no finite target"),
        (COLUMNS[7], ("p", None), "1 cells name no person"),
    ],
)
def test_the_owner_is_told_which_cells_do_not_fit(column, values, told):
    faults = []
    column.code(cells(*values), faults)
    assert told in str(faults[0]) and str(faults[0]).startswith("column 'c': ")


@pytest.mark.parametrize("column", COLUMNS)
def test_columns_are_public_settings_that_cannot_be_changed(column):
    with pytest.raises(dataclasses.FrozenInstanceError):
        column.name = "d"
