"""The code of the page on other tools runs, each block where its package is installed."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import torchbayes as tb

PAGE = Path(__file__).parents[2] / "docs" / "ecosystem.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python3?([^\n]*)\n(.*?)```", TEXT, re.DOTALL)
CODE = [code for title, code in BLOCKS if "title=" not in title]


def with_word(word: str) -> str:
    """The block in which a word stands."""
    (code,) = [code for code in CODE if word in code]
    return code


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """What the first block of the page defines."""
    scope: dict[str, Any] = {"__name__": "page"}
    run(CODE[0], scope)
    return scope


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_TRACKING_URI": (tmp_path / "mlruns").as_uri(),
        "DO_NOT_TRACK": "true",
        "WANDB_SILENT": "true",
        "WANDB_ERROR_REPORTING": "false",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)


def run(code: str, scope: dict[str, Any]) -> dict[str, Any]:
    exec(compile(code, str(PAGE), "exec"), scope)
    return scope


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = [package for package in packages if find_spec(package) is None]
    return pytest.mark.skipif(bool(missing), reason=f"without {', '.join(missing)}")


def test_every_block_is_run_here() -> None:
    words = ("SummaryWriter", "import mlflow", "import wandb", "def show", "import optuna", "NeuralNet", "GridSearchCV")
    words = (*words, "module.compile", "import arviz", "tb.hub.save")
    assert sorted([CODE[0], *map(with_word, words)]) == sorted(CODE)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("word", "left"),
    [
        pytest.param("SummaryWriter", "runs/swag/events*", marks=needs("tensorboard")),
        pytest.param("import mlflow", "mlruns/0/*/metrics/test/accuracy", marks=needs("mlflow")),
        pytest.param("import wandb", "wandb/offline-run*/*.wandb", marks=[needs("wandb"), pytest.mark.slow]),
    ],
)
def test_trackers(word: str, left: str, names: dict[str, Any], tmp_path: Path) -> None:
    run(with_word(word), dict(names))
    assert len([*tmp_path.glob(left)]) == 1


@pytest.mark.filterwarnings("ignore")
def test_optuna_searches_and_prunes(names: dict[str, Any]) -> None:
    optuna: Any = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    actual = run(with_word("import optuna"), dict(names))
    study, objective = actual["study"], actual["objective"]
    assert len(study.trials) == 5
    assert study.best_value == min(trial.value for trial in study.trials if trial.value is not None)
    again = objective(optuna.trial.FixedTrial(study.best_params))
    assert again == pytest.approx(study.best_value)


@pytest.mark.filterwarnings("ignore")
def test_a_pruned_trial_ends_after_an_epoch(names: dict[str, Any]) -> None:
    optuna: Any = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    objective = run(with_word("import optuna"), dict(names))["objective"]

    class Every(optuna.pruners.BasePruner):
        def prune(self, study: Any, trial: Any) -> bool:
            return True

    study = optuna.create_study(pruner=Every())
    study.optimize(objective, n_trials=1)
    (trial,) = study.trials
    assert trial.state == optuna.trial.TrialState.PRUNED
    assert len(trial.intermediate_values) == 1


@pytest.mark.slow
@needs("hydra")
def test_hydra_runs_the_script(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text(re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)[0])
    (script,) = [code for title, code in BLOCKS if 'title="train.py"' in title]
    (tmp_path / "train.py").write_text(script)
    folder = tmp_path / "out"
    call = [sys.executable, "-W", "ignore", "train.py", "method.members=3", f"hydra.run.dir={folder}"]
    actual = subprocess.run(call, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "members 3" in actual.stdout
    assert (folder / "run" / "posterior.safetensors").exists()


@needs("skorch")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_laplace_begins_where_skorch_ended(names: dict[str, Any]) -> None:
    actual = run(with_word("NeuralNet"), dict(names))  # without a ProblemWarning: the end is a mode of the model
    weights = torch.cat([parameter.detach().flatten() for parameter in actual["net"].module_.parameters()])
    torch.testing.assert_close(actual["laplace"].mean_MD[0], weights)
    with pytest.raises(TypeError, match=r"got an object of type NeuralNetClassifier\. Give its `module_`"):
        tb.Model(actual["net"], actual["likelihood"])


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")
def test_a_search_over_network_and_method(names: dict[str, Any]) -> None:
    search = run(with_word("GridSearchCV"), dict(names))["search"]
    assert set(search.best_params_) == {"network__width", "method__optimizer__lr"}
    width = search.best_params_["network__width"]
    assert search.best_estimator_.posterior_.model.layout.shapes["0.weight"][0] == width


@needs("arviz")
@pytest.mark.filterwarnings("ignore:Passing a dict or None as alias_mapping", "ignore::torchbayes.ProblemWarning")
@pytest.mark.filterwarnings("ignore:.*effective sample size.*", "ignore:Estimated shape parameter")
def test_arviz_plots_and_compares(names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    import matplotlib.pyplot as plt

    tree = run(with_word("import arviz"), dict(names))["tree"]
    groups = re.findall(r"^\| (`.*?) \|", TEXT, re.MULTILINE)
    assert {group for row in groups for group in re.findall(r"`(\w+)`", row)} == {*tree.groups()}
    (stats,) = re.findall(r"\| `sample_stats` \| (.*) \|", TEXT)
    assert {*re.findall(r"`(\w+)`", stats)} <= {*tree.sample_stats}
    assert "elpd_loo" in capsys.readouterr().out
    plt.close("all")


def test_the_hub_and_callbacks_and_compiled_modules(
    names: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    scope = run(with_word("def show"), dict(names))
    run(with_word("tb.hub.save"), scope)
    said = capsys.readouterr().out
    assert "fit/nll/mean" in said
    assert said.endswith("README.md config.json posterior.safetensors\nTrue\n")
    run(with_word("module.compile"), scope)
    inputs = scope["inputs"][:7]
    expected = tb.predict(scope["posterior"], inputs, draws=10).probs
    for compiled in (scope["module"], scope["whole"]):
        torch.testing.assert_close(compiled(inputs)["probs"], expected)
