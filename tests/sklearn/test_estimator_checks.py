"""The checks that scikit-learn makes of estimators, without exceptions."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import torchbayes as tb
from torchbayes.sklearn import BayesianClassifier, BayesianMLPClassifier, BayesianMLPRegressor, BayesianRegressor

QUICK = tb.MAP(epochs=20, batch_size=256, optimizer=tb.Adam(0.04))
ignored = pytest.mark.filterwarnings("ignore")  # scikit-learn gives rows from which little can be learned


@ignored
@pytest.mark.usefixtures("unjudged_fits")
@parametrize_with_checks([BayesianRegressor(method=QUICK), BayesianMLPClassifier(hidden=(16,), method=QUICK)])
def test_scikit_learn(estimator, check):
    check(estimator)


@ignored
@pytest.mark.study
@parametrize_with_checks([
    *(kind() for kind in (BayesianRegressor, BayesianClassifier, BayesianMLPRegressor, BayesianMLPClassifier))
])
def test_scikit_learn_with_defaults(estimator, check):
    check(estimator)
