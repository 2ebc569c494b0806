# SPDX-License-Identifier: Apache-2.0
"""Tensors and datasets hand out the same examples, and nothing but pairs of tensors."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from torch.utils.data import Subset, TensorDataset

from armijo.data import sources
from armijo.data.query import row_norms
from armijo.data.sources import ArrayRows, DatasetRows, TensorRows
from tests.data.lattice_doubles import on_lattice
from tests.networks.network_doubles import Pairs

X = torch.arange(12.0).reshape(6, 2)
Y = torch.arange(6)
EMPTY = np.zeros(0, dtype=np.int64)


def both(inputs=X, targets=Y, **more):
    pairs = Pairs(inputs, targets)
    held = inputs[0] if isinstance(inputs, tuple) else inputs
    example = pairs.example() if len(held) else (torch.zeros(2), torch.tensor(0))
    return TensorRows(inputs, targets, **more), DatasetRows(pairs, example, **more)


@given(index=st.none() | st.lists(st.integers(0, 5), max_size=8))
def test_a_dataset_of_tensors_gives_what_the_tensors_give(index):
    chosen = None if index is None else np.array(index, dtype=np.int64)
    expected = (X, Y) if index is None else (X[index], Y[index])
    for source in both():
        assert len(source) == 6
        inputs, targets, _ = source.take(chosen)
        assert torch.equal(inputs, expected[0]) and inputs.dtype == X.dtype
        assert torch.equal(targets, expected[1]) and targets.dtype == Y.dtype


def test_several_inputs_and_targets_come_as_tuples():
    more = torch.arange(6) * 10
    rows = np.array([4, 1])
    (a, b), c, _ = TensorRows((X, more), Y).take(rows)
    assert torch.equal(a, X[[4, 1]])
    assert b.tolist() == [40, 10] and c.tolist() == [4, 1]
    pairs = Pairs((X, more), Y)
    (a, b), c, blank = DatasetRows(pairs, pairs.example()).take(rows)
    assert not blank.any()
    assert torch.equal(a, X[[4, 1]])
    assert b.tolist() == [40, 10] and c.tolist() == [4, 1]
    _, (d, e), _ = TensorRows(X, [Y, more]).take(rows)
    assert d.tolist() == [4, 1] and e.tolist() == [40, 10]


def test_torchs_own_datasets_and_lists_of_pairs_are_datasets():
    own = [(x, int(y)) for x, y in zip(X, Y, strict=True)]
    kinds = [TensorDataset(X, Y), Subset(TensorDataset(X, Y), range(6)), own]
    for dataset in kinds:
        inputs, targets, _ = DatasetRows(dataset, own[0]).take(np.array([5, 0]))
        assert torch.equal(inputs, X[[5, 0]])
        assert targets.tolist() == [5, 0] and targets.dtype == torch.int64


def test_only_the_chosen_examples_are_read():
    pairs = Pairs(X, Y)
    source = DatasetRows(pairs, pairs.example())
    assert pairs.events == []
    source.take(np.array([3, 1]))
    assert pairs.events == [3, 1]


def test_an_empty_batch_has_the_shapes_of_a_full_one():
    for source in both((X, X[:, :1]), Y):
        (a, b), targets, _ = source.take(EMPTY)
        assert a.shape == (0, 2) and b.shape == (0, 1) and targets.shape == (0,)
        assert (a.dtype, targets.dtype) == (X.dtype, Y.dtype)


def test_zeros_keep_shapes_and_types_only():
    for source in both((X + 5, Y), X.double()):
        (a, b), targets = source.zeros()
        assert a.shape == (2, 2) and a.dtype == X.dtype
        assert b.shape == (2,) and b.dtype == Y.dtype
        assert targets.dtype == torch.float64
        assert not a.any() and not b.any() and not targets.any()


@pytest.mark.parametrize("size", [0, 1, 6])
def test_zeros_do_not_depend_on_the_number_of_examples(size):
    for source in both(X[:size], Y[:size]):
        inputs, targets = source.zeros()
        assert inputs.shape == (2, 2) and targets.shape == (2,)


DONE: list[str] = []


class Untouched(torch.Tensor):
    """A tensor that writes down what is done with it."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        DONE.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


def test_zeros_read_no_row():
    source = TensorRows(X.as_subclass(Untouched), Y.as_subclass(Untouched))
    DONE.clear()
    source.zeros()
    assert set(DONE) == {"__get__"}  # of shape, type and device
    source.take(np.array([0]))
    assert "__getitem__" in DONE
    pairs = Pairs(X, Y)
    DatasetRows(pairs, pairs.example()).zeros()
    assert pairs.events == []


def test_zeros_are_on_the_device():
    for source in both(device="meta"):
        assert {one.device.type for one in source.zeros()} == {"meta"}


def test_the_length_of_a_dataset_is_read_anew():
    pairs = Pairs(X, Y)
    source = DatasetRows(pairs, pairs.example())
    pairs.length = 4
    assert len(source) == 4


def test_batches_are_moved_to_the_device():
    for source in both(device="meta"):
        inputs, targets, _ = source.take(np.array([0, 1]))
        assert inputs.device.type == targets.device.type == "meta"
        assert inputs.shape == (2, 2)
    assert TensorRows(X, Y).take(None)[0].data_ptr() == X.data_ptr()  # no copy


@pytest.mark.parametrize(
    ("inputs", "targets", "match"),
    [
        (X, Y[:5], "as many targets as inputs"),
        ((X, X[:2]), Y, "as many targets as inputs"),
        (X.numpy(), Y, "got ndarray; convert arrays by torch.from_numpy"),
        (X, Y.tolist(), "got int"),
        (X, 3, "got int"),
        (torch.tensor(1.0), Y, "one entry for each example"),
    ],
)
def test_what_are_no_matching_tensors_is_refused(inputs, targets, match):
    with pytest.raises(ValueError, match=match) as error:
        TensorRows(inputs, targets)
    assert "Nothing was spent" in str(error.value)


NO_PAIRS = [X[0], (X[0],), (X[0], 1, 2), {"input": X[0], "target": 1}, ("word", 1)]


@pytest.mark.parametrize("example", NO_PAIRS)
def test_an_example_that_is_no_pair_of_numbers(example):
    """The public one is refused, one of the data is a blank."""
    with pytest.raises(ValueError, match=r"\(input, target\).*Nothing was spent"):
        DatasetRows([], example)
    data = [(X[0] + 1, 1), example, (X[1] + 1, 0)]
    inputs, targets, blank = DatasetRows(data, data[0]).take(None)
    assert blank.tolist() == [False, True, False]
    assert not inputs[1].any() and not targets[1].any() and inputs[0].all()


def test_arrays_that_do_not_belong_together_are_refused():
    with pytest.raises(ValueError, match="as many labels as rows, got different"):
        ArrayRows(X.numpy(), Y.numpy()[:5])
    with pytest.raises(ValueError, match="3 dimensions"):
        ArrayRows(np.zeros((2, 2, 2)), None)


@pytest.mark.parametrize("layout", ["C", "F", "strided", "shifted", "int", "csr"])
def test_rows_of_every_layout_are_the_rows(layout):
    table = np.arange(24.0).reshape(6, 4)
    shifted = np.frombuffer(b"x" + table.tobytes(), dtype=np.uint8)[1:]
    kinds = {
        "C": table,
        "F": np.asfortranarray(table),
        "strided": np.repeat(table, 2, axis=1)[:, ::2],
        "shifted": shifted.view(np.float64).reshape(6, 4),
        "int": table.astype(np.int8),
        "csr": sparse.csr_matrix(table),
    }
    rows, labels, _ = ArrayRows(kinds[layout], np.arange(6)).take(np.array([4, 0]))
    found = rows.toarray() if layout == "csr" else rows
    assert found.tolist() == table[[4, 0]].tolist() and labels.tolist() == [4, 0]
    none, *_ = ArrayRows(kinds[layout], None).take(EMPTY)
    assert none.shape == (0, 4)


@pytest.mark.parametrize("held", [np.asarray, sparse.csr_array])
def test_norms_are_those_of_the_rows_and_are_computed_once(held, monkeypatch):
    table = on_lattice(np.random.default_rng(3).normal(size=(6, 4)))
    table[2, 1] = np.nan
    source = ArrayRows(held(table), None)
    asked = []

    def counted(X):
        asked.append(X.shape[0])
        return row_norms(X)

    monkeypatch.setattr(sources, "lattice_norms", counted)
    for index in (np.array([0, 3]), np.array([0, 1, 3]), None, np.array([5, 4]), None):
        X, *_ = source.take(index)
        rows = table if index is None else table[index]
        np.testing.assert_array_equal(source.norms(index, X), row_norms(rows))
    # The row whose norm is no number is asked for each time.
    assert asked == [2, 1, 3, 1]
    assert source.norms(EMPTY, held(np.zeros((0, 4)))).size == 0


def test_a_batch_hangs_on_no_graph():
    """Inputs with a gradient would be the root that captured layers hang on."""
    source = TensorRows(X.clone().requires_grad_(), Y)
    for index in (None, np.array([2, 0])):
        assert not source.take(index).X.requires_grad
