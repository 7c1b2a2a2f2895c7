"""Trackers get the numbers of the log, at its steps; real ones where they are installed."""

import io
import math
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchbayes as tb

INPUTS = torch.linspace(-1, 1, 32).unsqueeze(1)
DATA = INPUTS, INPUTS + 0.1 * torch.sin(9 * INPUTS)


def model() -> tb.Model:
    torch.manual_seed(0)
    return tb.Model(nn.Linear(1, 1), tb.likelihoods.Gaussian(0.3))


def fitted(*callbacks: Any, members: int = 2, epochs: int = 40) -> tuple[tb.Posterior, list[dict[str, Any]]]:
    """A posterior, and the lines of the log of its run."""
    lines: list[dict[str, Any]] = []
    method = tb.MAP(members=members, epochs=epochs, batch_size=8, optimizer=tb.Adam(0.05))
    keep = [lambda event: lines.append(event.record) and None, *callbacks]
    return tb.fit(model(), DATA, method, callbacks=keep), lines


class Run:
    """What `wandb.init()` returns, as far as it is used."""

    def __init__(self) -> None:
        self.logged: list[dict[str, float]] = []
        self.defined: list[tuple[str, str]] = []

    def define_metric(self, name: str, *, step_metric: str) -> None:
        self.defined.append((name, step_metric))

    def log(self, numbers: dict[str, float]) -> None:
        self.logged.append(numbers)


class Mlflow:
    """The module mlflow, as far as it is used."""

    def __init__(self) -> None:
        self.logged: list[tuple[dict[str, float], int]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        assert step is not None
        self.logged.append((metrics, step))


class Writer:
    """A SummaryWriter, as far as it is used."""

    def __init__(self) -> None:
        self.logged: dict[tuple[str, int], float] = {}

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.logged[tag, global_step] = scalar_value


def test_an_event_is_flat_numbers() -> None:
    record = {"epoch": 2, "step": 8, "nll": [1.0, 3.0], "lr": 0.1, "fault": "ValueError", "only": [5.0], "none": []}
    numbers = tb.Event(2, 3, 8, None, None, record).numbers()
    assert numbers == {"epoch": 2, "step": 8, "nll/0": 1.0, "nll/1": 3.0, "nll/mean": 2.0, "lr": 0.1, "only": 5.0}


def test_every_kind_gets_the_same_numbers() -> None:
    run, mlflow, writer, called = Run(), Mlflow(), Writer(), []
    posterior, lines = fitted(*map(tb.Tracker, (run, mlflow, writer, lambda *given: called.append(given))), epochs=4)
    assert [line["step"] for line in lines] == [4, 8, 12, 16]
    assert [step for _, step in mlflow.logged] == [4, 8, 12, 16]
    for line, (numbers, step) in zip(lines, mlflow.logged, strict=True):
        assert numbers["fit/nll/0"] == line["nll"][0]
        assert numbers["fit/nll/mean"] == pytest.approx(sum(line["nll"]) / 2)
        assert {name: writer.logged[name, step] for name in numbers} == numbers
    assert called == mlflow.logged
    assert run.defined == [("fit/*", "fit/step")]
    assert run.logged == [{**numbers, "fit/step": step} for numbers, step in mlflow.logged]

    tracker, evaluation = tb.Tracker(mlflow), tb.evaluate(posterior, DATA)
    tracker.log(evaluation, step=7)
    tracker.log({"accuracy": 1}, name="held_out")
    expected = {f"test/{name}": value for name, value in evaluation.metrics.items()}
    assert mlflow.logged[-2:] == [(expected, 7), ({"held_out/accuracy": 1.0}, 0)]


def test_steps_of_a_later_run_count_on() -> None:
    tracker = tb.Tracker(mlflow := Mlflow())
    for _ in range(2):
        fitted(tracker, epochs=4)
    assert [step for _, step in mlflow.logged] == [4, 8, 12, 16, 20, 24, 28, 32]
    assert [numbers["fit/step"] for numbers, _ in mlflow.logged] == [4, 8, 12, 16] * 2
    resumed = tb.Tracker(fresh := Mlflow())
    resumed(tb.Event(5, 9, 500, None, None, {"step": 500}))
    assert fresh.logged[0][1] == 500


def test_samplers_send_what_each_step_reports() -> None:
    mlflow = Mlflow()
    chains = tb.sample(
        lambda w: -0.5 * w.square().sum(),
        tb.HMC(chains=2, steps=12, burn_in=2, trajectory=1.0),
        torch.zeros(3),
        callbacks=[tb.Tracker(mlflow, name="hmc")],
    )
    acceptance = [numbers["hmc/acceptance/1"] for numbers, _ in mlflow.logged]
    assert acceptance == chains.numbers["acceptance"][1].tolist()


def test_a_tracker_that_fails_costs_numbers_and_not_the_fit() -> None:
    def offline(numbers: dict[str, float], step: int) -> None:
        raise ConnectionError("no route to host")

    tracker = tb.Tracker(offline)
    with pytest.warns(UserWarning, match=r"offline raised ConnectionError \(no route to host\).* the run goes on"):
        posterior, _ = fitted(tracker, epochs=40)
    with pytest.raises(ConnectionError):
        tracker.log(tb.evaluate(posterior, DATA))


@pytest.mark.parametrize("tracker", [None, "runs", Run, object(), 3])
def test_other_things_are_refused(tracker: Any) -> None:
    with pytest.raises(TypeError, match=r"`tracker` must be a SummaryWriter, the module mlflow"):
        tb.Tracker(tracker)


@pytest.mark.parametrize("metrics", [None, 3, [0.5], {"nll": "low"}, {1: 2.0}, torch.zeros(2)])
def test_other_metrics_are_refused(metrics: Any) -> None:
    with pytest.raises(TypeError, match="`metrics` must be"):
        tb.Tracker(print).log(metrics)


def test_a_bar_beside_a_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr("torchbayes.driver.progress.FIRST", 0.0)
    mlflow = Mlflow()
    fitted(tb.Progress(), tb.Tracker(mlflow))
    assert "MAP × 2" in shown.getvalue()
    assert len(mlflow.logged) == 40
    shown.truncate(0)
    fitted(tb.Tracker(mlflow))
    assert shown.getvalue().strip("\0") == ""


def test_tensorboard_reads_them(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.utils.tensorboard import SummaryWriter

        reading: Any = import_module("tensorboard.backend.event_processing.event_accumulator")
    with SummaryWriter(tmp_path) as writer:
        tracker = tb.Tracker(writer)
        posterior, lines = fitted(tracker)
        tracker.log(evaluation := tb.evaluate(posterior, DATA))
    read = reading.EventAccumulator(str(tmp_path)).Reload()
    actual = [(event.step, event.value) for event in read.Scalars("fit/nll/1")]
    assert actual == [(line["step"], pytest.approx(line["nll"][1])) for line in lines]
    assert read.Scalars("test/nll")[0].value == pytest.approx(evaluation.metrics["nll"])


@pytest.mark.filterwarnings("ignore")
def test_mlflow_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("DO_NOT_TRACK", "true")
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as run:
        tracker = tb.Tracker(mlflow)
        posterior, lines = fitted(tracker)
        tracker.log(evaluation := tb.evaluate(posterior, DATA))
    client = mlflow.MlflowClient()
    actual = [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, "fit/nll/1")]
    assert actual == [(line["step"], line["nll"][1]) for line in lines]
    logged = client.get_run(run.info.run_id).data.metrics
    assert math.isclose(logged["test/nll"], evaluation.metrics["nll"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases_takes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    wandb = pytest.importorskip("wandb")
    with wandb.init(mode="offline", dir=tmp_path, project="torchbayes") as run:
        tracker = tb.Tracker(run)
        posterior, lines = fitted(tracker)
        tracker.log(evaluation := tb.evaluate(posterior, DATA))
        assert run.summary["fit/nll/1"] == pytest.approx(lines[-1]["nll"][1])
        assert run.summary["test/nll"] == pytest.approx(evaluation.metrics["nll"])
