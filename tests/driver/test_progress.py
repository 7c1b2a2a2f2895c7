"""Progress where there is no terminal: lines a few in all, by the clock and by the parts of a run."""

import pytest
import torch
from tests.laws.cases import model_of, rows_of

import torchbayes as tb
from torchbayes.driver import progress
from torchbayes.driver.loop import Epochs, Means
from torchbayes.driver.progress import Event, Lines
from torchbayes.driver.run import Shard


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand."""
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def event(epoch):
    return Event(epoch, 100, epoch, None, None, {"nll": [0.25], "lr": 0.1})


@pytest.mark.parametrize(("seconds", "expected"), [(1.0, [5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100]), (0.04, [])])
def test_there_is_a_line_after_each_tenth_of_a_run(clock, seconds, expected):
    said = []
    lines, began, at = Lines("MAP", 0, 100, write=said.append), clock[0], []
    for epoch in range(1, 101):
        clock[0] += seconds
        before = len(said)
        lines(event(epoch))
        at += [clock[0] - began] * (len(said) - before)
    assert at == expected
    assert not said or said[2] == "  MAP, 0:00:20: 20 of 100 epochs: train NLL 0.25  lr 0.1"


def test_a_run_of_a_day_in_which_nothing_ends_is_heard_of_every_ten_minutes(clock):
    said = []
    lines = Lines("HMC", 0, 100, write=said.append)
    for _ in range(24 * 60 * 60):
        clock[0] += 1
        lines.poll()
    assert 24 * 6 <= len(said) <= 24 * 6 + 8  # waits double up to ten minutes
    assert said[-1].startswith("  HMC, ")
    assert said[-1].endswith("0 of 100 epochs")


def test_an_epoch_that_takes_long_is_told_of_before_it_ends(clock):
    said = []
    lines = Lines("SWAG × 5", 3, 60, write=said.append)
    epochs = Epochs(100, 60, Means(Shard(5)), [lines, print])
    for _ in range(40):
        clock[0] += 1.0
        epochs.poll()
    assert said == [f"  SWAG × 5, 0:00:{s:02}: 3 of 60 epochs" for s in (5, 15, 35)]


def test_methods_on_all_rows_count_iterations(capsys, clock):
    counted = []
    for method in (tb.HMC(1, 2, 0, step_size=0.1), tb.SGLD(1, 2, 0, thin=1), tb.MAP(epochs=2)):
        with progress.listeners(None, method, (1, 2)) as (bar,):
            clock[0] += 6
            bar(Event(2, 2, 2, None, None, {}))
        counted.append(capsys.readouterr().err.split()[-1])
    assert counted == ["iterations", "epochs", "epochs"]


def test_a_fit_without_a_terminal_speaks_by_the_clock_and_a_silent_one_does_not(capsys, monkeypatch):
    ticks = iter(range(0, 10**6, 3))
    monkeypatch.setattr(progress, "time", type("Clock", (), {"monotonic": staticmethod(lambda: float(next(ticks)))}))
    tb.fit(model_of(), rows_of(), tb.MAP(epochs=8, batch_size=6))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 2
    assert all(line.startswith("  MAP, 0:0") and " of 8 epochs" in line for line in lines)
    tb.fit(model_of(), rows_of(), tb.MAP(epochs=8, batch_size=6), callbacks=())
    assert capsys.readouterr().err == ""


def test_fits_are_the_same_with_and_without_lines():
    heard, silent = (tb.fit(model_of(), rows_of(), tb.MAP(epochs=2), callbacks=c) for c in (None, ()))
    assert torch.equal(heard.tensors()["weights_MD"], silent.tensors()["weights_MD"])
