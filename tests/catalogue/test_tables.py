"""What is usual for a table where nothing else is asked for, in the shell and in the estimators."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torchbayes as tb
from torchbayes.catalogue.config import load_run, read_config
from torchbayes.catalogue.tables import SAMPLED, recommended
from torchbayes.cli import main
from torchbayes.cli.options import peek
from torchbayes.sklearn import BayesianMLPRegressor
from torchbayes.sklearn.automatic import is_automatic, method_of, prior_of

SHORT = ["--method.steps", "20", "--method.burn_in", "10"]


@pytest.fixture(autouse=True)
def _table(tmp_path, monkeypatch):
    """A table of a regression and of classes, in the working folder."""
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).normal(size=(60, 2)).tolist()
    lines = [f"{a:.4f},{b:.4f},{a + b:.4f},{'high' if a > b else 'low'}" for a, b in rows]
    Path("table.csv").write_text("\n".join(["first,second,total,kind", *lines]) + "\n")


def asked(*options: str, target: str = "total"):
    return peek(["--data", "table.csv", "--target", target, *options], single=True)


def test_time_grows_no_faster_than_rows():
    methods: Any = [recommended(rows, "regression").method for rows in (SAMPLED, SAMPLED + 1, 5 * SAMPLED + 1)]
    few, many, most = methods
    assert (type(few), few.batch_size) == (tb.SGNHT, 512)  # steps and rows of each are set
    assert [(type(m), m.members, m.epochs) for m in (many, most)] == [(tb.SWAG, 5, 10), (tb.SWAG, 2, 10)]
    assert recommended(SAMPLED, "regression").prior.name == "hierarchical"
    assert [recommended(SAMPLED + 1, task).prior.settings["gain"] for task in ("regression", "classification")] == [
        2,
        4,
    ]


@pytest.mark.parametrize(("target", "likelihood"), [("total", "heteroscedastic"), ("kind", "categorical")])
def test_a_fit_that_asks_for_nothing_takes_model_and_method_that_go_together(target, likelihood, capsys):
    assert main(["fit", "--data", "table.csv", "--target", target, *SHORT, "--directory", "run"]) == 0
    assert (
        "Chosen, as nothing was asked for: SGNHT (chains 4, steps 20, burn_in 10, batch_size 512) on the network "
        f"tabular (hidden [64, 64]); likelihood {likelihood}; prior hierarchical (scale 0.2, df 2.0, groups columns)."
    ) in capsys.readouterr().err
    written = read_config(Path("run/config.yaml"))
    model = {name: written[name] for name in ("network", "likelihood", "prior", "prior_scale")}
    assert model == {"network": "tabular", "likelihood": likelihood, "prior": "hierarchical", "prior_scale": 0.2}
    assert written["method"]["class_path"] == "torchbayes.SGNHT"
    posterior = load_run(Path("run"))[1]
    assert posterior.members == 4
    assert main(["evaluate", "run"]) == 0
    assert main(["fit", "--config", "run/config.yaml", "--directory", "again"]) == 0
    assert read_config(Path("again/config.yaml"))["method"] == written["method"]


@pytest.mark.parametrize(
    ("options", "method", "network"),
    [
        ([], None, "tabular"),
        (["--likelihood", "student_t"], None, "tabular"),
        (["--prior_scale", "0.1"], None, "tabular"),
        (["--method", "MAP"], "MAP", "mlp"),
        (["--network", "linear"], "SWAG", "linear"),
        (["--prior", "laplace"], "SWAG", "mlp"),
        (["--temperature", "0.5"], "SWAG", "mlp"),
    ],
)
def test_a_fit_that_asks_for_part_of_the_model_or_for_a_method_has_the_others_of_every_data_set(
    options, method, network
):
    seen = asked(*options)
    assert (seen.method, seen.usual.problem.network) == (method, network)
    assert seen.usual.problem.prior == ("hierarchical" if method is None else "normal")


def test_other_commands_and_images_have_no_such_choice():
    assert peek(["--data", "table.csv", "--target", "total"]).method == "SWAG"
    assert peek(["--data", "digits"], single=True).method == "SWAG"


@pytest.mark.study  # 3,000 steps; the page of the estimators runs them too, and the next test has the choice
def test_an_estimator_takes_the_same():
    rows = np.random.default_rng(1).normal(size=(40, 2))
    automatic = BayesianMLPRegressor((4,), random_state=0).fit(rows, rows[:, 0])
    assert automatic.method_ == recommended(40, "regression").method
    assert automatic.posterior_.model.prior.rules == tb.priors.Hierarchical(0.2, 2.0, "columns")
    assert automatic.score(rows, rows[:, 0]) > 0.9


def test_a_method_that_trains_to_a_mode_has_a_prior_whose_mode_is_none_of_zeros():
    of = {"num_data": 40, "task": "classification"}
    assert prior_of(automatic=True, **of) == tb.priors.Hierarchical(0.2, 2.0, "columns")
    assert prior_of(automatic=False, **of) == tb.priors.FanInNormal(4.0)
    assert prior_of(automatic=True, num_data=SAMPLED + 1, task="regression") == tb.priors.FanInNormal(2.0)
    assert [is_automatic(method) for method in ("auto", "MAP", tb.MAP())] == [True, False, False]
    assert method_of("auto", **of, encoded=False) == tb.SWAG(members=5)  # a network of which nothing is known
