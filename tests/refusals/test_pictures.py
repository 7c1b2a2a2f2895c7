"""Nonsense given to pictures is refused, by name, with the value seen."""

import pytest

from tests.refusals.helpers import arguments, check_refused, check_table
from tests.refusals.pictures import PICTURES


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Files go to a folder of their own."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", PICTURES)
def test_every_argument_is_in_the_table_and_the_call_is_good(name):
    check_table(PICTURES[name])


@pytest.mark.parametrize(("name", "argument"), arguments(PICTURES))
def test_nonsense_is_refused(name, argument):
    check_refused(PICTURES[name], argument)
