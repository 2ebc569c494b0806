# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: exact, whole, of one run only, and enough to go on bit for bit."""

import dataclasses
import math
import os
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from armijo.accounting.budget import Budget, Neighboring
from armijo.accounting.ledger import read_ledger
from armijo.errors import ArmijoError
from armijo.methods import BLSGD
from armijo.methods.base import Direction, StepRecord
from armijo.methods.line_search import LINE_SEARCHES, SearchState
from armijo.objectives import LinearObjective
from armijo.registry import make_method
from armijo.training.checkpoint import Checkpoint, read_released, save_checkpoint
from tests.accounting.ledger_samples import full_disk
from tests.training.files import load_checkpoint, put_together, survived, taken_apart
from tests.training.runs import RunSettings, train

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
POSITIVE = st.floats(0, exclude_min=True, allow_infinity=False)


def vectors(size):
    return st.lists(NUMBERS, min_size=size, max_size=size).map(
        lambda values: torch.tensor(values, dtype=torch.float64)
    )


def states(size):
    """Return states whose vectors have as many numbers."""
    direction = st.builds(Direction, vector=vectors(size), noise_sq_norm=NUMBERS)
    return st.builds(
        SearchState,
        w=vectors(size),
        gradient_rho=POSITIVE,
        search_epsilon=POSITIVE,
        max_grad_norm=POSITIVE,
        loss_clip=POSITIVE,
        initial_step=POSITIVE,
        updates=st.integers(0, 10**9),
        recent_steps=st.lists(NUMBERS, max_size=10).map(tuple),
        pending=st.none() | direction,
        previous=st.none() | vectors(size),
        mean_angle=NUMBERS,
        clip_lowered=st.booleans(),
    )


LAST = st.integers(1, 6).flatmap(states)
MEANS = LAST.map(lambda state: dataclasses.replace(state, point=-0.5 * state.w))
STATES = LAST | MEANS
RECORDS = st.builds(
    StepRecord,
    batch=st.integers(0, 10**6),
    update=st.integers(0, 10**6),
    tries=st.integers(1, 50),
    gradients=st.none() | st.integers(0, 50),
    **dict.fromkeys(
        [
            field.name
            for field in dataclasses.fields(StepRecord)
            if field.type in (float, float | None)
        ],
        NUMBERS,
    ),
)


def bits(value):
    """Return a value as something that tells -0.0 from 0.0 and every bit."""
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.numpy().tobytes()
    if isinstance(value, Direction):
        return bits(value.vector), bits(value.noise_sq_norm)
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, tuple | list):
        return type(value), tuple(bits(item) for item in value)
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return type(value), tuple(bits(getattr(value, name)) for name in names)
    return type(value), value


@given(state=STATES)
def test_a_state_survives_bit_for_bit(state):
    assert bits(survived(state)) == bits(state)


@given(state=STATES, records=st.lists(RECORDS, max_size=4))
def test_a_file_survives_bit_for_bit(tmp_path_factory, state, records):
    path = tmp_path_factory.mktemp("checkpoint") / "run.json"
    run = {"epsilon": 0.1, "columns": ["a", "b"]}
    whole = Checkpoint(state, records, 7, "ab", "cd", [(1, 0.1)])
    save_checkpoint(path, run=run, checkpoint=whole)
    found = load_checkpoint(path, run=run, like=state)
    assert bits([found.state, found.records]) == bits([state, records])
    assert found[2:] == whole[2:]
    released = read_released(path)
    assert bits(released.w) == bits(state.w)
    assert released[1:] == (7, "cd")


def some_state():
    budgets = {"gradient_rho": 0.1, "search_epsilon": 0.3}
    method = BLSGD(**budgets, max_grad_norm=3.0, initial_step=2.0)
    state = method.init(torch.tensor([0.1, -2.5], dtype=torch.float64))
    pending = Direction(vector=torch.ones(2, dtype=torch.float64), noise_sq_norm=0.5)
    return dataclasses.replace(state, pending=pending, recent_steps=(0.5,))


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "run.json"
    start = Checkpoint(some_state(), [])
    save_checkpoint(path, run={"epsilon": 1.0}, checkpoint=start)
    return path


def change(path, alter):
    """Change the document of a checkpoint."""
    document, vectors = taken_apart(path.read_bytes())
    alter(document)
    path.write_bytes(put_together(document, vectors))


class TestRefusals:
    def refused(self, path, run=None):
        before = path.read_bytes() if path.exists() else None
        with pytest.raises(ArmijoError, match="nothing was spent") as caught:
            run = {"epsilon": 1.0} if run is None else run
            load_checkpoint(path, run=run, like=some_state())
        assert (path.read_bytes() if path.exists() else None) == before
        return str(caught.value)

    def test_a_missing_file(self, tmp_path):
        self.refused(tmp_path / "absent.json")

    @given(share=st.floats(0, 1, exclude_max=True))
    def test_a_truncated_file(self, tmp_path_factory, share):
        path = tmp_path_factory.mktemp("torn") / "run.json"
        save_checkpoint(path, run={}, checkpoint=Checkpoint(some_state(), []))
        whole = path.read_bytes()
        path.write_bytes(whole[: int(share * len(whole))])
        self.refused(path, run={})

    @pytest.mark.parametrize(
        "content", [b"", b"\xff\xfe\x00", b"[]", b"null", b"7", b'"text"', b"{}"]
    )
    def test_something_else(self, saved, content):
        saved.write_bytes(content)
        self.refused(saved)

    @pytest.mark.parametrize(
        ("content", "kind"),
        [
            (b'{"format": "armijo-checkpoint", "version": 3}', "linear model"),
            (b"PK\x03\x04 armijo-training", "network"),
        ],
    )
    def test_a_file_of_version_0_1_by_its_name(self, saved, content, kind):
        saved.write_bytes(content)
        message = self.refused(saved)
        assert f"a {kind} by armijo 0.1" in message
        assert "nothing overwritten" in message and "version that wrote it" in message

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("format", "armijo-ledger"),
            ("version", 1),
            ("version", 2),
            ("version", 3),
            ("version", "4"),
            ("version", 99),
            ("evaluations", [1]),
            ("charges", "many"),
            ("charges", None),
            ("state", []),
            ("state", None),
            ("records", None),
            ("records", [5]),
            ("records", [{"batch": 0}]),
            ("run", 5),
            ("run", None),
            ("run", ["epsilon"]),
        ],
    )
    def test_a_changed_entry(self, saved, key, value):
        change(saved, lambda document: document.update({key: value}))
        self.refused(saved)

    @pytest.mark.parametrize(
        "key", ["format", "version", "run", "state", "records", "charges", "tag"]
    )
    def test_a_missing_entry(self, saved, key):
        change(saved, lambda document: document.pop(key))
        self.refused(saved)

    @pytest.mark.parametrize(
        "name", [field.name for field in dataclasses.fields(SearchState)][:6]
    )
    def test_a_missing_part_of_the_state(self, saved, name):
        change(saved, lambda document: document["state"].pop(name))
        self.refused(saved)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("momentum", 0.9),
            ("w", ["a", "b"]),
            ("recent_steps", 3),
            ("point", {"tensor": [1.0]}),
            ("point", {"vector": "absent"}),
            ("w", {"direction": {"vector": "w"}, "noise_sq_norm": 1.0}),
            ("pending", {"direction": 3.0, "noise_sq_norm": 1.0}),
        ],
    )
    def test_a_strange_part_of_the_state(self, saved, name, value):
        change(saved, lambda document: document["state"].update({name: value}))
        self.refused(saved)

    @pytest.mark.parametrize("run", [{"epsilon": 2.0}, {}, {"epsilon": 1.0, "rows": 5}])
    def test_another_run(self, saved, run):
        message = self.refused(saved, run)
        assert "another run" in message
        assert ("rows" if "rows" in run else "epsilon") in message


class TestWriting:
    def test_a_crash_leaves_the_old_one(self, saved, monkeypatch):
        before = saved.read_bytes()
        monkeypatch.setattr(os, "write", full_disk(22))
        with pytest.raises(ArmijoError, match=r"No space left on device.*resume"):
            save_checkpoint(saved, run={}, checkpoint=Checkpoint(some_state(), []))
        assert saved.read_bytes() == before

    def test_is_replaced_after_it_is_synced(self, saved, monkeypatch):
        events = []

        def spied(name):
            real = getattr(os, name)
            monkeypatch.setattr(
                os, name, lambda *args: (events.append(name), real(*args))
            )

        spied("fsync")
        spied("replace")
        save_checkpoint(saved, run={}, checkpoint=Checkpoint(some_state(), []))
        assert events == ["fsync", "replace", "fsync"]  # the file, then its folder
        found = load_checkpoint(saved, run={}, like=some_state())
        assert found.state.w.tolist() == [0.1, -2.5]

    @pytest.mark.parametrize(
        "odd", [{"mean_angle": math.nan}, {"w": torch.tensor([0.0, math.inf])}]
    )
    def test_numbers_that_are_not_finite_are_refused(self, tmp_path, odd):
        path = tmp_path / "run.json"
        state = dataclasses.replace(some_state(), **odd)
        with pytest.raises(ValueError, match="JSON"):
            save_checkpoint(path, run={}, checkpoint=Checkpoint(state, []))
        assert not path.exists()

    def test_a_hook_may_return_what_is_no_number(self, saved):
        seen = Checkpoint(some_state(), [], evaluations=[(1, math.nan), (2, 0.1)])
        save_checkpoint(saved, run={}, checkpoint=seen)
        found = load_checkpoint(saved, run={}, like=some_state()).evaluations
        assert repr(found) == repr(seen.evaluations)


ROWS = 200


def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, 3))
    return X, np.where(X[:, 0] + 0.3 * rng.normal(size=ROWS) > 0, 1.0, -1.0)


def settings_of(folder, name="blsgd", **changes):
    folder.mkdir(exist_ok=True)
    settings = RunSettings(
        budget=Budget(epsilon=4.0, delta=1e-5),
        objective=LinearObjective(loss="logistic", n_features=3),
        method=make_method(name, {"gradient_rho": 0.02, "search_epsilon": 0.2}),
        n_rows=ROWS,
        relation=Neighboring.ADD_REMOVE,
        seed=9,
        max_batches=12,
        ledger=folder / "run.ledger",
        checkpoint=folder / "run.json",
        fingerprint={"epsilon": 4.0},
    )
    return dataclasses.replace(settings, **changes)


def stopping(after, *, by_interrupt=False):
    seen = []

    def callback(record):
        seen.append(record)
        if by_interrupt and len(seen) == after:
            raise KeyboardInterrupt
        return len(seen) == after

    return callback


class TestResume:
    @pytest.mark.parametrize("name", LINE_SEARCHES)
    @pytest.mark.parametrize("stops", [(1,), (3, 4)])
    def test_equals_the_uninterrupted_run(self, tmp_path, name, stops):
        whole = train(*data(), settings_of(tmp_path / "whole", name))
        settings = settings_of(tmp_path / "parts", name)
        for k, after in enumerate(stops):
            part = train(*data(), settings, callback=stopping(after), resume=k > 0)
            assert len(part.records) == sum(stops[: k + 1])
        result = train(*data(), settings, resume=True)
        self.assert_same(tmp_path, result, whole)

    @pytest.mark.parametrize("name", LINE_SEARCHES)
    def test_equals_it_after_an_interrupt_between_steps(self, tmp_path, name):
        whole = train(*data(), settings_of(tmp_path / "whole", name))
        settings = settings_of(tmp_path / "parts", name)
        with pytest.raises(KeyboardInterrupt):
            train(*data(), settings, callback=stopping(4, by_interrupt=True))
        result = train(*data(), settings, resume=True)
        self.assert_same(tmp_path, result, whole)

    @pytest.mark.parametrize("name", LINE_SEARCHES)
    def test_a_mean_of_iterates_is_carried_on(self, tmp_path, name):
        def settings(folder, average_iterates):
            options = {"gradient_rho": 0.02, "search_epsilon": 0.2}
            method = make_method(
                name, {**options, "average_iterates": average_iterates}
            )
            return settings_of(tmp_path / folder, method=method)

        whole = train(*data(), settings("whole", True))
        parts = settings("parts", True)
        for k, after in enumerate((3, 4)):
            train(*data(), parts, callback=stopping(after), resume=k > 0)
        self.assert_same(tmp_path, train(*data(), parts, resume=True), whole)
        last = train(*data(), settings("last", False))
        assert last.records == whole.records  # the mean is nowhere used in a step
        assert last.w.tobytes() != whole.w.tobytes()

    def assert_same(self, folder, result, whole):
        assert result.w.tobytes() == whole.w.tobytes()
        assert result.records == whole.records
        assert len(whole.records) == 12
        assert np.any(whole.w != 0)
        charges = read_ledger(folder / "parts" / "run.ledger").charges
        assert charges == read_ledger(folder / "whole" / "run.ledger").charges
        assert [charge.index for charge in charges] == list(range(12))

    def test_an_interrupt_within_a_step_is_paid_once_and_redone(
        self, tmp_path, monkeypatch
    ):
        """The charge stands; the same batch is drawn again and not paid again."""
        whole = train(*data(), settings_of(tmp_path / "whole"))
        settings = settings_of(tmp_path / "parts")
        real, calls = BLSGD.step, []

        def interrupted(self, *args):
            calls.append(args)
            result = real(self, *args)
            if len(calls) == 5:
                raise KeyboardInterrupt
            return result

        monkeypatch.setattr(BLSGD, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(*data(), settings)
        assert len(read_ledger(settings.ledger).charges) == 5
        result = train(*data(), settings, resume=True)
        self.assert_same(tmp_path, result, whole)

    def test_goes_on_until_the_budget_ends(self, tmp_path):
        """What was spent before the interrupt is not spent again."""
        changes = {"max_batches": None, "budget": Budget(epsilon=3.0, delta=1e-5)}
        whole = train(*data(), settings_of(tmp_path / "whole", "blgd", **changes))
        settings = settings_of(tmp_path / "parts", "blgd", **changes)
        train(*data(), settings, callback=stopping(2))
        result = train(*data(), settings, resume=True)
        assert result.records == whole.records
        assert 2 < len(whole.records) == result.accountant.n_charges
        assert np.all(result.accountant.spent <= result.accountant.limits)

    def test_without_a_seed(self, tmp_path):
        settings = settings_of(tmp_path / "run", seed=None)
        train(*data(), settings, callback=stopping(3))
        result = train(*data(), settings, resume=True)
        assert len(result.records) == 12
        assert len(read_ledger(settings.ledger).charges) == 12
        assert result.accountant.guarantee.holds

    def test_a_finished_run_stays_as_it_is(self, tmp_path):
        settings = settings_of(tmp_path / "run")
        whole = train(*data(), settings)
        again = train(*data(), settings, resume=True)
        assert again.w.tobytes() == whole.w.tobytes()
        assert len(read_ledger(settings.ledger).charges) == 12

    def test_needs_a_place(self, tmp_path):
        settings = settings_of(tmp_path / "run", checkpoint=None)
        with pytest.raises(ValueError, match="checkpoint"):
            train(*data(), settings, resume=True)


class TestRefusedResume:
    """What is refused stays as it was found: nothing spent, nothing lost."""

    @pytest.mark.parametrize("spoil", ["run", "torn", "seed"])
    def test_leaves_the_checkpoint(self, tmp_path, spoil):
        settings = settings_of(tmp_path / "run")
        train(*data(), settings, callback=stopping(3))
        changes = {"ledger": tmp_path / "other.ledger"}
        path = settings.checkpoint
        if spoil == "run":
            changes["fingerprint"] = {"epsilon": 3.0}
        elif spoil == "seed":
            changes["seed"] = 10
        else:
            path.write_bytes(path.read_bytes()[:-20])
        before = path.read_bytes()
        asked = dataclasses.replace(settings, **changes)
        with pytest.raises((ArmijoError, ValueError)):
            train(*data(), asked, resume=True)
        assert path.read_bytes() == before
        assert not (tmp_path / "other.ledger").exists()

    def test_writes_none_where_there_was_none(self, tmp_path):
        settings = settings_of(tmp_path / "run")
        with pytest.raises(ArmijoError, match="not a checkpoint"):
            train(*data(), settings, resume=True)
        assert not settings.checkpoint.exists()

    def test_frees_the_ledger(self, tmp_path):
        settings = settings_of(tmp_path / "run")
        with pytest.raises(ArmijoError):
            train(*data(), settings, resume=True)
        assert len(train(*data(), settings).records) == 12
