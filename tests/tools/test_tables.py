"""The benchmark of tables: scores against sums by hand, records that outlive a crash, and the tables of them."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.tables import __main__ as command
from benchmarks.tables import methods as registry
from benchmarks.tables import sets, work
from benchmarks.tables.method import classes, mixture, normal
from benchmarks.tables.methods import METHODS, Entry
from benchmarks.tables.networks import bars
from benchmarks.tables.prediction import Prediction
from benchmarks.tables.records import Job, Record, Records
from benchmarks.tables.report import Task, report
from benchmarks.tables.run import end, run
from benchmarks.tables.scores import scores
from benchmarks.tables.sets import Split
from scipy.integrate import quad
from scipy.stats import norm

from tests.covering import some_of
from tests.processes import forked
from tests.tools.jobs import scripted

MEAN_SB = np.array([[0.0, 1.0, -2.0], [0.5, -1.0, 2.0]])
SD_SB = np.array([[1.0, 0.3, 0.5], [0.2, 2.0, 0.1]])
TARGETS = np.array([0.3, 2.5, -1.7])


# --- scores ---


def reached(value: float, row: int) -> float:
    """The distribution function of a row of the mixture."""
    return float(norm.cdf(value, MEAN_SB[:, row], SD_SB[:, row]).mean())


def quantile(level: float, row: int) -> float:
    low, high = -50.0, 50.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if reached(middle, row) < level else (low, middle)
    return low


def test_scores_of_a_mixture_are_those_by_integration_and_by_hand() -> None:
    actual = scores(Prediction(mixture(MEAN_SB, SD_SB)), TARGETS)
    crps = [
        quad(lambda z, b=b, y=y: (reached(z, b) - (z >= y)) ** 2, -20, 20, points=[y], limit=500)[0]
        for b, y in enumerate(TARGETS)
    ]
    assert actual["crps"] == pytest.approx(np.mean(crps), rel=1e-6)
    density_B = norm.pdf(TARGETS, MEAN_SB, SD_SB).mean(0)
    assert actual["nll"] == pytest.approx(-np.log(density_B).mean(), rel=1e-9)
    assert actual["rmse"] == pytest.approx(np.sqrt(np.mean((MEAN_SB.mean(0) - TARGETS) ** 2)), rel=1e-9)
    for level in (0.5, 0.8, 0.95):
        low, high = (np.array([quantile(q, b) for b in range(3)]) for q in ((1 - level) / 2, (1 + level) / 2))
        below, above = np.maximum(low - TARGETS, 0), np.maximum(TARGETS - high, 0)
        expected = (high - low + 2 / (1 - level) * (below + above)).mean()
        assert actual[f"interval_{level:.0%}"] == pytest.approx(expected, rel=1e-6)
        assert actual[f"coverage_{level:.0%}"] == np.mean((low <= TARGETS) & (high >= TARGETS))
    levels = np.arange(1, 20) / 20
    observed = [np.mean([reached(y, b) <= level for b, y in enumerate(TARGETS)]) for level in levels]
    assert actual["ece"] == pytest.approx(np.abs(observed - levels).mean(), rel=1e-9)


def test_scores_of_one_normal_are_its_closed_forms() -> None:
    actual = scores(Prediction(normal(MEAN_SB[0], 0.7)), TARGETS)
    z = (TARGETS - MEAN_SB[0]) / 0.7
    crps = 0.7 * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / math.sqrt(math.pi))
    assert actual["crps"] == pytest.approx(crps.mean(), rel=1e-9)
    assert actual["nll"] == pytest.approx((0.5 * z**2 + math.log(0.7 * math.sqrt(2 * math.pi))).mean(), rel=1e-9)


def test_bars_are_scored_as_their_density() -> None:
    """A uniform law on [0, 1] of which a tenth is moved to [1, 3]."""
    actual = scores(Prediction(bars(torch.tensor([0.0, 1.0, 3.0]), torch.tensor([[9.0, 1.0]]).log())), np.array([0.25]))
    assert actual["nll"] == pytest.approx(-math.log(0.9), rel=1e-5)
    # ∫ F² below 0.25, ∫ (1 − F)² above it: 1 − F = 1 − 0.9 z up to 1, then 0.1 − 0.05 (z − 1)
    expected = 0.81 * 0.25**3 / 3 + ((1 - 0.9 * 0.25) ** 3 - 0.1**3) / 2.7 + 0.1**3 / (3 * 0.05)
    assert actual["crps"] == pytest.approx(expected, rel=1e-3)


def test_class_probabilities_are_kept_above_a_millionth() -> None:
    probs = np.array([[1.0, 0.0], [0.2, 0.8]])
    actual = scores(Prediction(classes(probs)), np.array([1, 1]))
    assert actual["nll"] == pytest.approx(-(math.log(1e-6) + math.log(0.8)) / 2, rel=1e-5)
    assert actual["accuracy"] == 0.5
    assert actual["brier"] == pytest.approx((2 + 0.08) / 2, rel=1e-5)


def test_a_prediction_that_is_not_finite_or_of_other_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="NaN or infinite"):
        scores(Prediction(mixture(MEAN_SB + math.inf, SD_SB)), TARGETS)
    with pytest.raises(ValueError, match="predictions of 3 rows and 2 targets"):
        scores(Prediction(normal(MEAN_SB[0], 1.0)), TARGETS[:2])


# --- the form of ScoringBench ---


def test_the_histogram_has_the_masses_of_the_distribution_and_nearly_its_scores() -> None:
    actual = Prediction(mixture(MEAN_SB, SD_SB))
    assert actual.probas.shape == actual.bin_midpoints.shape == (3, actual.bin_edges.shape[1] - 1)
    assert actual.probas.sum(1) == pytest.approx(1)
    for row in range(3):
        masses = np.diff([reached(edge, row) for edge in actual.bin_edges[row]])
        assert actual.probas[row] == pytest.approx(masses, abs=2e-6)
    # one bin of half a per cent spans the gap between the narrow parts of the last row
    assert (actual.probas * actual.bin_midpoints).sum(1) == pytest.approx(actual.mean, abs=5e-3)
    assert actual.mean == pytest.approx(MEAN_SB.mean(0))


@pytest.mark.parametrize("newer", [False, True])
def test_the_wrapper_for_scoring_bench_gives_its_forms(newer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.tables import scoringbench

    class Wrapped:
        def _set_train_range(self, y: Any) -> None:
            self._y_train_range = (float(np.min(y)), float(np.max(y)))

    class Older:
        def __init__(self, *parts: Any) -> None:
            self.parts = parts

    class Newer:
        @classmethod
        def from_histogram(cls, edges: Any, masses: Any, mean: Any, *, train_range: Any) -> Any:
            return types.SimpleNamespace(parts=(masses, edges, None, mean), train_range=train_range)

    name = "scoringbench.univariate.wrappers.base" if newer else "scoringbench.wrappers.base"
    module = types.SimpleNamespace(ProbabilisticWrapper=Wrapped, DistributionPrediction=Newer if newer else Older)
    monkeypatch.setitem(sys.modules, name, module)
    if not newer:
        monkeypatch.setitem(sys.modules, "scoringbench.univariate", None)  # raises if it is imported
        monkeypatch.setattr(scoringbench, "_BASES", scoringbench._BASES[1:])
    monkeypatch.setattr(scoringbench, "TorchBayes", METHODS["linear"].make)
    model = scoringbench.model()
    rows = np.random.default_rng(0).normal(size=(50, 2))
    actual = model.fit(rows, rows[:, 0] + 5).predict_distribution(rows[:3])
    masses, edges, _, mean = actual.parts
    assert masses.sum(1) == pytest.approx(1)
    assert mean == pytest.approx(rows[:3, 0] + 5, abs=0.05)
    assert model.predict(rows[:3]) == pytest.approx(mean)
    assert (np.diff(edges, axis=1) > 0).all()
    if newer:
        assert actual.train_range == (rows[:, 0].min() + 5, rows[:, 0].max() + 5)


# --- methods ---


def small(task: str) -> Split:
    random = np.random.default_rng(0)
    rows = random.normal(size=(120, 3))
    targets = rows[:, 0] + 0.1 * random.normal(size=120) if task == "regression" else (rows[:, 0] > 0).astype(int)
    return Split((rows[:90], targets[:90]), (rows[90:], targets[90:]), 0 if task == "regression" else 2, 90)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # 90 rows say little of a kernel
@pytest.mark.parametrize(
    ("name", "task"),
    some_of(
        ["linear", "forest", "calibrated_forest", "hist_boosting", "gaussian_process"],
        ["regression", "classification"],
        one_in=2,
    ),
)
def test_methods_beat_the_constant_where_there_is_something_to_learn(name: str, task: str) -> None:
    rows, actual = small(task), {}
    for method in (name, "constant"):
        made = METHODS[method].make(task == "regression", 0).fit(*rows.train)
        actual[method] = scores(made.predict_distribution(rows.test[0]), rows.test[1])
        assert made.predict(rows.test[0]).shape == rows.test[1].shape
    assert actual[name]["nll"] < actual["constant"]["nll"] - 0.1
    base = actual["constant"]["nll"]
    targets, learned = rows.test[1], rows.train[1]
    if task == "regression":
        assert base == pytest.approx(-norm.logpdf(targets, learned.mean(), learned.std()).mean())
    else:
        shares = np.bincount(learned) / len(learned)
        assert base == pytest.approx(-np.log(shares[targets]).mean())


@pytest.mark.parametrize(("name", "entry"), METHODS.items())
def test_every_method_names_what_it_needs(name: str, entry: Entry) -> None:
    if entry.module != "sklearn":
        listed = Path(registry.__file__).with_name("peers.txt").read_text()
        assert entry.package in listed or name == "tabpfn"
    assert set(sets.TUNED) <= set(sets.SETS)


# --- records ---


def split_by_hand(name: str, number: int) -> Split:
    return small("regression" if name in sets.REGRESSIONS else "classification")


@pytest.mark.slow
def test_a_crash_is_recorded_and_a_rerun_does_only_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, preloaded = forked(), []  # the one of all tests: it takes seconds to begin
    monkeypatch.setattr(server, "set_forkserver_preload", preloaded.append)
    monkeypatch.setattr(multiprocessing, "get_context", {"forkserver": server}.__getitem__)
    records, said = Records(tmp_path), []
    jobs = [Job("yacht", 0, "constant"), Job("yacht", 0, "catboost"), Job("glass", 0, "linear")]
    run(jobs, records, scripted, workers=2, say=said.append)
    actual = {(record.set, record.method): record for record in records}
    assert actual["yacht", "catboost"].failed == "the process died; exit status -9"
    assert actual["yacht", "constant"].scores == actual["glass", "linear"].scores == {"nll": 0.5}
    run([*jobs, Job("yacht", 1, "constant")], records, scripted, say=said.append)
    assert said[0].startswith("3 jobs")
    assert said[4].startswith("1 jobs")
    assert len(list(records)) == 4
    assert preloaded == [["tests.tools.jobs"]] * 2


def test_no_job_is_begun_when_the_minutes_are_over(tmp_path: Path) -> None:
    records, said = Records(tmp_path), []
    run([Job("yacht", 0, "constant"), Job("glass", 0, "constant")], records, scripted, minutes=0.0, say=said.append)
    assert said[1:] == ["0 minutes are over; 2 jobs are left for the next run."]
    assert not list(records)


class Endless:
    """A process that runs until it is killed."""

    exitcode = None

    def is_alive(self) -> bool:
        return self.exitcode is None

    def kill(self) -> None:
        self.exitcode = -9

    def join(self) -> None:
        assert self.exitcode == -9


def test_what_takes_too_long_is_ended_and_recorded_and_a_record_that_is_there_stays(tmp_path: Path) -> None:
    records: Any = Records(tmp_path)
    end(Job("yacht", 0, "forest"), Endless(), 300.5, records)  # type: ignore[arg-type]
    records.add(record("yacht", "linear", 1.0))
    end(Job("yacht", 0, "linear"), Endless(), 300.5, records)  # type: ignore[arg-type]
    by_method = {each.method: each for each in records}
    assert by_method["forest"].failed == "it took too long and was ended"
    assert by_method["forest"].wall == 300.5
    assert by_method["linear"].scores == {"nll": 1.0}


def test_a_method_that_fails_is_recorded_with_its_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(METHODS["constant"].make):
        def fit(self, X: Any, y: Any) -> Any:
            raise RuntimeError("no luck")

    monkeypatch.setitem(METHODS, "constant", Entry(Failing))
    monkeypatch.setattr(work, "split", split_by_hand)
    work.work(Job("yacht", 0, "constant"), tmp_path)
    (record,) = Records(tmp_path)
    assert (record.failed, record.scores) == ("RuntimeError: no luck", {})


def test_records_of_another_protocol_are_not_mixed(tmp_path: Path) -> None:
    Records(tmp_path)
    (tmp_path / "protocol.json").write_text('{"version": 0}')
    with pytest.raises(ValueError, match="another protocol"):
        Records(tmp_path)


def test_the_command_says_what_is_missing_and_writes_both_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(METHODS, "ngboost", Entry(METHODS["constant"].make, "no_such_module", "no-such-package"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(command, "run", in_this_process)
    monkeypatch.setattr(work, "split", split_by_hand)
    arguments = "--sets yacht glass --methods constant linear ngboost --splits 2 --results"
    monkeypatch.setattr(sys, "argv", ["tables", *arguments.split(), str(tmp_path)])
    command.main()
    assert "ngboost is left out: no-such-package is not installed" in capsys.readouterr().out
    numbers = json.loads((tmp_path / "tables.json").read_text())
    assert numbers["regression"]["linear"]["rank"] == {"all": 1.0, "reported": None}
    assert numbers["classification"]["constant"]["rank"]["all"] == 2.0
    assert "| linear |" in (tmp_path / "tables.md").read_text()
    actual = {(record.set, record.split, record.method): record for record in Records(tmp_path)}
    assert actual["glass", 1, "linear"].scores["accuracy"] > 0.9
    assert actual["yacht", 0, "constant"].scores["nll"] > 0
    assert {record.rows for record in actual.values()} == {90}


def in_this_process(jobs: Any, records: Records, work_of: Callable[..., None], **_: Any) -> None:
    for job in jobs:
        work_of(job, records.folder)


# --- tables ---


def record(name: str, method: str, nll: float | None, split: int = 0, **more: float) -> Record:
    return Record(name, split, method, {} if nll is None else {"nll": nll, **more}, 1.0, 2.0, 10, "" if nll else "no")


RECORDS = [
    record("boston", "torchbayes", 0.1),
    record("boston", "torchbayes", 0.3, split=1),
    record("boston", "forest", 0.4),
    record("boston", "forest", 9.0, split=2),  # of which the others have no record
    record("boston", "constant", 1.4),
    record("yacht", "torchbayes", 1.5),
    record("yacht", "forest", None),
    record("yacht", "constant", 1.4),
    record("energy", "torchbayes", 0.3),  # a set that not every method has
]
NAMES = ("torchbayes", "constant", "forest")


def test_ranks_are_of_means_over_shared_splits_and_sets_and_failures_are_last() -> None:
    task = Task.of(RECORDS, NAMES, tuple(sets.REGRESSIONS))
    assert task.sets == ("boston", "yacht")
    np.testing.assert_array_equal(task.nll, [[0.1, 1.5], [1.4, 1.4], [0.4, math.inf]])
    np.testing.assert_array_equal(task.ranks(), [1.5, 2.0, 2.5])
    np.testing.assert_array_equal(task.ranks(reported=True), [1.0, 3.0, 2.0])
    assert task.worse_than_constant("torchbayes") == ["yacht"]
    assert [r.set for r in task.failures("forest")] == ["yacht"]


def test_the_report_says_where_the_constant_is_not_beaten_and_what_failed(tmp_path: Path) -> None:
    text = report(RECORDS, NAMES, tmp_path)
    assert "Better than the constant: not on every set (boston yes, yacht no)." in text
    assert "- yacht, split 0, forest: no" in text
    assert "| constant | 1 of 2 |" in text  # better on one of two
    assert text == (tmp_path / "tables.md").read_text()
    numbers = json.loads((tmp_path / "tables.json").read_text())
    assert numbers["regression"]["forest"]["sets"]["yacht"]["nll"] is None
    assert numbers["seconds"]["torchbayes"] == 4.0


# --- sets ---


@pytest.mark.parametrize("name", ["diabetes", "breast_cancer", "digits", "wine_cultivars"])
def test_splits_differ_share_no_rows_and_are_standardised_by_training_rows(name: str) -> None:
    first, again, other = (sets.split(name, number) for number in (0, 0, 1))
    np.testing.assert_array_equal(first.test[0], again.test[0])
    assert first.test[0].shape == other.test[0].shape
    assert not np.array_equal(first.test[0], other.test[0])
    assert len(first.train[1]) <= sets.TRAIN
    if name == "diabetes":
        assert (first.classes, first.available) == (0, 353)
        assert first.train[1].mean() == pytest.approx(0, abs=1e-12)
        assert first.train[1].std() == pytest.approx(1)
        assert not {row.tobytes() for row in first.train[0]} & {row.tobytes() for row in first.test[0]}
    else:
        shares = [np.bincount(part[1]) / len(part[1]) for part in (first.train, first.test)]
        assert shares[0] == pytest.approx(shares[1], abs=0.03)


@pytest.mark.skipif("TORCHBAYES_DATA" not in os.environ, reason="TORCHBAYES_DATA names no folder of data sets")
@pytest.mark.parametrize("name", ["protein", "bikesharing", "airfoil", "wine_red"])
def test_large_sets_are_drawn_down_to_the_stated_rows(name: str) -> None:
    actual = sets.split(name, 4)
    assert len(actual.train[1]) == min(sets.TRAIN, actual.available)
    assert len(actual.test[1]) <= sets.TEST
    assert np.isfinite(actual.train[0]).all()
