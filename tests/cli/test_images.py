# SPDX-License-Identifier: Apache-2.0
"""Commands for images: fit, predict, and what the owner may see."""

import json
import shutil
from functools import partial

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from armijo.accounting.ledger import read_ledger
from armijo.cli import app
from armijo.images import features
from armijo.images.estimator import PrivateImageClassifier
from armijo.images.features import FeatureSettings
from armijo.methods.whitened import Whitened
from tests.images.doubles import SMALL_BANKS
from tests.images.test_reading import write_folder


@pytest.fixture(autouse=True)
def small_features(monkeypatch):
    """Make fewer features: those of the default take half a minute."""
    small = partial(FeatureSettings, banks=SMALL_BANKS, components=24, synthetic=120)
    monkeypatch.setattr(features, "FeatureSettings", small)


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_folder_is_fitted_and_predicted(tmp_path):
    folder, model = tmp_path / "images", tmp_path / "model.safetensors"
    _, y = write_folder(folder, 400)
    (folder / "level" / "broken.png").write_bytes(b"no image")
    asked = ("--epsilon", 8, "--classes", "level,upright", "--gray", "--size", "16x16")
    told = call("fit-images", folder, "--out", model, *asked, "--json")
    assert told.exit_code == 0, told.output
    result = json.loads(told.stdout)
    assert result["guarantee"] is True
    assert result["relation"] == "zero-out"
    table = tmp_path / "predictions.csv"
    told = call(
        *("predict-images", model, folder, "--gray", "--size", "16x16"),
        *("--out", table),
    )
    assert told.exit_code == 0, told.output
    lines = table.read_text().splitlines()
    assert len(lines) == 402
    level = (y == 0).sum()
    right = np.array(lines[1 : 1 + level]) == "level"
    assert right.mean() > 0.9
    again = call("fit-images", folder, "--out", model, *asked)
    assert again.exit_code != 0  # the file is there
    assert "exists" in str(again.exception)


class TestResume:
    ASKED = ("--epsilon", 8, "--classes", "level,upright", "--gray", "--size", "16x16")

    def fit(self, tmp_path, name, *more):
        out = tmp_path / name / "model.safetensors"
        out.parent.mkdir(exist_ok=True)
        images = tmp_path / "images"
        return out, call("fit-images", images, "--out", out, *self.ASKED, *more)

    @pytest.fixture
    def killed(self, tmp_path, monkeypatch):
        """Return a finished run, and one as a kill after some steps leaves it."""
        write_folder(tmp_path / "images", 100)
        moved = Whitened._moved

        def copied(method, batch, state, update, used):
            if state.batches == 10 and not (tmp_path / "killed").exists():
                shutil.copytree(tmp_path / "whole", tmp_path / "killed")
            return moved(method, batch, state, update, used)

        monkeypatch.setattr(Whitened, "_moved", copied)
        whole, told = self.fit(tmp_path, "whole")
        assert told.exit_code == 0, told.output
        return whole

    def test_a_killed_run_ends_where_it_would_have(self, killed, tmp_path):
        left = {path.name for path in (tmp_path / "killed").iterdir()}
        unfinished = ("checkpoint", "checkpoint.key", "ledger")
        assert left >= {f"model.safetensors.{end}" for end in unfinished}
        out, told = self.fit(tmp_path, "killed")
        assert "--resume" in str(told.exception)
        out, told = self.fit(tmp_path, "killed", "--resume")
        assert told.exit_code == 0, told.output
        found, expected = (PrivateImageClassifier.load(path) for path in (out, killed))
        np.testing.assert_array_equal(found.coef_, expected.coef_)
        np.testing.assert_array_equal(found.whitening_, expected.whitening_)
        charges = [
            len(read_ledger(path.with_name(path.name + ".ledger")).charges)
            for path in (out, killed)
        ]
        assert charges[0] == charges[1] == 2 + Whitened().steps
        ledger = out.with_name(out.name + ".ledger")
        assert call("verify", ledger).exit_code == 0
        changed = bytearray(out.read_bytes())
        changed[-1] ^= 1  # the last bit of a weight
        out.write_bytes(changed)
        told = call("verify", ledger)
        assert told.exit_code != 0 and out.name in told.output.replace("\n", "")
        assert not out.with_name(out.name + ".checkpoint").exists()

    def test_other_images_and_settings_are_refused(self, killed, tmp_path):
        _, told = self.fit(tmp_path, "killed", "--resume", "--mirror")
        assert "another run" in str(told.exception)
        image = next((tmp_path / "images" / "level").iterdir())
        files = tmp_path / "killed"
        kept, before = image.read_bytes(), {p: p.read_bytes() for p in files.iterdir()}
        image.write_bytes(b"changed")
        _, told = self.fit(tmp_path, "killed", "--resume")
        assert "changed since then: the rows" in str(told.exception)
        assert before == {p: p.read_bytes() for p in files.iterdir()}
        image.write_bytes(kept)  # nothing is lost
        _, told = self.fit(tmp_path, "killed", "--resume")
        assert told.exit_code == 0, told.output
        _, told = self.fit(tmp_path, "none", "--resume")
        assert "no unfinished run" in str(told.exception)


def test_check_names_the_files_at_fault(tmp_path):
    write_folder(tmp_path)
    (tmp_path / "level" / "broken.png").write_bytes(b"no image")
    told = call("check", tmp_path)
    assert told.exit_code == 0
    assert "level/broken.png" in told.output
    assert "7 images, 1 of them blank" in told.output


def test_check_names_rows(tmp_path):
    images = np.random.default_rng(0).random((5, 16, 16))
    images[3, 0, 0] = np.nan
    np.savez(tmp_path / "a.npz", x=images, y=np.arange(5))
    told = call("check", tmp_path / "a.npz")
    assert "row 3" in told.output
    assert "cut" not in told.output


@pytest.mark.parametrize(
    ("value", "dtype"), [(1.5, float), (-0.1, "f4"), (256, "u2"), (-1, int)]
)
def test_check_counts_images_whose_values_are_cut(tmp_path, value, dtype):
    images = np.ones((5, 16, 16), dtype)
    images[3, 0, 0] = value
    np.savez(tmp_path / "a.npz", x=images, y=np.arange(5))
    told = call("check", tmp_path / "a.npz")
    assert "1 of them have values that are cut" in " ".join(told.output.split())


def test_check_knows_what_a_fit_is_told(tmp_path):
    write_folder(tmp_path)
    Image.new("L", (20, 20)).save(tmp_path / "level" / "large.png")
    told = call("check", tmp_path, "--gray", "--size", "16x16")
    assert "level/large.png" in told.output and "1 of them blank" in told.output
    told = call("check", tmp_path, "--classes", "level,other")
    assert "upright/" in told.output and "level/" not in told.output


@pytest.mark.parametrize(
    ("labels", "classes", "expected"),
    [
        (["cat", "ox"], "cat,elephant", ["cat", "elephant"]),
        ([b"cat", b"\xff"], "cat, ox", ["cat", "ox"]),
        (np.array([0, 1], dtype=np.uint8), "0,300", [0, 300]),
        ([True, False], "False,true", [False, True]),
        ([0.0, 1.5], "0,1.5", [0.0, 1.5]),
        (np.array([0.1, 0.5], "f4"), "0.1,0.5", [float(np.float32(0.1)), 0.5]),
    ],
)
def test_no_label_decides_what_the_classes_are(tmp_path, labels, classes, expected):
    np.savez(tmp_path / "a.npz", x=np.ones((2, 16, 16)), y=np.array(labels))
    out = tmp_path / "m"
    asked = ("--epsilon", 8, "--classes", classes, "--out", out)
    told = call("fit-images", tmp_path / "a.npz", *asked)
    assert told.exit_code == 0, told.output
    assert PrivateImageClassifier.load(out).classes_.tolist() == expected
    assert PrivateImageClassifier.load(out).epsilon == 8


@pytest.mark.parametrize("classes", ["a,b", "1,", "0;1"])
def test_classes_of_another_kind_than_the_labels_are_refused(tmp_path, classes):
    np.savez(tmp_path / "a.npz", x=np.ones((2, 16, 16)), y=np.arange(2))
    asked = ("--epsilon", 8, "--classes", classes, "--out", tmp_path / "m")
    told = call("fit-images", tmp_path / "a.npz", *asked)
    assert "of the kind of the labels" in str(told.exception)
    assert not (tmp_path / "m.ledger").exists()


@pytest.mark.parametrize("other", ["m", "m.checkpoint", "m.checkpoint.key"])
def test_no_file_is_written_over_the_ledger(tmp_path, other):
    np.savez(tmp_path / "a.npz", x=np.ones((2, 16, 16)), y=np.arange(2))
    asked = ("--epsilon", 8, "--ledger", tmp_path / "." / other)
    told = call("fit-images", tmp_path / "a.npz", "--out", tmp_path / "m", *asked)
    assert "Expected another file" in str(told.exception)
    assert not (tmp_path / other).exists()


@pytest.mark.parametrize("size", ["16", "16x", "axb"])
def test_a_size_that_is_none_is_refused(tmp_path, size):
    told = call(
        *("fit-images", tmp_path, "--out", tmp_path / "m", "--epsilon", 1),
        *("--size", size),
    )
    assert "HEIGHTxWIDTH" in str(told.exception)
