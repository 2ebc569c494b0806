# SPDX-License-Identifier: Apache-2.0
"""Tables, and the measured parts of the page."""

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from armijo.errors import ArmijoError
from armijo_reproduction import accuracy, experiment, experiment_names
from armijo_reproduction.claims import NOT_RUN
from armijo_reproduction.figures import FIGURES, NO_GUARANTEE, draw_figures, style_of
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
    by_accounting,
    in_group,
    load_parts,
    mean_of,
    summarized,
)
from armijo_reproduction.spec import DATASETS, MODELS
from reproduction.tests.experiments.fakes import write_fakes

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


@pytest.fixture
def seen(monkeypatch):
    """Keep every figure instead of writing it; return them by name."""
    kept = {}

    def save(figure, folder, name):
        kept[name] = figure
        return []

    monkeypatch.setattr("armijo_reproduction.figures.save", save)
    return kept


def drawn_line(ax, label):
    """Return the points of the line with a label."""
    handles, labels = ax.get_legend_handles_labels()
    handle = handles[labels.index(label)]
    line = handle.lines[0] if hasattr(handle, "lines") else handle
    return np.asarray(line.get_xdata()), np.asarray(line.get_ydata()), handle


def test_every_experiment_belongs_to_a_figure_a_choice_or_a_table():
    groups = {group for name in FIGURES for group in FIGURES[name]["groups"]}
    others = {experiment(name).group for name in experiment_names()} - groups
    choices = {"zero-tuning-grid", "zero-tuning-objpert"}
    assert others == choices | {"zero-tuning-robust", "zero-tuning-ablation"}


def test_every_data_set_model_and_line_has_a_name_and_a_look():
    for name in experiment_names():
        wanted = experiment(name)
        assert set(wanted.published()) <= set(DATASETS)
        assert set(wanted.models) <= set(MODELS)
        if any(wanted.group in figure["groups"] for figure in FIGURES.values()):
            for line in wanted.series:
                assert style_of(line.label) != style_of("other"), line.label


@pytest.mark.parametrize("name", ["logistic-adult", "mnist-mlp", "zero-tuning"])
def test_lines_differ_by_more_than_their_color(name):
    lines = [each for each in experiment(name).series if each.accounting == "sound"]
    looks = [style_of(each.label) for each in lines]
    for one, other in combinations(looks, 2):
        names = ("marker", "linestyle")
        assert [one[n] for n in names] != [other[n] for n in names]


def test_the_convex_figure_shows_means_and_standard_errors(parts, seen, tmp_path):
    draw_figures(parts, tmp_path, ["logistic"])
    figure = seen["logistic"]
    found = in_group(parts, "logistic")
    assert len(figure.axes) == 2 * len(found) == 8
    for number, part in enumerate(found):
        for ax, column in (
            (figure.axes[number], "accuracy"),
            (figure.axes[number + 4], "objective"),
        ):
            rows = summarized(part.table, column, ["line", "epsilon"])
            rows = rows[rows["line"] == "DP-BLGD"]
            x, y, handle = drawn_line(ax, "DP-BLGD")
            assert x.tolist() == rows["epsilon"].tolist()
            assert y == pytest.approx(rows["value"].to_numpy())
            bars = handle.lines[2][0].get_segments()
            half = [(bar[1][1] - bar[0][1]) / 2 for bar in bars]
            assert half == pytest.approx(rows["error"].to_numpy())
            assert ax.get_xscale() == "log"


def test_the_sound_figure_shows_no_published_line_and_the_other_labels_it(
    parts, seen, tmp_path
):
    draw_figures(parts, tmp_path, ["svm", "svm-published"])
    sound = [text.get_text() for text in seen["svm"].legends[0].get_texts()]
    assert len(sound) == 12 and not any("published" in each for each in sound)
    both = [text.get_text() for text in seen["svm-published"].legends[0].get_texts()]
    marked = [each for each in both if "published" in each]
    assert len(marked) == 3 and all(each.endswith(NO_GUARANTEE) for each in marked)
    solid = drawn_line(seen["svm-published"].axes[0], "DP-BLSGD")[2].lines[0]
    dashed = drawn_line(seen["svm-published"].axes[0], marked[0])[2].lines[0]
    assert solid.get_linestyle() == "-" and dashed.get_linestyle() == "--"
    assert solid.get_color() == dashed.get_color()


def test_evaluations_are_shown_in_batches_and_in_passes(parts, seen, tmp_path):
    draw_figures(parts, tmp_path, ["evaluations"])
    batches, passes = seen["evaluations"].axes
    for label in ("gradient evaluations", "objective evaluations"):
        q, count, _ = drawn_line(batches, label)
        assert drawn_line(passes, label)[1] == pytest.approx(q * count)
        assert q.tolist() == [0.01, 0.03, 0.1, 0.3, 1.0]
    assert batches.get_yscale() == passes.get_yscale() == "log"


def test_runs_ended_by_the_number_of_batches_are_marked(seen, tmp_path):
    write_fakes(tmp_path, names=["evaluations"], fast=False, folds=(0, 1))
    parts = load_parts(tmp_path)
    cap = parts[0].experiment.max_batches
    smallest = parts[0].table["setting"] == "sampling_prob=0.01"
    parts[0].table.loc[smallest, "batches"] = cap
    draw_figures(parts, tmp_path)
    ax = seen["evaluations"].axes[0]
    x, _, _ = drawn_line(ax, "gradient evaluations, ended by the cap")
    assert x.tolist() == [0.01]


def test_networks_show_both_epsilons_and_the_chosen_steps(parts, seen, tmp_path):
    draw_figures(parts, tmp_path, ["networks"])
    axes = seen["networks"].axes
    assert len(axes) == 4 * 5
    title = axes[4].get_title()
    assert "CIFAR-10" in title
    part = in_group(parts, "networks")[0]
    own = part.table[part.table["line"] == "DP-BLSGD (network)"]
    for label, column in (
        ("epsilon, sound", "spent"),
        (f"epsilon, {NO_GUARANTEE}", "printed"),
    ):
        assert drawn_line(axes[10], label)[1] == pytest.approx(own[column].to_numpy())
    steps = drawn_line(axes[15], "DP-BLSGD")[1]
    assert steps == pytest.approx(own["step_size"].to_numpy())


def test_zero_tuning_shows_paired_differences(parts, seen, tmp_path):
    draw_figures(parts, tmp_path, ["zero-tuning"])
    ax = seen["zero-tuning"].axes[0]
    part = in_group(parts, "zero-tuning")[0]
    rows = part.table[
        (part.table["dataset"] == "adult") & (part.table["model"] == "logistic")
    ]
    mean = rows.groupby(["line", "epsilon"])["accuracy"].mean()
    expected = mean["auto"] - mean["DP-SGD (hindsight)"]
    _, y, _ = drawn_line(ax, "auto minus DP-SGD (hindsight)")
    assert y == pytest.approx(expected.to_numpy())


def test_networks_with_nothing_set_stand_beside_every_step_size(parts, seen, tmp_path):
    draw_figures(parts, tmp_path, ["zero-tuning-networks"])
    figure = seen["zero-tuning-networks"]
    assert len(figure.axes) == 4
    labels = figure.axes[0].get_legend_handles_labels()[1]
    steps = experiment("zero-tuning-networks-grid").settings()
    assert set(labels) == {
        "auto",
        "DP-SGD, best step",
        *(f"DP-SGD, {step.replace('_', ' ').replace('=', ' ')}" for step in steps),
    }


def test_six_panels_with_both_budgets(parts, seen, tmp_path):
    draw_figures(parts, tmp_path, ["hyper-parameters"])
    figure = seen["hyper-parameters"]
    names = [ax.get_xlabel() for ax in figure.axes]
    assert len(set(names)) == 6
    for ax in figure.axes:
        labels = ax.get_legend_handles_labels()[1]
        assert sorted(labels) == ["epsilon = 0.05", "epsilon = 0.2"]
    strategy = figure.axes[names.index("budget strategy")]
    ticks = [text.get_text() for text in strategy.get_xticklabels()]
    assert ticks == ["no", "must", "adap"]


@pytest.mark.parametrize(
    ("name", "panels"), [("hyper-parameters", 6), ("evaluations", 2)]
)
def test_both_accountings_are_drawn_apart_and_labelled(
    name, panels, parts, seen, tmp_path
):
    published = f"{name}-published"
    draw_figures(parts, tmp_path, [name, published])
    for each, labelled in ((name, False), (published, True)):
        texts = [text.get_text() for text in seen[each].findobj(Text)]
        assert any(NO_GUARANTEE in text for text in texts) == labelled
        assert len(seen[each].axes) == panels


def test_every_line_belongs_to_one_accounting(parts):
    rows = 0
    for published in (False, True):
        for part in by_accounting(parts, published=published):
            labels = {line.label for line in part.experiment.series}
            assert set(part.table["line"]) <= labels
            assert {label.endswith(" (printed)") for label in labels} == {published}
            rows += len(part.table)
    assert rows == sum(len(part.table) for part in parts)


def test_without_published_lines_there_is_no_figure_of_them(parts, seen, tmp_path):
    sound = by_accounting(parts, published=False)
    drawn = draw_figures(sound, tmp_path, ["hyper-parameters", "evaluations"])
    assert list(drawn) == ["hyper-parameters", "evaluations"]
    for name in ("hyper-parameters-published", "evaluations-published"):
        with pytest.raises(ArmijoError, match="no results"):
            draw_figures(sound, tmp_path, [name])


@pytest.mark.parametrize("names", [["logistic-bank", "cifar-cnn"], ["zero-tuning"]])
def test_legends_are_not_wider_than_their_figures(names, tmp_path, seen):
    write_fakes(tmp_path, names=names)
    draw_figures(load_parts(tmp_path, fast=True), tmp_path)
    for name, figure in seen.items():
        (legend,) = figure.legends
        assert legend.get_window_extent().width <= figure.bbox.width, name


def test_whatever_is_there_is_drawn(tmp_path, seen):
    write_fakes(tmp_path, names=["logistic-bank", "cifar-cnn", "clip-decay"])
    drawn = draw_figures(load_parts(tmp_path, fast=True), tmp_path)
    assert list(drawn) == [
        "hyper-parameters",
        "hyper-parameters-published",
        "logistic",
        "logistic-published",
        "networks",
    ]
    assert len(seen["logistic"].axes) == 2
    assert len(seen["hyper-parameters"].axes) == 1


def test_the_same_results_give_the_same_bytes(fakes, tmp_path):
    names = ["evaluations", "zero-tuning-networks"]
    files = []
    for folder in ("one", "two"):
        drawn = draw_figures(load_parts(fakes, fast=True), tmp_path / folder, names)
        files.append([path for paths in drawn.values() for path in paths])
    assert [path.suffix for path in files[0]] == [".png", ".svg"] * 2
    for one, other in zip(*files, strict=True):
        assert one.read_bytes() == other.read_bytes()
        assert one.stat().st_size > 5_000
    svg = files[0][1].read_text()
    assert not re.search(r"<dc:date>|\d{4}-\d\d-\d\dT", svg)


def test_an_unknown_figure_and_a_figure_without_results(fakes, tmp_path):
    parts = load_parts(fakes, fast=True)
    with pytest.raises(ArmijoError, match="no figure 'mnist'; there are hyper-par"):
        draw_figures(parts, tmp_path, ["mnist"])
    alone = in_group(parts, "evaluations")
    with pytest.raises(ArmijoError, match="no results yet for networks, svm"):
        draw_figures(alone, tmp_path, ["networks", "svm"])
    assert list(tmp_path.iterdir()) == []
