"""Comparisons with a reference that several files look at: each is made once, and none of its files is changed."""

from pathlib import Path

import pytest
from tests.comparison import references
from tests.pictures import undrawn, unpainted

from torchbayes.comparison.compare import Compared, compare


@pytest.fixture(scope="session")
def digits_and_hmc(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Compared]:
    """Images with corruptions, and its directory."""
    return _made(tmp_path_factory.mktemp("digits"), references.DIGITS)


@pytest.fixture(scope="session")
def sine_and_hmc(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Compared]:
    """A regression, and its directory."""
    return _made(tmp_path_factory.mktemp("sine"), references.SINE)


def _made(home: Path, comparison: references.Comparison) -> tuple[Path, Compared]:
    with pytest.MonkeyPatch.context() as patch:
        unpainted(patch)
        return home, compare(comparison, home, callbacks=())


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test looks at numbers alone."""
    undrawn(monkeypatch)
