"""What the tests of the command line share: scores are beside their point, and take most of their time."""

from collections.abc import Iterator
from typing import Any

import pytest
from sklearn import ensemble
from sklearn.dummy import DummyClassifier, DummyRegressor

from torchbayes.assess import evaluation
from torchbayes.comparison import certainty

TREES = {name: getattr(ensemble, name) for name in ("HistGradientBoostingClassifier", "HistGradientBoostingRegressor")}


@pytest.fixture(scope="module", autouse=True)
def _quick_scores() -> Iterator[None]:
    """A tenth of the resamples, and constants in the place of boosted trees: `tests/assess` has both in full."""

    def drawn_rows(counts_N: Any, resamples: int, seed: int) -> Any:
        return every(counts_N, min(resamples, 100), seed)

    every = evaluation.drawn_rows
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "drawn_rows", drawn_rows)
        patch.setattr(certainty, "RESAMPLES", 100)
        for name, constant in zip(TREES, (DummyClassifier, DummyRegressor), strict=True):
            patch.setattr(ensemble, name, lambda random_state, constant=constant: constant())
        yield


@pytest.fixture
def boosted_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Boosted trees all the same."""
    for name, trees in TREES.items():
        monkeypatch.setattr(ensemble, name, trees)
