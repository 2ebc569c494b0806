# SPDX-License-Identifier: Apache-2.0
"""The report of a run: released values only, whole in one file, and no claim too many.

Numbers that only the rows know (how many there are, of each class, outside the bounds)
must appear in nothing that a run leaves.
"""

import base64
import json
import math
import re
import struct
from dataclasses import fields
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest

from armijo.accounting.accountants import SEEDED
from armijo.accounting.paper import BROKEN_PREMISES
from armijo.errors import PrivacyLeakWarning
from armijo.estimators.model_file import load_model
from armijo.methods.base import StepRecord
from armijo.report.page import (
    ASSUMPTIONS,
    OF_ROWS,
    largest_weights,
    plain_sentence,
    report_document,
)
from armijo.report.verify import summarize_run
from armijo.tables import Categorical, Label
from tests.cli.small import (
    PUBLIC_ROWS,
    SETTINGS,
    numbers_in,
    private_counts,
    small_frame,
    small_schema,
)

RECORD = {field.name for field in fields(StepRecord)}
CLAIMS = ("The guarantee", "-differentially private under", "Whatever is concluded")


class Page(HTMLParser):
    """The elements of a page, what they refer to, and the text they show."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.references: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.add(tag)
        found = dict(attrs)
        self.references += [found[key] for key in ("src", "href") if key in found]

    def handle_data(self, data):
        self.words += data.split()

    @property
    def text(self) -> str:
        return " ".join(self.words)


def page(outcome) -> Page:
    return Page((outcome.folder / "report.html").read_text(encoding="utf-8"))


def report(outcome):
    return json.loads((outcome.folder / "report.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def paper(small, tmp_path_factory):
    """A run with the printed accounting, which warns."""
    out = tmp_path_factory.mktemp("paper") / "run"
    given = {"accounting": "paper", "expected_steps": None, "max_batches": 3}
    with pytest.warns(PrivacyLeakWarning, match="no valid guarantee"):
        return small.fit(out, parameters=given)


@pytest.fixture(params=["paper", "seeded"])
def void(request):
    """A run without a guarantee, and why it has none."""
    premises = {"paper": list(BROKEN_PREMISES), "seeded": [SEEDED]}
    return request.getfixturevalue(request.param), premises[request.param]


def test_the_report_holds_released_values_and_nothing_else(finished):
    document = report(finished)
    assert set(document) == {
        "format",
        "version",
        "created_by",
        "privacy",
        "assumptions",
        "warnings",
        "model",
        "releases",
        "pairs",
        "schema_digest",
        "settings",
        "history",
    }
    assert all(set(record) == RECORD for record in document["history"])
    assert set(document["privacy"]) == {
        "epsilon",
        "delta",
        "relation",
        "sampler",
        "arithmetic",
        "accountant",
        "guarantee",
        "broken_premises",
        "assumptions",
        "ledger_run",
        "ledger_head",
        "statement",
        "epsilon_spent",
        "n_charges",
    }
    assert set(document["model"]) == {"kind", "target", "classes", "n_features"}
    assert not set(document["settings"]) & {"callback", "classes", "ledger"}


def test_no_accuracy_and_no_number_of_the_rows_is_told(finished):
    """The public number of rows is there, so a number of rows would be found."""
    secret = private_counts()
    assert len(secret) == 4 and min(secret) > 50 and PUBLIC_ROWS not in secret
    for path in finished.folder.iterdir():
        text = path.read_text(encoding="utf-8")
        assert not numbers_in(text) & secret, path.name
        assert "accuracy" not in text.lower(), path.name
    for name in ("report.html", "report.json", "model.json"):
        found = numbers_in((finished.folder / name).read_text(encoding="utf-8"))
        assert PUBLIC_ROWS in found


def test_a_found_number_of_rows_is_told_nowhere(small, tmp_path):
    """Without a public number the divisor is the found one, which stays inside."""
    schema = tmp_path / "schema.toml"
    schema.write_text(small_schema(n_rows=None).to_toml())
    found = small.fit(tmp_path / "run", schema=schema, parameters={"max_batches": 2})
    for path in found.folder.iterdir():
        assert not numbers_in(path.read_text(encoding="utf-8")) & private_counts()
    assert "blanking any one row" in page(found).text
    assert summarize_run(found.folder)["relation"] == "zero-out"


def test_the_report_is_the_history_of_the_estimator(finished):
    document = report(finished)
    history = finished.estimator.history_
    assert len(document["history"]) == finished.estimator.n_iter_ == len(history)
    for name in sorted(RECORD):
        told = [record[name] for record in document["history"]]
        held = [None if np.isnan(v) else v for v in history[name].astype(float)]
        assert told == held
    assert document["privacy"] == finished.estimator.privacy_.to_dict()
    assert document["privacy"] == load_model(finished.folder / "model.json").privacy
    assert document["schema_digest"] == small_schema().digest()
    told = {name: document["settings"][name] for name in SETTINGS}
    assert told == SETTINGS and document["settings"]["n_rows"] == PUBLIC_ROWS


def test_the_page_fetches_nothing(finished):
    found = page(finished)
    assert not found.elements & {"script", "link", "iframe", "object", "base"}
    assert found.references
    assert all(where.startswith("data:image/png;base64,") for where in found.references)
    text = (finished.folder / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"https?://|url\(|@import|srcset", text)


def test_the_page_has_pictures(finished):
    found = page(finished)
    pictures = [
        base64.b64decode(where.partition(",")[2], validate=True)
        for where in found.references
    ]
    assert len(set(pictures)) == len(pictures) >= 3
    for picture in pictures:
        assert picture.startswith(b"\x89PNG\r\n\x1a\n")
        width, height = struct.unpack(">II", picture[16:24])
        assert width > 600 and height > 200
        assert picture.rstrip().endswith(b"IEND\xaeB`\x82")
    for caption in ("Step sizes", "Budget spent", "Angles"):
        assert caption in found.text


def test_the_page_states_the_guarantee_and_what_it_assumes(finished):
    found = page(finished).text
    sentence = plain_sentence(report(finished)["privacy"])
    assert f"The guarantee {sentence}" in found
    assert "2.72" in sentence and "adding or removing any one row" in sentence
    assert len(ASSUMPTIONS) >= 3
    assert all(assumption in found for assumption in (*ASSUMPTIONS, OF_ROWS))
    tested = finished.estimator.privacy_.guarantee.assumptions
    assert any("exp, log: tested" in one for one in tested)
    assert report(finished)["assumptions"] == [*ASSUMPTIONS, OF_ROWS, *tested]
    assert all(assumption in found for assumption in tested)
    assert "no guarantee" not in found.lower()
    assert f"{finished.estimator.n_iter_} batches" in found


@pytest.mark.parametrize(
    ("relation", "words"),
    [
        ("add-remove", "adding or removing any one row"),
        ("zero-out", "blanking any one row"),
        ("replace-one", "exchanging any one row"),
    ],
)
@pytest.mark.parametrize("epsilon", [0.1, 2.0])
def test_the_plain_sentence_says_the_numbers(relation, words, epsilon):
    privacy = {"guarantee": True, "relation": relation, "epsilon": epsilon}
    sentence = plain_sentence({**privacy, "delta": 1e-6})
    assert words in sentence and f"(epsilon {epsilon:g})" in sentence
    assert f"a factor of {math.exp(epsilon):.3g} " in sentence
    assert "probability 1e-06 (delta)" in sentence


def test_a_run_without_a_guarantee_says_so_and_why(void):
    outcome, premises = void
    document, found = report(outcome), page(outcome).text
    assert document["privacy"]["guarantee"] is False
    assert document["privacy"]["broken_premises"] == premises
    assert document["privacy"]["statement"].startswith("NO GUARANTEE: ")
    assert "No guarantee NO GUARANTEE: " in found
    assert found.count("(a label)") == 2
    reasons = found.partition("Why there is no guarantee")[2]
    assert all(premise in reasons for premise in premises)


def test_nothing_of_such_a_run_claims_a_guarantee(void):
    outcome, premises = void
    for path in outcome.folder.iterdir():
        text = unescape(path.read_text(encoding="utf-8"))
        assert not any(claim in text for claim in CLAIMS), path.name
        assert '"guarantee": true' not in text and '"guarantee":true' not in text
    described = summarize_run(outcome.folder)
    assert described["guarantee"] is False
    assert described["broken_premises"] == premises
    assert described["statement"].startswith("NO GUARANTEE: ")
    assert not any(claim in str(described) for claim in CLAIMS)
    assert str(outcome.estimator.privacy_).startswith("NO GUARANTEE: ")


def test_both_reasons_are_told(small, tmp_path):
    given = {"accounting": "paper", "expected_steps": None, "random_state": 1}
    with pytest.warns(PrivacyLeakWarning, match="no valid guarantee"):
        found = small.fit(tmp_path / "run", parameters={**given, "max_batches": 1})
    reasons = [*BROKEN_PREMISES, SEEDED]
    assert report(found)["privacy"]["broken_premises"] == reasons
    assert all(reason in page(found).text for reason in reasons)


@pytest.mark.parametrize("batches", [0, 1])
def test_a_run_of_few_batches_has_a_report(small, tmp_path, batches):
    found = small.fit(tmp_path / "run", parameters={"max_batches": batches})
    assert len(report(found)["history"]) == batches
    shown = page(found)
    assert ("The run made no step." in shown.text) == (batches == 0)
    assert ("released at once" in shown.text) == (batches == 1)
    assert not shown.references


def test_names_from_a_schema_cannot_write_the_page(small, tmp_path):
    evil = '<script src="https://example.org/x.js">"&'
    frame = small_frame().rename(columns={"income": evil})
    frame["color"] = frame["color"].replace({"red": evil})
    frame[evil] = frame[evil].replace({"no": f"{evil}!"})
    frame.to_parquet(tmp_path / "t.parquet", index=False)
    age, _, height, _ = small_schema().columns
    schema = small_schema(
        columns=(
            age,
            Categorical("color", (evil, "green", "blue")),
            height,
            Label(evil, (f"{evil}!", "yes")),
        ),
        target=evil,
    )
    (tmp_path / "s.toml").write_text(schema.to_toml())
    found = small.fit(
        tmp_path / "run",
        table=tmp_path / "t.parquet",
        schema=tmp_path / "s.toml",
        parameters={"max_batches": 1},
    )
    shown = page(found)
    assert "script" not in shown.elements
    assert all(where.startswith("data:") for where in shown.references)
    assert f"{evil}!, yes" in shown.text and f"color={evil}" in shown.text
    assert report(found)["model"]["target"] == evil


def test_the_largest_weights_come_first(finished):
    names = [name for name, _ in largest_weights(finished.model)]
    sizes = np.abs(finished.model.coef[0])
    order = [finished.model.feature_names[i] for i in np.argsort(-sizes)]
    assert names == order
    assert largest_weights(finished.model, 2) == [
        (name, f"{finished.model.coef[0][order_of(finished, name)]:+.3f}")
        for name in order[:2]
    ]
    assert order[0] in page(finished).text


def order_of(outcome, name) -> int:
    return outcome.model.feature_names.index(name)


def test_the_document_is_what_is_written(finished):
    document = report_document(finished.estimator, finished.model, SETTINGS)
    assert json.loads(json.dumps(document, allow_nan=False)) == report(finished)
