# SPDX-License-Identifier: Apache-2.0
"""Commands for images: fit, predict, and what the owner may see."""

import json
from functools import partial

import numpy as np
import pytest
from typer.testing import CliRunner

from armijo.cli import app
from armijo.images import estimator
from armijo.images.features import FeatureSettings
from tests.images.doubles import SMALL_BANKS
from tests.images.test_reading import write_folder


@pytest.fixture(autouse=True)
def small_features(monkeypatch):
    """Make fewer features: those of the default take half a minute."""
    small = partial(FeatureSettings, banks=SMALL_BANKS, components=24, synthetic=120)
    monkeypatch.setattr(estimator, "FeatureSettings", small)


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


@pytest.mark.parametrize("size", ["16", "16x", "axb"])
def test_a_size_that_is_none_is_refused(tmp_path, size):
    told = call(
        *("fit-images", tmp_path, "--out", tmp_path / "m", "--epsilon", 1),
        *("--size", size),
    )
    assert "HEIGHTxWIDTH" in str(told.exception)
