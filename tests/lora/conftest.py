"""What the tests of adapters of language models share: a folder with a base and questions, and a run of all methods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.lora.made import asked, based

    home = tmp_path_factory.mktemp("lora")
    based(home / "base")
    asked(home / "train.jsonl", 48)
    asked(home / "test.jsonl", 30, seed=1)
    asked(home / "other.jsonl", 20, seed=2, answers=False)
    return home


@pytest.fixture(scope="session")
def every(folder: Path) -> Any:
    """A run of all methods, in the folder `run`."""
    from tests.lora.made import settings
    from torchbayes import lora

    other = str(folder / "other.jsonl")
    return lora.fit(settings(folder, other=other), "all", directory=folder / "run", callbacks=())
