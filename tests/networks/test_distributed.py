# SPDX-License-Identifier: Apache-2.0
"""Several processes train as one: same steps, one noise, one ledger, one end."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from armijo.accounting.ledger import read_ledger
from armijo.errors import ArmijoError
from tests.networks import distributed_worker as worker

WITHOUT_DEATH = [
    "silent",
    "silent_unequal",
    "silent_empty",
    "seeded",
    "noisy",
    "sampled",
    "budget",
    "resumed",
    "refused",
    "accepted",
    "sums",
    "tables",
]
SIZES = [2, pytest.param(3, marks=pytest.mark.slow)]
Results = list[dict[str, Any]]


def torchrun(
    folder: Path, size: int, names: list[str], *, patience: float = 0.1
) -> subprocess.CompletedProcess[str]:
    """Run scenarios in ``size`` processes, as a user would start them.

    Ranks that outlive another are ended after up to ``patience`` seconds.
    """
    root = Path(__file__).parents[2]
    paths = [str(root), str(root / "src"), *filter(None, sys.path)]
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(size), "--monitor-interval", str(patience)),
        *(worker.__file__, str(folder), *names),
    ]
    shared = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, **shared},
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def several(folder: Path) -> Callable[[int, str], Results]:
    """Return the results of all ranks; each size is started once."""
    started: set[int] = set()

    def results(size: int, name: str) -> Results:
        if size not in started:
            more = ["seeded_others"] if size > 2 else []  # keeps the first one short
            done = torchrun(folder, size, WITHOUT_DEATH + more)
            assert done.returncode == 0, done.stderr
            started.add(size)
        places = [worker.Place(folder, rank, size) for rank in range(size)]
        return [torch.load(one.path(f"{name}.{one.rank}")) for one in places]

    return results


@pytest.fixture(scope="module")
def alone(folder: Path) -> Callable[[str], dict[str, Any]]:
    """Return the result of one process, this one."""
    return lambda name: worker.SCENARIOS[name](worker.Place(folder))


def assert_alike(results: Results) -> None:
    """Check that all ranks hold the same parameters, bit for bit, and records."""
    for other in results[1:]:
        assert torch.equal(results[0]["w"], other["w"])
        for name in ("records", "charges", "spent"):
            assert results[0][name] == other[name], name


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["silent", "silent_unequal", "silent_empty"])
def test_without_noise_any_number_of_processes_goes_the_same_way(
    several, alone, size, name
):
    found, one = several(size, name), alone(name)
    assert_alike(found)
    assert float((one["w"] - worker.flat(worker.network())).abs().max()) > 1e-3
    torch.testing.assert_close(found[0]["w"], one["w"], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("size", "name"),
    [
        (2, "seeded"),
        pytest.param(3, "seeded", marks=pytest.mark.slow),
        pytest.param(3, "seeded_others", marks=pytest.mark.slow),
    ],
)
def test_noise_is_added_once(several, alone, size, name):
    """The lead's stream is that of one process: its noise and no other is seen."""
    found, one = several(size, name), alone(name)
    for method, expected in one.items():
        assert_alike([rank[method] for rank in found])
        got = found[0][method]
        torch.testing.assert_close(got["w"], expected["w"], rtol=0, atol=1e-6)
        steps = [record["step_size"] for record in got["records"]]
        assert steps == pytest.approx(
            [record["step_size"] for record in expected["records"]]
        )


@pytest.mark.parametrize("size", SIZES)
def test_the_lead_writes_the_ledger_of_one_process(several, alone, folder, size):
    found, one = several(size, "noisy"), alone("noisy")
    assert_alike(found)
    assert [rank["writes"] for rank in found] == [True] + [False] * (size - 1)
    own = worker.Place(folder).path("noisy.0.ledger")
    places = [worker.Place(folder, rank, size) for rank in range(size)]
    paths = [place.path(f"noisy.{place.rank}.ledger") for place in places]
    assert [path.exists() for path in paths] == [True] + [False] * (size - 1)
    expected, got = read_ledger(own), read_ledger(paths[0])
    assert got.charges == expected.charges
    assert len(got.charges) == found[0]["charges"] == len(one["records"]) > 0
    for key in set(expected.header) - {"run", "chain", "created"}:
        assert got.header[key] == expected.header[key], key


@pytest.mark.parametrize("size", SIZES)
def test_each_process_draws_its_own_rows(several, size):
    found = several(size, "sampled")
    for name in ("first", "again", "other"):
        assert_alike([rank[name] for rank in found])
    lead, next_one = found[0], found[1]
    assert lead["first"]["read"] != next_one["first"]["read"]
    for rank in found:
        assert 0 < len(rank["first"]["read"]) < 8 * worker.ROWS / size
        assert rank["first"]["read"] == rank["again"]["read"]
        assert rank["first"]["read"] != rank["other"]["read"]
    assert torch.equal(lead["first"]["w"], lead["again"]["w"])
    assert not torch.equal(lead["first"]["w"], lead["other"]["w"])


@pytest.mark.parametrize("size", SIZES)
def test_the_budget_ends_all_together(several, folder, size):
    """Three of eight affordable steps were paid before: five are left, for all."""
    found = several(size, "budget")
    assert_alike(found)
    assert [record["batch"] for record in found[-1]["records"]] == [3, 4, 5, 6, 7]
    ledger = read_ledger(worker.Place(folder, 0, size).path("budget.ledger"))
    assert len(ledger.charges) == found[-1]["charges"] == 8


@pytest.mark.parametrize("size", SIZES)
def test_a_resumed_run_is_the_whole_one(several, folder, size):
    found = several(size, "resumed")
    for rank in found:
        assert torch.equal(rank["resumed"]["w"], rank["whole"]["w"])
        assert rank["resumed"]["records"] == rank["whole"]["records"]
    assert_alike([rank["resumed"] for rank in found])
    ledger = read_ledger(worker.Place(folder, 0, size).path("resumed.ledger"))
    assert len(ledger.charges) == len(found[0]["whole"]["records"]) == 8


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("case", "lead", "second"),
    [
        ("steps", "the same steps in all", "got 9 in process 1"),
        ("seed", "the same seed in all", "got 1 in process 1"),
        ("module", "the same module in all", "the same module in all"),
        ("no rows", "at least one example", "at least one example"),
        ("same rows", "its own share", "its own share"),
        ("same rows, n_rows fits", "its own share", "its own share"),
        ("same rows turned", "its own share", "its own share"),
        ("same examples", "its own share", "its own share"),
        ("same indices", "its own share", "its own share"),
        ("n_rows", "Expected n_rows", "Expected n_rows"),
        ("no pair", "Process 1 of", "pair of tensors or a dataset"),
        ("ledger", "LedgerError", "Process 0 of"),
        ("resume", "is not a checkpoint", "Process 0 of"),
        ("lost ledger", "is not there", "Process 0 of"),
        ("plans", "the same plan of a batch", "n_charges=0"),
    ],
)
def test_what_one_process_must_refuse_all_refuse(several, size, case, lead, second):
    found = several(size, "refused")
    assert lead in found[0][case]
    assert second in found[1][case]
    assert all(rank[case] != "nothing" for rank in found)
    assert not any(rank["written"] for rank in found)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", ["twins", "many", "subset"])
def test_shards_that_differ_are_not_looked_at_further(several, size, case):
    """Neither equal rows of two people nor the exact number of rows shows."""
    assert [rank[case] for rank in several(size, "accepted")] == ["nothing"] * size


@pytest.mark.parametrize("size", SIZES)
def test_a_row_changes_the_total_by_its_certified_vector(several, size):
    for rank in several(size, "sums"):
        assert torch.equal(rank["whole"] - rank["without"], rank["row"])
        assert rank["row"].any()


def test_a_script_without_a_process_group_is_told_what_to_call():
    with pytest.raises(ArmijoError, match="init_process_group first"):
        worker.training(worker.network(), (), distributed=True)


def test_one_process_of_torchrun_is_one_process(tmp_path):
    place, store = worker.Place(tmp_path), dist.HashStore()
    expected = worker.seeded(place)["blsgd"]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        found = worker.seeded(place)["blsgd"]
    finally:
        dist.destroy_process_group()
    assert_alike([expected, found])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["killed", "killed_lead"])
def test_a_death_stops_all_and_the_ledger_is_not_short(tmp_path, name):
    size = 3
    done = torchrun(tmp_path, size, [name], patience=5)
    assert done.returncode != 0
    assert "exitcode: 7" in done.stderr
    victim = 0 if name == "killed_lead" else size - 1
    for rank in sorted({0, 1, 2} - {victim}):
        place = worker.Place(tmp_path, rank, size)
        result = torch.load(place.path(f"{name}.{rank}"))
        assert f"Process {rank} of 3 lost contact" in result["error"]
        assert "stays charged" in result["error"]
        assert len(result["records"]) == 4
    place = worker.Place(tmp_path, 0, size)
    assert len(read_ledger(place.path("killed.ledger")).charges) == 5

    again = torchrun(tmp_path, size, ["recovered"])
    assert again.returncode == 0, again.stderr
    places = [worker.Place(tmp_path, rank, size) for rank in range(size)]
    found = [torch.load(one.path(f"recovered.{one.rank}")) for one in places]
    assert_alike(found)
    batches = [record["batch"] for record in found[0]["records"]]
    # A lead that survives saves its last step, one that dies what it saved before.
    kept = 3 if name == "killed_lead" else 4
    # Batches that were paid for in vain are not refunded.
    assert batches == [*range(kept), 5, 6, 7]
    assert len(read_ledger(place.path("killed.ledger")).charges) == 8


@pytest.mark.parametrize("size", SIZES)
def test_estimators_on_shards_fit_the_model_of_one_process_bit_for_bit(
    several, alone, size
):
    found, one = several(size, "tables"), alone("tables")
    names = "linear", "sparse", "line", "classes", "weighted", "number"
    for name in names:
        assert float(one[name].abs().max()) > 0
        for rank in found:
            assert torch.equal(rank[name], one[name]), name


@pytest.mark.parametrize("size", SIZES)
def test_estimators_refuse_what_needs_all_rows_in_one_process(several, size):
    words = ["same ones in two", "n_rows", "classes", "person", "l2", "n_features"]
    for rank in several(size, "tables"):
        for word, refusal in zip([*words, "one process"], rank["refused"], strict=True):
            assert word in refusal and "Nothing was spent" in refusal, refusal
