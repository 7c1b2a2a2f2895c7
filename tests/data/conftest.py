"""What the tests of data share: no local folder and an empty cache unless asked for, and the real files if present."""

import os
from pathlib import Path

import pytest

_REAL = os.environ.get("TORCHBAYES_DATA") or Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """An empty download cache, and no data folder in the environment."""
    folder = tmp_path / "cache"
    monkeypatch.setattr("pooch.os_cache", lambda _: folder)
    monkeypatch.delenv("TORCHBAYES_DATA", raising=False)
    return folder


@pytest.fixture
def real_root():
    """The folder with the real files."""
    if not (Path(_REAL) / "uci_regression").is_dir():
        pytest.skip("the real data files are not here: set TORCHBAYES_DATA to their folder")
    return Path(_REAL)
