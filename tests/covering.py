"""Which cases of a test run: enough of the product of its arguments to meet every pair of their values.

Most faults show under a single setting, or under two that meet [1]. A test of several arguments therefore runs cases
that meet each pair of values, not each combination of all; and pairs that several tests of a module could meet, because
they share the decorators of their arguments, are dealt out among them. Every test still meets every value.
`pytest --every-case` runs the whole products. See docs/decisions/0036-tests-meet-pairs-not-products.md.

[1] Kuhn, Kacker, Lei (2016), "Estimating t-way fault profile evolution during testing".
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from itertools import combinations
from typing import Any

import pytest

Value = tuple[Hashable, ...]  # an axis (arguments that a decorator gives together), and what they are


def thinned(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """The cases to run, of all that were collected."""
    modules: dict[str, dict[str, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        test = item.nodeid.partition("[")[0]
        modules[test.partition("::")[0]][test].append(item)
    kept: set[pytest.Item] = set()
    for tests in modules.values():
        cases = [[values_of(item) for item in of_test] for of_test in tests.values()]
        for of_test, numbers in zip(tests.values(), covering(cases), strict=True):
            kept.update(of_test[number] for number in numbers)
    return kept


def values_of(item: pytest.Item) -> tuple[Value, ...]:
    """The value of each axis of a case."""
    spec = getattr(item, "callspec", None)
    if spec is None:
        return ()
    left = dict(spec.params)
    values: list[Value] = []
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs["argnames"]
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
        # tests that share a decorator share its axis; the cases of a test share the objects that it was given
        values.append((id(mark), *(id(left.pop(name)) for name in names)))
    return (*values, *((name, id(value)) for name, value in left.items()))  # what is left are parameters of fixtures


def covering(tests: Sequence[Sequence[tuple[Value, ...]]]) -> list[list[int]]:
    """For each test the numbers of its cases that meet all its values, and its share of the pairs of values."""
    shares = _shares(tests)
    kept = []
    for cases, share in zip(tests, shares, strict=True):
        if all(len(values) < 2 for values in cases):
            kept.append(list(range(len(cases))))  # a single axis is met in full
            continue
        meets = [{*values, *(share & set(combinations(values, 2)))} for values in cases]
        kept.append(_greedy(meets))
    return kept


def some_of(first: Iterable[Any], second: Iterable[Any], *, one_in: int) -> list[Any]:
    """Return the pairs of two axes for `parametrize`: one in so many is a case that runs, the others are studies."""
    pairs = [(i + j, a, b) for (i, a), (j, b) in itertools.product(enumerate(first), enumerate(second))]
    return [pytest.param(a, b, marks=() if place % one_in == 0 else pytest.mark.study) for place, a, b in pairs]


def with_studies(cases: Iterable[tuple[Any, ...]], *axes: Iterable[Any]) -> list[Any]:
    """Return the product of the axes for `parametrize`: the cases named run, the others are studies."""
    run = list(cases)
    product = list(itertools.product(*axes))
    assert all(case in product for case in run), "a case that is not in the product"
    return [pytest.param(*case, marks=() if case in run else pytest.mark.study) for case in product]


def _greedy(meets: Sequence[set[Hashable]]) -> list[int]:
    """The numbers of sets whose union is that of all: next comes the first that adds most."""
    missing: set[Hashable] = set().union(*meets)
    kept = []
    while missing:
        best = max(range(len(meets)), key=lambda number: len(meets[number] & missing))
        kept.append(best)
        missing -= meets[best]
    return sorted(kept)


def _shares(tests: Sequence[Sequence[tuple[Value, ...]]]) -> list[set[tuple[Value, Value]]]:
    """For each test the pairs that it has to meet: those that several could meet are dealt out in turn."""
    able: dict[tuple[Value, Value], list[int]] = defaultdict(list)
    for number, cases in enumerate(tests):
        for pair in dict.fromkeys(pair for values in cases for pair in combinations(values, 2)):
            able[pair].append(number)
    shares: list[set[tuple[Value, Value]]] = [set() for _ in tests]
    turns: Counter[tuple[int, ...]] = Counter()
    for pair, numbers in able.items():
        turn = tuple(numbers)
        shares[numbers[turns[turn] % len(numbers)]].add(pair)
        turns[turn] += 1
    return shares
