"""The tracer of walks: calls are seen in order, and the walks stay as short as they are."""

import sys

import pytest
from tools.walks import WALKS, Walk

import torchbayes as tb


def test_calls_are_counted_by_file_in_the_order_of_the_first():
    with Walk() as walk:
        tb.priors.Normal(1.0)
        for _ in range(3):
            tb.member_seeds(3, 1)
    assert sys.getprofile() is None
    files = list(walk.calls)
    assert files.index("settings.py") < files.index("randomness/seeds.py")
    assert walk.calls["randomness/seeds.py"] == {"member_seeds": 3}
    assert walk.total == sum(sum(functions.values()) for functions in walk.calls.values())
    assert "| `randomness/seeds.py` | `member_seeds` |" in walk.table()
    assert " more |" in walk.table(most=1)


@pytest.mark.parametrize(
    ("name", "first", "last", "files", "calls"),
    [
        ("step", "methods/defaults.py", "driver/loop.py", 27, 125),
        ("predict", "native/process.py", "predictive/classes.py", 23, 128),
        ("fit", "cli/commands.py", "health/residuals.py", 115, 5150),
    ],
)
def test_a_walk_is_no_longer_than_it_was(name, first, last, files, calls):
    walk = WALKS[name]()
    passed = list(walk.calls)
    assert (passed[0], last in passed) == (first, True)
    assert len(passed) <= files, passed
    assert walk.total <= calls
