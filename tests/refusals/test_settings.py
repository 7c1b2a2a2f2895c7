"""Nonsense among settings is refused where it is written down, by name, with the value seen."""

import pytest

from tests.refusals.helpers import arguments, check_refused, check_table
from tests.refusals.settings import SETTINGS


@pytest.mark.parametrize("name", SETTINGS)
def test_every_argument_is_in_the_table_and_the_defaults_are_good(name):
    check_table(SETTINGS[name])


@pytest.mark.parametrize(("name", "argument"), arguments(SETTINGS))
def test_nonsense_is_refused(name, argument):
    check_refused(SETTINGS[name], argument)
