# SPDX-License-Identifier: Apache-2.0
"""Tables, and the measured parts of the page."""

import re
from pathlib import Path

import pandas as pd
import pytest

from armijo.errors import ArmijoError
from armijo_reproduction import accuracy, experiment, experiment_names
from armijo_reproduction.claims import NOT_RUN
from armijo_reproduction.page import (
    ablation_table,
    blocks_of,
    claims_table,
    figures_list,
    filled,
    robust_table,
    runs_table,
    tables_page,
    versions_table,
    zero_tuning_table,
)
from armijo_reproduction.results import (
    BUILDS,
    Part,
    build,
    in_group,
    load_parts,
    mean_of,
)

PAGE = Path(__file__).parents[3] / "docs" / "reproduction.md"


def cells_of(table):
    """Return the cells of a Markdown table, line by line."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_page_of_the_documentation_has_a_place_for_every_part(parts, full_fakes):
    drawn = {"svm": [PAGE.parent / "figures" / f"svm.{end}" for end in ("png", "svg")]}
    blocks = blocks_of(parts, drawn, PAGE, full_fakes)
    once = filled(PAGE.read_text(), blocks, PAGE)
    assert all(content in once for content in blocks.values())
    assert filled(once, blocks, PAGE) == once
    assert "![svm](figures/svm.png)" in once


@pytest.mark.parametrize("text", ["nothing", "<!-- begin x --><!-- end x -->" * 2])
def test_a_page_without_a_place_is_refused(text):
    with pytest.raises(ArmijoError, match="between <!-- begin x --> and <!-- end x"):
        filled(text, {"x": "new"}, PAGE)


def test_content_is_put_in_as_it_is():
    page = "<!-- begin x -->\nold\n<!-- end x -->"
    assert r"\1 \g<0>" in filled(page, {"x": r"\1 \g<0>"}, PAGE)


def test_a_figure_is_an_image_with_a_caption():
    paths = [Path("a/b/svm.png"), Path("a/b/svm.svg")]
    shown = figures_list({"svm": paths}, Path("a/page.md"))
    assert "![svm](b/svm.png)" in shown and "(b/svm.svg)" in shown


def test_claims_without_results_say_so():
    rows = cells_of(claims_table([]))[2:]
    verdicts = {row[3] for row in rows if row[3]}
    assert verdicts == {f"**{NOT_RUN}**"}
    sections = [row[0] for row in rows if not row[3]]
    assert len(sections) == 3


def test_runs_and_hours_add_up(parts):
    rows = cells_of(runs_table(parts))[2:]
    assert len(rows) == len(experiment_names()) + 1
    by_name = {row[0].strip("`").split("=")[-1]: row for row in rows}
    total = sum(1 for _ in experiment("svm-bank").run_keys())
    done = len(in_group(parts, "svm")[-1].table)
    assert by_name["svm-bank"][1] == f"{done:,} of {total:,}"
    assert by_name["zero-tuning-grid"][1] == NOT_RUN
    hours = [float(row[2]) for row in rows]
    assert hours[-1] == pytest.approx(sum(hours[:-1]), abs=0.01 * len(hours))


def test_versions_come_from_the_builds_file(parts, full_fakes, tmp_path):
    rows = cells_of(versions_table(parts, full_fakes))[2:]
    assert rows[0][0] == f"`{build()}`" and "torch" in rows[0][2]
    assert rows[0][1] == f"{sum(len(part.table) for part in parts):,}"
    assert not (tmp_path / BUILDS).exists()
    assert "not written down" in versions_table(parts, tmp_path)


def test_tables_hold_every_line_of_every_experiment(fakes):
    parts = load_parts(fakes, fast=True)
    page = tables_page(parts)
    for part in parts:
        section = page.partition(f"## {part.experiment.name}\n")[2]
        section = section.partition("\n## ")[0]
        total = sum(1 for _ in part.experiment.run_keys())
        assert f"{total:,} of {total:,} runs" in section
        assert not re.search(r"\bnan\b", section), part.experiment.name


def test_a_table_holds_mean_and_standard_error(parts):
    part = next(each for each in parts if each.experiment.name == "svm-adult")
    rows = cells_of(tables_page([part]).partition("Objective")[0])
    heads = rows[0]
    row = next(row for row in rows if row[0] == "DP-AGD")
    of = part.table[(part.table["line"] == "DP-AGD") & (part.table["epsilon"] == 0.4)]
    assert row[heads.index("0.4")] == str(mean_of(of, "accuracy"))
    once = next(row for row in rows if row[0] == "non-private")
    assert once[1:-1] == [""] * 5 and once[-1]


def test_networks_are_compared_at_their_last_iteration():
    wanted = experiment("zero-tuning-networks")
    gains = {1.0: -0.003, 3.0: 0.01}
    rows = [
        {
            **vars(key),
            "iteration": step,
            "accuracy": share
            * (0.9 + (gains[key.epsilon] if key.line.startswith("auto") else 0.0)),
        }
        for key in wanted.run_keys()
        for step, share in ((500, 1.05), (1000, 1.0))
    ]
    table = zero_tuning_table(Part(experiment=wanted, table=pd.DataFrame(rows)))
    assert "above the best other in 2 of 4 settings" in table
    assert "more than 0.002 below it in 2." in table
    heads, _, *body = cells_of(table)
    assert heads[3:5] == ["auto", "DP-SGD, best step"]
    assert {tuple(row[2:]) for row in body} == {
        ("1", "0.8970 ± 0.0000", "0.9000 ± 0.0000", "-0.0030"),
        ("3", "0.9100 ± 0.0000", "0.9000 ± 0.0000", "+0.0100"),
    }


def test_the_zero_tuning_table_counts_wins_and_misses():
    wanted = experiment("zero-tuning")
    gains = {0.05: 0.01, 0.1: -0.001, 0.2: -0.01}
    rows = [
        {
            **vars(key),
            "accuracy": 0.8
            + (gains.get(key.epsilon, 0.02) if key.line == "auto" else 0.0)
            - (0.05 if key.line.startswith("ObjPert") else 0.0),
        }
        for key in wanted.run_keys()
    ]
    table = zero_tuning_table(Part(experiment=wanted, table=pd.DataFrame(rows)))
    assert "above the best other in 24 of 36 settings" in table
    assert "more than 0.002 below it in 6." in table
    body = cells_of(table)[2:]
    assert len(body) == 36
    low = next(row for row in body if row[2] == "0.2")
    assert low[-1].startswith("-0.0100")


def measured(name, accuracy):
    """An experiment whose every run has the accuracy of its key."""
    wanted = experiment(name)
    rows = [{**vars(key), "accuracy": accuracy(key)} for key in wanted.run_keys()]
    return Part(experiment=wanted, table=pd.DataFrame(rows))


def test_the_robust_table_names_the_lowest_setting():
    def accuracy(key):
        low = (key.dataset, key.model, key.epsilon) == ("bank/16", "svm", 0.1)
        return 0.7 if key.line == "majority" else 0.7 - 0.02 * low + 0.01 * (not low)

    table = robust_table(measured("zero-tuning-small", accuracy))
    assert "Lowest of 72 settings: -0.0200" in table
    assert "(Bank/16, SVM, epsilon 0.1)" in table
    body = cells_of(table)[2:]
    assert len(body) == 12
    assert body[0][2].startswith("0.7000")
    assert body[0][3].startswith("0.7100")


def test_the_ablation_table_pairs_each_line_with_the_whole_method():
    def accuracy(key):
        return 0.8 + 0.01 * key.fold - 0.005 * (key.line == "auto, last iterate")

    body = cells_of(ablation_table(measured("zero-tuning-ablation", accuracy)))[2:]
    assert body[0][0] == "auto"
    assert body[0][-1] == ""
    leads = {row[0]: row[-1] for row in body[1:]}
    assert leads.pop("auto, last iterate").startswith("-0.0050 ± 0.0000")
    assert all(lead.startswith("+0.0000") for lead in leads.values())
    assert body[0][1] == "0.8200"


def test_the_commands_of_the_documentation_name_experiments():
    pages = [PAGE.parents[1] / "README.md", *PAGE.parent.glob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    names = re.findall(r"reproduce NAME=([\w-]+)", text)
    assert len(names) > 30 and set(names) == set(experiment_names())


def test_the_page_of_accuracies_is_written_from_its_results(monkeypatch):
    monkeypatch.chdir(PAGE.parents[1])
    assert accuracy.table() == accuracy.TABLE.read_text(encoding="utf-8")
