# SPDX-License-Identifier: Apache-2.0
"""Datasets in memory, their splits, and what the catalog says of them."""

import dataclasses
import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from armijo.cli._census import generated_census
from armijo_reproduction.datasets import (
    DATASETS,
    Dataset,
    DatasetError,
    check,
    encodings,
    files,
    folds,
)
from reproduction.tests.datasets.conftest import loaded

# Of the unpacked files, as recorded by the publishers and their users.
CONTENT_MD5 = {
    "adult": ("fb3596510d780aaf76a06dc721d49662", "f0bb16cf1ee3e80ff560e9d132ee647e"),
    "bank": ("e6b0ca77f3f200ec5428e04dd104da53",),
    "ipums-br": ("011bd6117d25ca55022f7664454ae855",),
    "acs-national": (
        "07fd89f65ed5f0cc6c5fefa339c0f45b",
        "f4a13535fc99cc5ac80b9246c5f768a8",
    ),
    "mnist": (
        "6bbc9ace898e44ae57da46a324031adb",
        "a25bea736e30d166cdddb491f175f624",
        "2646ac647ad5339dbf082846283269ea",
        "27ae3e4e09519cfbb04c329615203637",
    ),
    "cifar-10": (
        "5dd7e06a14cb22eb9f671a540d1b7c25",
        "5ea93a67294ea407fff1d09f752e9692",
        "942cd6a4bcdd0dd3c604fbe906cb4421",
        "ae636b3ba5c66a11e91e8cb52e771fcb",
        "53f37980c15c3d472c316c40844f3f0d",
        "803d5f7f4d78ea53de84dbe85f74fb6d",
    ),
    "cifar-10-subset": (
        "43226d03f542cd99c2e2823c8d422caa",
        "3b83ad0bd2145a0010536635902653b9",
    ),
}

X = np.array([[0.0, 0.25], [1.0, 0.5], [0.0, 1.0]])


def _dataset(**changes):
    values = {
        "name": "small",
        "X": X,
        "y": np.array([0, 1, 0]),
        "classes": ("-1", "1"),
        "feature_names": ("flag", "share"),
    }
    return Dataset(**(values | changes))


def test_a_dataset_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        _dataset().name = "other"


def test_the_publishers_split():
    train, test = _dataset(n_train=2).published_split()
    assert np.array_equal(train.X, X[:2]) and train.y.tolist() == [0, 1]
    assert np.array_equal(test.X, X[2:]) and test.y.tolist() == [0]
    assert train.name == test.name == "small"
    assert np.shares_memory(train.X, X) and np.shares_memory(test.X, X)
    with pytest.raises(ValueError, match="published in two parts, got small"):
        train.published_split()


def test_every_entry_is_complete():
    assert {"adult", "bank", "ipums-br", "ipums-us", "acs-national"} <= set(DATASETS)
    assert {"mnist", "fashion-mnist", "cifar-10", "cifar-10-subset"} <= set(DATASETS)
    for name, entry in DATASETS.items():
        assert entry.name == name and entry.citation and entry.terms
        assert entry.n_train is None or 0 < entry.n_train < entry.n_rows
        for file in entry.files:
            assert file.urls or entry.how_to_obtain or entry.cut_from
            for url in file.urls:
                assert url.startswith("https://")
                saved_as = url.format(name=file.name).rpartition("/")[2]
                assert saved_as in file.disk_names


@pytest.mark.parametrize("name", CONTENT_MD5)
def test_contents_have_the_recorded_md5(name):
    loaded(name)
    for file, digest in zip(DATASETS[name].files, CONTENT_MD5[name], strict=True):
        content = files.read(file, files.locate(file))
        assert hashlib.md5(content).hexdigest() == digest
    assert {status.state for status in check(name)} == {"verified"}


@settings(deadline=None)
@given(st.data())
def test_every_row_is_tested_once(data):
    n = data.draw(st.integers(2, 200))
    k = data.draw(st.integers(2, n))
    split = folds(n, k, seed=data.draw(st.integers(0, 2**40)))
    tests = np.concatenate([test for _, test in split])
    assert len(split) == k and sorted(tests) == list(range(n))
    sizes = [len(test) for _, test in split]
    assert max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)
    for train, test in split:
        assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(n))
        assert (np.diff(train) > 0).all() and (np.diff(test) > 0).all()


def test_the_split_of_stored_results_never_changes():
    assert folds(12, 3, seed=5)[0][1].tolist() == [0, 3, 4, 9]


def test_the_seed_decides():
    first, again, other = (folds(1000, seed=seed)[0][1] for seed in (1, 1, 2))
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_the_split_ignores_rows_generated_from_the_same_seed():
    data = generated_census(5_000, seed=0)
    rates = [data.y[test].mean() for _, test in folds(5_000, k=5, seed=0)]
    # One standard error of a rate of 0.24 on 1,000 rows is 0.0135.
    assert max(rates) - min(rates) < 0.08


@pytest.mark.parametrize(
    "arguments", [{"n": 1}, {"n": 5, "k": 1}, {"n": 5, "k": 6}, {"n": 20, "seed": -1}]
)
def test_impossible_splits_are_refused(arguments):
    with pytest.raises(ValueError, match="Expected"):
        folds(**arguments)


# Rows, columns, positives and the accuracy of a plain logistic regression.
KNOWN = {
    "adult": (48_842, 123, 48_842 - 37_155, 0.846),
    "bank": (45_211, 32, 45_211 - 39_922, 0.899),
    "ipums-br": (38_000, 52, 19_240, 0.765),
    "acs-national": (39_629, 57, 19_800, 0.77),
    "acs-national-one-hot": (39_629, 79, 19_800, 0.77),
}
MAJORITY = {"adult": 0.7607, "bank": 0.8830, "ipums-br": 0.5063, "acs-national": 0.5004}
BANK_SHA256 = "3d4b6c380126aa36a5e5f9cb75b03b2f9b469c47cc6a85a4d5c8051f6e0b1f0f"


@pytest.mark.parametrize("name", KNOWN)
def test_shape_labels_and_range_are_the_published_ones(name):
    data = loaded(name)
    rows, columns, positives, _ = KNOWN[name]
    assert data.name == name and data.X.shape == (rows, columns)
    assert len(data.feature_names) == len(set(data.feature_names)) == columns
    assert data.y.sum() == positives
    assert data.X.dtype == np.float64 and data.y.dtype == np.int64
    assert data.X.flags.c_contiguous
    assert (data.X.min(axis=0) == 0).all() and (data.X.max(axis=0) == 1).all()


@pytest.mark.parametrize("name", MAJORITY)
def test_majority_rates(name):
    labels = loaded(name).y
    assert round(np.bincount(labels).max() / len(labels), 4) == MAJORITY[name]


@pytest.mark.parametrize("name", KNOWN)
def test_a_plain_logistic_regression_learns_what_it_should(name):
    data = loaded(name)
    train, test = folds(len(data.y))[0]
    model = LogisticRegression(tol=1e-3, max_iter=300)
    model.fit(data.X[train], data.y[train])
    # Two standard errors of an accuracy on a tenth of the rows are below 0.014.
    assert model.score(data.X[test], data.y[test]) == pytest.approx(
        KNOWN[name][3], abs=0.014
    )


def test_bank_is_the_released_matrix_element_by_element():
    loaded("bank")
    file = DATASETS["bank"].files[0]
    matrix, _ = encodings.bank_matrix(files.read(file, files.locate(file)))
    digest = hashlib.sha256(matrix.astype("<i4").tobytes()).hexdigest()
    assert digest == BANK_SHA256


def test_bank_can_be_read_from_the_original_archive():
    loaded("bank")
    file = DATASETS["bank"].files[0]
    archives = [
        path
        for root in files.search_roots()
        if (path := root / "bank" / "bank.zip").is_file()
    ]
    if not archives:
        pytest.skip("the original archive is not on this machine")
    content = files.read(file, archives[0])
    assert hashlib.sha256(content).hexdigest() == file.sha256


def test_adult_has_the_split_of_its_two_files():
    train, test = loaded("adult").published_split()
    assert (train.y == 0).sum() == 24_720 and len(train.y) == 32_561
    assert (test.y == 0).sum() == 12_435 and len(test.y) == 16_281


def test_the_substitute_is_never_called_ipums():
    for name in ("acs-national", "acs-national-one-hot"):
        entry = DATASETS[name]
        assert "ipums" not in f"{name} {entry.summary} {entry.citation}".lower()
        assert entry.files[0].folders[0] == "acs-national"


def test_libsvm_lines():
    table = encodings.adult((b"-1 3:1 11:1 \n+1 1:0.5\n", b"+1 122:1\n-1\n"))
    expected = np.zeros((4, 123))
    expected[0, [2, 10]], expected[1, 0], expected[2, 121] = 1, 0.5, 1
    assert np.array_equal(table.X, expected)
    assert table.y.tolist() == [0, 1, 1, 0]
    assert table.feature_names[::122] == ("x1", "x123")


def test_a_broken_libsvm_line_is_refused():
    with pytest.raises(DatasetError, match="cannot be read as what it should be"):
        DATASETS["adult"].dataset((b"-1 3:1 11\n",))


BANK_ROWS = b"""\
"age";"job";"marital";"education";"default";"balance";"housing";"loan";"contact";\
"day";"month";"duration";"campaign";"pdays";"previous";"poutcome";"y"
30;"services";"divorced";"unknown";"no";-5;"yes";"no";"unknown";5;"feb";10;1;-1;0;\
"unknown";"no"
40;"unknown";"single";"tertiary";"yes";7;"no";"yes";"cellular";30;"dec";20;2;9;3;\
"success";"yes"
"""


def test_bank_rows_by_hand():
    matrix, names = encodings.bank_matrix(BANK_ROWS)
    rows = [dict(zip((*names, "y"), row, strict=True)) for row in matrix.tolist()]
    first = {name: value for name, value in rows[0].items() if value}
    second = {name: value for name, value in rows[1].items() if value}
    assert first == {
        "age": 30,
        "job=services": 1,
        "balance": -5,
        "housing": 1,
        "date": 65,
        "duration": 10,
        "campaign": 1,
    }
    assert second == {
        "age": 40,
        "marital=single": 1,
        "education=tertiary": 1,
        "default": 1,
        "balance": 7,
        "loan": 1,
        "contact=cellular": 1,
        "date": 390,
        "duration": 20,
        "campaign": 2,
        "contacted_before": 1,
        "pdays": 9,
        "previous": 3,
        "poutcome=success": 1,
        "y": 1,
    }


def test_encoded_census_rows_are_scaled_and_a_constant_becomes_zero():
    table = encodings.encoded_census((b"1 2 7 0\n3 2 9 1\n2 2 7 1\n",))
    assert table.X.tolist() == [[0, 0, 0], [1, 0, 1], [0.5, 0, 0]]
    assert table.y.tolist() == [0, 1, 1] and table.feature_names == ("c0", "c1", "c2")


@pytest.mark.parametrize("text", [b"1 2 2\n", b"1 inf 0\n", b"1 2 0\n1 0\n"])
def test_other_numbers_are_no_encoded_census(text):
    with pytest.raises(DatasetError, match="label 0 or 1"):
        encodings.encoded_census((text,))


ACS_ROWS = (
    b"AGEP,SEX,MSP,HISP,RAC1P,NOC,NPF,HOUSING_TYPE,OWN_RENT,DENSITY,INDP_CAT,EDU,"
    b"PINCP,DVET,DREM,DPHY,DEYE,DEAR\r\n"
    b"15,1,1,0,1,0,2,1,1,9.5,3,1,900.0,N,1,1,1,1\r\n"  # too young
    b"16,1,1,0,1,N,N,1,1,9.5,N,1,100.0,N,1,1,1,1\r\n"
    b"36,2,6,0,2,4,3,1,2,1.5,10,5,200.0,6,2,1,2,1\r\n"
    b"26,2,6,0,2,2,3,1,2,1.5,9,3,300.0,3,2,1,2,1\r\n"
    b"26,2,6,0,2,2,3,1,2,1.5,9,3,0.0,3,2,1,2,1\r\n"  # no income
    b"26,2,6,0,2,2,3,1,2,1.5,9,3,N,3,2,1,2,1\r\n"  # not asked
)


def test_acs_rows_by_hand():
    table = encodings.acs((ACS_ROWS,))
    columns = dict(zip(table.feature_names, table.X.T.tolist(), strict=True))
    assert table.y.tolist() == [0, 0, 1]
    assert columns["AGEP"] == [0, 1, 0.5] and columns["SEX"] == [0, 1, 1]
    assert columns["NOC"] == [0, 1, 0.5] and columns["NPF"] == [0, 1, 1]
    assert columns["DVET"] == [0, 1, 0.5] and columns["DPHY"] == [0, 0, 0]
    assert [name for name in columns if name.startswith("INDP")] == [
        "INDP_CAT=9",
        "INDP_CAT=10",
        "INDP_CAT=N",
    ]
    assert columns["INDP_CAT=N"] == [1, 0, 0] and columns["MSP=6"] == [0, 1, 1]


def test_acs_one_hot_gives_every_level_a_column():
    table = encodings.acs_one_hot((ACS_ROWS,))
    columns = dict(zip(table.feature_names, table.X.T.tolist(), strict=True))
    assert columns["SEX=1"] == [1, 0, 0] and columns["SEX=2"] == [0, 1, 1]
    assert columns["DVET=N"] == [1, 0, 0] and columns["EDU=5"] == [0, 1, 0]
