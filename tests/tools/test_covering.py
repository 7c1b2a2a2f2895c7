"""The choice of cases: every value in every test, every pair of values in a module."""

from __future__ import annotations

import itertools
from itertools import combinations

import pytest

from tests.covering import covering, some_of

pytest_plugins = ["pytester"]


def product(**axes: int) -> list[tuple[tuple[str, int], ...]]:
    """All cases of a test with axes of so many values."""
    return list(itertools.product(*([(name, value) for value in range(count)] for name, count in axes.items())))


def pairs(cases: list[tuple[tuple[str, int], ...]]) -> set[object]:
    return {pair for values in cases for pair in combinations(values, 2)}


@pytest.mark.parametrize("axes", [{"a": 4, "b": 3, "c": 2}, {"a": 5, "b": 5, "c": 5, "d": 2}, {"a": 7, "b": 3}])
def test_a_test_alone_meets_every_pair(axes: dict[str, int]) -> None:
    cases = product(**axes)
    (kept,) = covering([cases])
    chosen = [cases[number] for number in kept]
    assert pairs(chosen) == pairs(cases)
    largest, second = sorted(axes.values())[-2:][::-1]
    assert largest * second <= len(chosen) <= min(len(cases), 2 * largest * second)


def test_tests_that_share_axes_share_the_pairs_and_each_meets_every_value() -> None:
    cases = product(method=20, network=6)
    kept = covering([cases] * 5)
    chosen = [[cases[number] for number in numbers] for numbers in kept]
    assert set().union(*map(pairs, chosen)) == pairs(cases)
    for of_test in chosen:
        assert {value for values in of_test for value in values} == {value for values in cases for value in values}
        assert len(of_test) <= 30


def test_an_axis_alone_is_met_in_full() -> None:
    assert covering([product(a=9), [()]]) == [list(range(9)), [0]]


def test_cases_that_are_run(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("""
        import pytest
        from tests.covering import thinned

        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(items):
            kept = thinned(items)
            items[:] = [item for item in items if item in kept]
    """)
    pytester.makepyfile("""
        import pytest

        @pytest.fixture(params=[10, 20])
        def f(request):
            return request.param

        @pytest.mark.parametrize("a", [[1], [2], [3]])
        @pytest.mark.parametrize(("b", "c"), [(1, "x"), (2, "x")])
        @pytest.mark.parametrize("d", [None, 1.5])
        def test_four(a, b, c, d, f):
            pass

        def test_plain():
            pass
    """)
    result = pytester.runpytest("-q")
    assert 1 + 6 <= result.parseoutcomes()["passed"] <= 1 + 8  # of 24: 3 × 2 is the largest product of two axes
    result.assert_outcomes(passed=result.parseoutcomes()["passed"])


def test_some_of_the_pairs_meet_every_value() -> None:
    params = some_of("abcdef", range(4), one_in=3)
    assert len(params) == 24
    run = [param.values for param in params if not param.marks]
    assert len(run) == 8
    assert {a for a, _ in run} == set("abcdef")
    assert {b for _, b in run} == set(range(4))
