"""Nonsense arguments of functions and classes are refused before anything is computed, by name, with the value."""

import pytest

from tests.refusals.helpers import arguments, check_refused, check_table
from tests.refusals.verbs import VERBS


@pytest.mark.parametrize("name", VERBS)
def test_every_argument_is_in_the_table_and_the_call_is_good(name):
    check_table(VERBS[name])


@pytest.mark.parametrize(("name", "argument"), arguments(VERBS))
def test_nonsense_is_refused(name, argument):
    check_refused(VERBS[name], argument)
