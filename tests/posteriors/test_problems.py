"""Problems of a posterior are kept and said: by every verb that uses it, once for a line of the user's code."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import torchbayes as tb
from tests.covering import some_of
from tests.laws.cases import POSTERIORS, model_of, rows_of
from torchbayes.posteriors import problems
from torchbayes.posteriors.posterior import Posterior

SENTENCE = "chain 1 never moved"
VERBS: dict[str, Callable[[Any, Any], Any]] = {
    "predict": lambda posterior, rows: tb.predict(posterior, rows[0], draws=2),
    "stream": lambda posterior, rows: next(iter(tb.stream(posterior, [rows], draws=2))),
    "evaluate": lambda posterior, rows: tb.evaluate(posterior, rows, draws=2),
    "uncertainty": lambda posterior, rows: tb.uncertainty(posterior, rows[0], draws=2),
}
OF_GAUSSIANS: dict[str, Callable[[Any, Any], Any]] = {
    "linearised": lambda posterior, rows: tb.predict(tb.Linearised(posterior), rows[0]),
    "subnetwork": lambda posterior, rows: tb.subnetwork(posterior, 3),
}


@pytest.mark.parametrize(("make", "verb"), some_of(POSTERIORS.values(), VERBS.values(), one_in=3))
def test_every_verb_warns_of_problems_at_the_callers_line(
    make: Callable[[tb.Model, int], Posterior], verb: Callable[[Any, Any], Any]
) -> None:
    posterior, rows = make(model_of(), 2), rows_of()
    verb(posterior, rows)  # warnings are errors here
    with pytest.warns(tb.ProblemWarning, match=SENTENCE) as seen:
        verb(posterior.with_problems([SENTENCE]), rows)
    assert [warning.filename for warning in seen] == [__file__]


@pytest.mark.parametrize("verb", OF_GAUSSIANS.values(), ids=OF_GAUSSIANS.keys())
def test_verbs_of_gaussians_warn_as_well(verb: Callable[[Any, Any], Any]) -> None:
    posterior = POSTERIORS["gaussian_diagonal"](model_of(), 2).with_problems([SENTENCE])
    with pytest.warns(tb.ProblemWarning, match=SENTENCE) as seen:
        verb(posterior, rows_of())
    assert [warning.filename for warning in seen] == [__file__]


def test_tune_as_prior_and_diagnose_warn() -> None:
    model, rows = model_of(), rows_of()
    laplace = POSTERIORS["laplace"](model, 1).with_problems([SENTENCE])
    with pytest.warns(tb.ProblemWarning, match=SENTENCE):
        tuned = tb.tune(laplace)  # type: ignore[arg-type]
    assert tuned.problems == (SENTENCE,)
    with pytest.warns(tb.ProblemWarning, match=SENTENCE):
        tb.as_prior(laplace)  # type: ignore[arg-type]
    draws = POSTERIORS["draws"](model, 2).with_problems([SENTENCE])
    with pytest.warns(tb.ProblemWarning, match=SENTENCE):
        tb.diagnose(draws, rows[0])  # type: ignore[arg-type]


def test_a_line_of_code_is_told_once_however_often_it_runs() -> None:
    posterior, rows = POSTERIORS["point"](model_of(), 2).with_problems([SENTENCE]), rows_of()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for _ in range(3):
            tb.predict(posterior, rows[0])
    assert len(seen) == 1


def test_code_beside_the_package_whose_path_begins_alike_is_the_callers() -> None:
    name = f"{Path(tb.__file__).parent}_study/x.py"
    told: dict[str, Any] = {}
    exec(compile("def run(warn):\n    warn(['chain 1 never moved'])", name, "exec"), told)
    with pytest.warns(tb.ProblemWarning, match=SENTENCE) as seen:
        told["run"](problems.warn_of)
    assert [(warning.filename, warning.lineno) for warning in seen] == [(name, 2)]


def test_a_function_of_the_package_without_gradients_is_called_by_the_users_line() -> None:
    told: dict[str, Any] = {}
    exec(compile("def run(warn):\n    warn(['chain 1 never moved'])", f"{Path(tb.__file__).parent}/x.py", "exec"), told)
    with pytest.warns(tb.ProblemWarning, match=SENTENCE) as seen:
        torch.no_grad()(told["run"])(problems.warn_of)
    assert [warning.filename for warning in seen] == [__file__]


@pytest.mark.parametrize("make", POSTERIORS.values(), ids=POSTERIORS.keys())
def test_problems_are_saved_joined_and_outlive_a_calibration(
    make: Callable[[tb.Model, int], Posterior], tmp_path: Path
) -> None:
    model = model_of()
    posterior = make(model, 2).with_problems([SENTENCE]).with_problems([SENTENCE, "weights are not finite"])
    assert posterior.problems == (SENTENCE, "weights are not finite")
    assert posterior.calibrated(lambda: []).problems == posterior.problems
    loaded = tb.load(posterior.save(tmp_path / "q.safetensors"), model_of())
    assert loaded.problems == posterior.problems
    assert torch.equal(loaded.sample(4), posterior.sample(4))


def test_a_verb_that_looks_at_several_names_the_one_it_warns_of():
    posterior, rows = POSTERIORS["point"](model_of(), 2).with_problems([SENTENCE]), rows_of()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for name in ("TFB", "SWAG"):
            with problems.naming(name):
                tb.predict(posterior, rows[0])
        tb.predict(posterior, rows[0])
    said = f"this posterior should not be trusted: {SENTENCE}."
    assert [str(each.message) for each in caught] == [f"TFB: {said}", f"SWAG: {said}", said]
    assert {each.filename for each in caught} == {__file__}
