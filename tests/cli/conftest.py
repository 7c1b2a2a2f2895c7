"""What the tests of the command line share: scores are beside their point, and take most of their time."""

from collections.abc import Iterator

import pytest
from sklearn import ensemble
from sklearn.dummy import DummyClassifier, DummyRegressor

TREES = {name: getattr(ensemble, name) for name in ("HistGradientBoostingClassifier", "HistGradientBoostingRegressor")}


@pytest.fixture(scope="module", autouse=True)
def _quick_scores(few_resamples: None) -> Iterator[None]:
    """Constants in the place of boosted trees, too: `tests/assess` has both in full."""
    with pytest.MonkeyPatch.context() as patch:
        for name, constant in zip(TREES, (DummyClassifier, DummyRegressor), strict=True):
            patch.setattr(ensemble, name, lambda random_state, constant=constant: constant())
        yield


@pytest.fixture
def boosted_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Boosted trees all the same."""
    for name, trees in TREES.items():
        monkeypatch.setattr(ensemble, name, trees)
