"""What all tests share: which cases run, reproducible modules, and a guard of PyTorch's global random numbers."""

import gc
import os
from collections.abc import Generator, Iterator

import pytest
import torch

from tests.covering import thinned


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer everything there is."""
    parser.addoption("--every-case", action="store_true", help="run every combination of arguments, and every study")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from what lasts: modules and 15,000 tests, which it takes a second to look through.

    What is made later is collected as ever, but less often.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 10, 10)
        gc.enable()


@pytest.hookimpl(trylast=True)  # after -k and -m: the fewer tests are asked for, the more of their cases run
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave studies out, and cases beyond those that meet every pair of values."""
    if config.getoption("every_case"):
        return
    kept = thinned(item for item in items if item.get_closest_marker("study") is None)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


@pytest.fixture(autouse=True, scope="session")
def _no_waits_for_the_disk() -> Iterator[None]:
    """Let nothing wait until it is on the disk, a tenth of the time of short runs: no test sees a power cut.

    What is to be there before what, tests/posteriors/test_store.py and tests/native/test_cache.py say.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(autouse=True)
def _reproducible_modules():
    """Seed the global generators that PyTorch's own initialisers draw from."""
    if torch.cuda.is_available():
        torch.manual_seed(0)
    else:  # torch.manual_seed keeps a trace of the stack for each GPU backend, which takes a millisecond
        torch.default_generator.manual_seed(0)


@pytest.fixture
def unjudged_fits():
    """Let fits end without a judgement, for tests that are not about it: see `tests.laws.cases.unjudged`."""
    from tests.laws.cases import unjudged

    with unjudged():
        yield


@pytest.fixture(scope="module")
def unjudged_module():
    """The same for the fits of a whole module, those of its fixtures too."""
    from tests.laws.cases import unjudged

    with unjudged():
        yield


@pytest.fixture(scope="module")
def few_resamples():
    """Let scores be resampled 100 times and not 1,000, for tests in which their intervals stand beside something."""
    from torchbayes.assess import evaluation
    from torchbayes.comparison import certainty

    every = evaluation.drawn_rows
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "drawn_rows", lambda rows_N, count, seed: every(rows_N, min(count, 100), seed))
        patch.setattr(certainty, "RESAMPLES", 100)
        yield


@pytest.fixture
def untouched_rng():
    """Fail the test when it moves the global generator."""
    before = torch.default_generator.get_state()
    yield
    assert torch.equal(torch.default_generator.get_state(), before), "the global random number generator was moved"
