"""What the tests of experiments share."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _no_judgement(unjudged_module):
    """An experiment reports scores, and not what its fits say of themselves."""
