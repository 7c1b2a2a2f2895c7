"""A run killed with SIGKILL at random moments and resumed equals the uninterrupted run bit for bit."""

import random
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

import torchbayes as tb
from tests.laws.cases import assert_same_tensors, everything, losses, model_of, rows_of
from tests.processes import forked
from torchbayes.posteriors.posterior import Posterior

TRIALS, METHOD = 1, tb.SWAG(members=2, epochs=12, batch_size=2, rank=4, plan="loop")


def run(directory: str | Path, callbacks: Sequence[Callable[[tb.Event], object]] = ()) -> Posterior:
    """Start or continue one fit."""
    return tb.fit(model_of(), rows_of(), METHOD, seed=11, directory=directory, resume=True, callbacks=callbacks)


def run_slowly(directory: Path) -> None:
    """The same with a checkpoint every hundredth of a second, and a pause after every epoch."""
    from torchbayes.driver import run as run_module

    run_module._EVERY = 0.01
    torch.set_num_threads(1)
    run(directory, callbacks=[lambda event: time.sleep(0.08)])


# tests/driver/test_faults.py kills a sampler within a step, and `test_interrupted_and_resumed_equals_uninterrupted` of
# methods ends their runs anywhere
@pytest.mark.slow
@pytest.mark.study
def test_killed_and_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    expected = run(tmp_path / "whole")
    context = forked()
    inputs, _ = rows_of()
    chance, kills = random.Random(0), 0
    for trial in range(TRIALS):
        directory = tmp_path / str(trial)
        for _ in range(2):
            process = context.Process(target=run_slowly, args=(directory,))
            process.start()
            try:
                _wait_for(directory / "config.json")
                time.sleep(chance.uniform(0, 1.2))
            finally:
                process.kill()
                process.join()
            kills += process.exitcode == -signal.SIGKILL
        actual = run(directory)
        assert_same_tensors(everything(actual), everything(expected))
        assert losses(directory) == losses(tmp_path / "whole")
        assert torch.equal(actual.functions(6)(inputs), expected.functions(6)(inputs))
    assert kills >= TRIALS  # else the runs were over before they were killed, and nothing was tested


def _wait_for(path: Path) -> None:
    until = time.monotonic() + 240
    while not path.exists():
        assert time.monotonic() < until, "the run did not start"
        time.sleep(0.01)
