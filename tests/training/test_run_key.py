# SPDX-License-Identifier: Apache-2.0
"""The run key: secret, made for one run, witness of its results, gone at the end."""

import errno
import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import sparse

from armijo.accounting.ledger import Ledger, read_ledger
from armijo.data.sources import ArrayRows, DatasetRows, TensorRows
from armijo.errors import ArmijoError, LedgerError, RechargeWarning
from armijo.training import replay as identity
from armijo.training import replay as run_key
from armijo.training.checkpoint import Checkpoint
from armijo.training.replay import (
    RunKey,
    destroy_key,
    machine,
    resume_key,
    update_digest,
)
from tests.accounting.ledger_samples import HEADER, charge, full_disk

FACTS = {"the rows": "rows", "the settings": "settings"}
RESULT = "result"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.key"


class TestFile:
    def test_is_its_owners_alone_whatever_the_umask(self, path):
        before = os.umask(0)
        try:
            RunKey.create(path, FACTS)
        finally:
            os.umask(before)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def test_is_on_disk_before_it_is_used(self, path, monkeypatch):
        events = []
        for name in ("open", "write", "fsync"):
            real = getattr(os, name)
            monkeypatch.setattr(
                os,
                name,
                lambda *given, name=name, real=real: (
                    events.append((name, *given[1:2])),
                    real(*given),
                )[1],
            )
        RunKey.create(path, FACTS)
        assert [name for name, *_ in events] == [
            "open",
            "write",
            "fsync",
            "open",
            "fsync",
        ]
        assert events[0][1] & os.O_EXCL

    def test_comes_back_as_it_was(self, path):
        key = RunKey.create(path, FACTS)
        again = RunKey.load(path)
        assert again.name == key.name
        assert again.changed(FACTS) == []
        words = [
            one.randomness.for_charge(2).stream("search").uint64(3).tolist()
            for one in (key, again)
        ]
        assert words[0] == words[1]

    def test_differs_each_time_and_replaces_the_one_before(self, path):
        names = {RunKey.create(path, FACTS).name for _ in range(5)}
        assert len(names) == 5
        assert RunKey.load(path).name in names

    def test_says_nothing_of_its_secret(self, path):
        key = RunKey.create(path, FACTS)
        assert key._secret.hex() not in repr(key) + key.name
        assert key.name not in key._secret.hex()

    def test_absent_or_no_key(self, path):
        assert RunKey.load(path) is None
        for content in (b"", b"{}", b"[]", b"5", b"\xff", b'{"format": "x"}'):
            path.write_bytes(content)
            assert RunKey.load(path) is None

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(share=st.floats(0, 1, exclude_max=True))
    def test_a_torn_key_is_none(self, path, share):
        RunKey.create(path, FACTS)
        whole = path.read_bytes()
        path.write_bytes(whole[: int(share * len(whole))])
        assert RunKey.load(path) is None

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(data=st.data())
    def test_a_flipped_bit_of_the_secret_serves_nothing(self, path, data):
        RunKey.create(path, FACTS)
        text = path.read_text()
        begin = text.index('"secret": "') + len('"secret": "')
        place = begin + data.draw(st.integers(0, 63))
        digit = "0" if text[place] != "0" else "1"
        path.write_text(text[:place] + digit + text[place + 1 :])
        assert RunKey.load(path).changed(FACTS) == list(FACTS)

    def test_a_full_disk_spends_nothing(self, path, monkeypatch):
        monkeypatch.setattr(os, "write", full_disk(20))
        with pytest.raises(ArmijoError, match=r"run\.key: No space.*Nothing was spent"):
            RunKey.create(path, FACTS)

    def test_a_key_that_may_not_be_read_is_an_error(self, path, monkeypatch):
        RunKey.create(path, FACTS)

        def refused(*given: Any) -> Any:
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr("builtins.open", refused)
        with pytest.raises(ArmijoError, match="Cannot read the run key"):
            RunKey.load(path)


class TestFacts:
    def test_are_named_when_they_changed(self, path):
        key = RunKey.create(path, FACTS)
        assert key.changed(FACTS | {"the rows": "others"}) == ["the rows"]
        assert key.changed({"the rows": FACTS["the rows"]}) == ["the settings"]
        assert key.changed(FACTS | {"more": RESULT}) == ["more"]

    def test_tags_of_two_keys_or_two_purposes_have_nothing_in_common(self, path):
        tags = set()
        for _ in range(2):
            key = RunKey.create(path, FACTS)
            tags |= {key.tag("a", RESULT), key.tag("b", RESULT), key.name}
            tags |= set(key._made_for.values())
        assert len(tags) == 10


class TestResults:
    def test_are_on_disk_before_they_are_seen(self, path):
        key = RunKey.create(path, FACTS)
        key.commit(0, RESULT)
        key.commit(1, RESULT)
        again = RunKey.load(path)
        again.commit(0, RESULT)
        before = path.read_bytes()
        again.commit(1, RESULT)
        assert path.read_bytes() == before
        for step in (0, 1):
            with pytest.raises(ArmijoError, match=rf"Step {step}, redone.*another"):
                again.commit(step, "another")
        again.commit(2, "another")

    def test_of_two_steps_have_two_tags(self, path):
        key = RunKey.create(path, FACTS)
        key.commit(0, RESULT)
        key.commit(1, RESULT)
        assert key._results["0"] != key._results["1"]

    def test_that_were_torn_were_not_seen(self, path):
        key = RunKey.create(path, FACTS)
        key.commit(0, RESULT)
        whole = len(path.read_bytes())
        key.commit(1, RESULT)
        data = path.read_bytes()
        for length in range(whole, len(data)):
            path.write_bytes(data[:length])
            again = RunKey.load(path)
            assert set(again._results) == {"0"}
            again.commit(1, "another")
            again.commit(2, RESULT)
            assert set(RunKey.load(path)._results) == {"0", "1", "2"}

    def test_that_cannot_be_written_are_not_used(self, path, monkeypatch):
        key = RunKey.create(path, FACTS)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full_disk(9))
            with pytest.raises(ArmijoError, match=r"No space.*resume the run"):
                key.commit(0, RESULT)
        assert RunKey.load(path)._results == {}

    def test_need_the_key_to_be_there(self, path):
        key = RunKey.create(path, FACTS)
        path.unlink()
        with pytest.raises(ArmijoError, match="Cannot write the run key"):
            key.commit(0, RESULT)
        assert not path.exists()


class TestDestruction:
    def test_leaves_zeros_under_whatever_still_holds_the_file(self, path):
        key = RunKey.create(path, FACTS)
        key.commit(0, RESULT)
        with path.open("rb") as held:
            key.destroy()
            assert set(held.read()) == {0}
        assert not path.exists()
        key.destroy()

    def test_of_no_key_is_nothing(self, path):
        destroy_key(path)
        assert not path.exists()

    def test_removes_what_it_cannot_overwrite_and_says_so(self, path, monkeypatch):
        RunKey.create(path, FACTS)
        monkeypatch.setattr(os, "write", full_disk(0))
        with pytest.raises(ArmijoError, match="Cannot destroy the run key"):
            destroy_key(path)
        assert not path.exists()


class TestTakingUp:
    """A ledger is rewound only for the same key, facts, checkpoint and charges."""

    COST = (0.1, 0.1)

    @pytest.fixture
    def begun(self, tmp_path: Path, path: Path) -> tuple[Path, Checkpoint]:
        """Return a ledger with three charges of a key, and a checkpoint after one."""
        place = tmp_path / "run.ledger"
        with Ledger.open(place, header=HEADER) as ledger:
            key = resume_key(path, ledger, FACTS, None)
            for index in range(3):
                ledger.append(charge(index, self.COST))
        tag = key.tag("checkpoint", (1, RESULT, []))
        return place, Checkpoint(RESULT, [], charges=1, tag=tag)

    def test_goes_on_with_the_same_key(self, begun, path):
        place, past = begun
        name = RunKey.load(path).name
        with Ledger.open(place, header=HEADER) as ledger:
            assert resume_key(path, ledger, FACTS, past).name == name
            assert ledger.next_index == 1
            for index in range(1, 4):
                ledger.append(charge(index, self.COST))
        assert len(read_ledger(place).charges) == 4
        assert {one.key for one in read_ledger(place).charges} == {name}

    @pytest.mark.parametrize(
        ("spoil", "reason"),
        [
            ("key", "missing or damaged"),
            ("rows", "changed since then: the rows"),
            ("checkpoint", "not one of this run key"),
            ("another run", "charges of another run"),
        ],
    )
    def test_else_there_is_a_fresh_key_and_it_is_said(self, begun, path, spoil, reason):
        (place, past), facts = begun, dict(FACTS)
        name = RunKey.load(path).name
        if spoil == "key":
            path.unlink()
        elif spoil == "rows":
            facts["the rows"] = "others"
        elif spoil == "checkpoint":
            past = past._replace(state="another")
        else:
            with Ledger.open(place, header=HEADER) as ledger:
                ledger.append(charge(3, self.COST))
        with Ledger.open(place, header=HEADER) as ledger:
            held = ledger.next_index
            with pytest.warns(
                RechargeWarning, match=rf"\({held - 1}\) are lost.*{reason}"
            ):
                key = resume_key(path, ledger, facts, past)
            assert ledger.next_index == held
            ledger.append(charge(held, self.COST))
        assert key.name != name
        assert read_ledger(place).charges[-1].key == key.name

    def test_a_lost_key_without_lost_steps_is_no_news(self, begun, path):
        place, past = begun
        path.unlink()
        with Ledger.open(place, header=HEADER) as ledger:
            resume_key(path, ledger, FACTS, past._replace(charges=3))
            assert ledger.next_index == 3

    def test_the_redone_step_must_ask_for_what_was_paid(self, begun, path):
        place, past = begun
        with Ledger.open(place, header=HEADER) as ledger:
            resume_key(path, ledger, FACTS, past)
            before = place.read_bytes()
            with pytest.raises(LedgerError, match=r"Charge 1 .* something else"):
                ledger.append(charge(1, (0.05, 0.1)))
            assert place.read_bytes() == before


def test_every_constant_of_the_format_is_written(path):
    RunKey.create(path, FACTS)
    document = run_key.json.loads(path.read_bytes())
    assert document["format"] == "armijo-run-key" and document["version"] == 1
    assert len(bytes.fromhex(document["secret"])) == 32
    assert list(document["made_for"]) == list(FACTS)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


def digest(value: Any) -> str:
    found = hashlib.blake2b()
    update_digest(found, value)
    return found.hexdigest()


@dataclass(frozen=True)
class Pair:
    first: Any
    second: Any


@given(one=PLAIN, other=PLAIN)
def test_values_are_told_apart_as_their_text_is(one, other):
    assert (digest(one) == digest(other)) == (repr(one) == repr(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ab", "c"), ("a", "bc")),
        (((1,), 2), (1, (2,))),
        (((), ()), ((),)),
        (0.0, -0.0),
        (1, 1.0),
        (1, True),
        ("1", 1),
        (np.zeros(4), np.zeros((2, 2))),
        (np.zeros(2, np.float32), np.zeros(1)),
        (np.zeros(1, np.int64), np.zeros(1)),
        (np.array([0.0]), np.array([-0.0])),
        ((np.ones(1), np.ones(2)), (np.ones(2), np.ones(1))),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (Pair(1, 2), Pair(2, 1)),
        (Pair(1, 2), {"first": 1, "second": 2}),
        (sparse.csr_matrix(np.eye(3)), np.eye(3)),
        (sparse.csr_matrix(np.eye(3)), sparse.csr_matrix(2 * np.eye(3))),
        (sparse.csr_matrix((3, 4)), sparse.csr_matrix((3, 5))),
        ({"a": 1}, {"b": 1}),
    ],
)
def test_different_values_differ(one, other):
    assert digest(one) != digest(other)
    assert digest(one) == digest(one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1, 2), [1, 2]),
        (np.float64(0.1), 0.1),
        (np.int64(7), 7),
        (np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.arange(6.0).reshape(2, 3)),
        (
            torch.arange(6.0).reshape(2, 3).T.contiguous(),
            torch.arange(6.0).reshape(2, 3).T,
        ),
    ],
)
def test_what_a_file_does_not_tell_apart_is_the_same(one, other):
    assert digest(one) == digest(other)


@given(
    array=arrays.arrays(
        st.sampled_from([np.float64, np.float32, np.int64, np.bool_, np.uint8]),
        arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9),
    ),
    block=st.integers(1, 100),
)
def test_blocks_do_not_matter(array, block):
    whole, before = digest(array), identity._BLOCK
    identity._BLOCK = block
    try:
        assert digest(array) == whole
    finally:
        identity._BLOCK = before


@given(place=st.integers(0, 79), bit=st.integers(0, 7))
def test_one_bit_of_a_table_is_enough(place, bit):
    table = np.arange(10.0)
    other = table.copy()
    other.view(np.uint8)[place] ^= 1 << bit
    assert digest(other) != digest(table)


def test_a_memmap_is_read_in_blocks_and_is_its_array(tmp_path, monkeypatch):
    monkeypatch.setattr(identity, "_BLOCK", 1 << 10)
    table = np.random.default_rng(0).normal(size=(1000, 5))
    np.save(tmp_path / "table.npy", table)
    mapped = np.load(tmp_path / "table.npy", mmap_mode="r")
    assert isinstance(mapped, np.memmap)
    assert digest(mapped) == digest(table)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int32])
def test_tensors_of_any_type(dtype):
    one = torch.arange(6).to(dtype)
    assert digest(one) == digest(one.clone())
    assert digest(one) != digest(one.flip(0))


def test_labels_have_the_digest_of_any_process():
    class Label:
        pass

    def labels(odd):
        held = np.array(["a", None, 0.5, 3], dtype=object)
        held[1] = odd
        return digest(held)

    assert labels(Label()) == labels(Label()) != labels(None)
    assert labels({"x", "y"}) == labels({"y", "z"}) == labels({"x"})
    assert labels(10**5000) != labels("int")
    again: list = []
    again.append(again)
    assert labels(again) == labels(again)
    assert labels(["b", Label()]) != labels(["c", Label()])
    assert labels(np.datetime64("2020-01-01")) != labels(np.datetime64("2020-01-02"))


def test_an_object_without_a_text_of_its_own_is_like_no_other():
    one, other = object(), object()
    assert digest(one) != digest(other)
    assert digest(np.array(["a", None], dtype=object)) == digest(["a", None])


def test_sources_say_what_tells_their_rows_from_others():
    X, y = np.arange(6.0).reshape(3, 2), np.arange(3)
    known = digest(ArrayRows(X, y).parts())
    assert digest(ArrayRows(X.copy(), y.copy()).parts()) == known
    assert digest(ArrayRows(X, y[::-1]).parts()) != known
    assert digest(ArrayRows(X[::-1], y).parts()) != known
    assert digest(ArrayRows(np.asfortranarray(X), y).parts()) != known
    tensors = torch.from_numpy(X), torch.from_numpy(y)
    known = digest(TensorRows(*tensors).parts())
    assert digest(TensorRows(*(one.clone() for one in tensors)).parts()) == known
    assert digest(TensorRows(tensors[0], tensors[1].flip(0)).parts()) != known
    pairs = [(one, 0) for one in tensors[0]]
    assert DatasetRows(pairs, pairs[0]).parts() is None


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setattr("armijo.__version__", "9"),
        lambda patch: patch.setattr(np, "__version__", "9"),
        lambda patch: patch.setattr(torch, "__version__", "9"),
        lambda patch: patch.setattr(torch, "get_num_threads", lambda: 99),
        lambda patch: patch.setattr("platform.machine", lambda: "abacus"),
        lambda patch: patch.setenv("OMP_NUM_THREADS", "99"),
    ],
)
def test_what_may_change_the_last_bit_changes_the_machine(change, monkeypatch):
    before = machine()
    assert machine() == before
    change(monkeypatch)
    assert machine() != before
