"""Estimators of scikit-learn: Bayesian networks for tables.

from torchbayes.sklearn import BayesianRegressor

regressor = BayesianRegressor().fit(X, y)
mean, std = regressor.predict(X_new, return_std=True)
"""

from torchbayes.sklearn.classification import BayesianClassifier
from torchbayes.sklearn.intervals import Split
from torchbayes.sklearn.perceptrons import BayesianMLPClassifier, BayesianMLPRegressor
from torchbayes.sklearn.regression import BayesianRegressor
from torchbayes.sklearn.saving import load, save

__all__ = [
    "BayesianClassifier",
    "BayesianMLPClassifier",
    "BayesianMLPRegressor",
    "BayesianRegressor",
    "Split",
    "load",
    "save",
]
