"""Nonsense given to the rooms is refused, by name, with the value seen."""

import pytest

from tests.refusals.helpers import arguments, check_refused, check_table
from tests.refusals.rooms import ROOMS


@pytest.mark.parametrize("name", ROOMS)
def test_every_argument_is_in_the_table_and_the_call_is_good(name):
    check_table(ROOMS[name])


@pytest.mark.parametrize(("name", "argument"), arguments(ROOMS))
def test_nonsense_is_refused(name, argument):
    check_refused(ROOMS[name], argument)
