"""Named parameters: bijections and their log-Jacobians against autograd, and what is refused."""

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import constraints
from torch.testing import assert_close

import torchbayes as tb

EVERY = {
    "mu": (),
    "theta": (8,),
    "matrix": (2, 3),
    "tau": constraints.positive,
    "scales": (4, constraints.positive),
    "above": (2, constraints.greater_than(2.0)),
    "below": constraints.less_than(-1.0),
    "share": constraints.unit_interval,
    "between": (3, constraints.interval(-1.0, 3.0)),
    "w": (3, constraints.simplex),
    "several": (2, 4, constraints.simplex),
    "cut": (4, tb.ordered),
    "correlations": (3, 3, constraints.corr_cholesky),
    "count": 5,
}


def vectors(size: int, *lead: int) -> Tensor:
    return torch.randn(*lead, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", EVERY)
def test_the_log_jacobian_is_that_of_autograd(name: str):
    """Of as many entries as there are free numbers: those of a simplex less the last, those below a diagonal."""
    parameters = tb.Parameters(**{name: EVERY[name]})
    x_D = vectors(parameters.layout.size)
    value = parameters.constrained(x_D)[name]
    assert value.shape == parameters.shapes[name]
    jacobian = torch.autograd.functional.jacobian(lambda x: parameters.constrained(x)[name].flatten(), x_D)
    free = torch.ones(value.shape, dtype=torch.bool)
    if name in {"w", "several"}:
        free[..., -1] = False
    if name == "correlations":
        free = free.tril(-1)
    expected = torch.linalg.slogdet(jacobian[free.flatten()])[1]  # type: ignore[index]
    assert_close(parameters.log_jacobian(x_D, {name: value}), expected, rtol=1e-10, atol=1e-10)


def test_values_lie_within_their_constraints_and_lead_back():
    parameters = tb.Parameters(**EVERY)
    x = vectors(parameters.layout.size, 3, 5)
    named = parameters.constrained(x)
    assert {name: tuple(value.shape[2:]) for name, value in named.items()} == parameters.shapes
    assert (named["tau"] > 0).all()
    assert (named["above"] > 2).all()
    assert (named["below"] < -1).all()
    assert_close(named["several"].sum(-1), torch.ones(3, 5, 2, dtype=torch.float64))
    assert (named["cut"].diff(dim=-1) > 0).all()
    assert (named["between"].abs() <= 3).all()
    back = parameters.unconstrained({name: value[0] for name, value in named.items()})
    assert_close(back, x[0], rtol=1e-9, atol=1e-9)
    one = parameters.log_jacobian(x[2, 4], parameters.constrained(x[2, 4]))
    assert_close(parameters.log_jacobian(x, named)[2, 4], one)


def test_starts_are_for_each_chain_or_for_all():
    parameters = tb.Parameters(mu=(), tau=(2, constraints.positive))
    one = parameters.unconstrained({"mu": 1, "tau": [1.0, 2.0]})
    assert_close(one, torch.tensor([1.0, 0.0, math.log(2.0)], dtype=torch.float64))
    both = parameters.unconstrained({"mu": [1.0, 3.0], "tau": torch.tensor([1.0, 2.0])})
    assert_close(both, torch.stack([one, one + torch.tensor([2.0, 0.0, 0.0]).double()]))


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        ({}, ValueError, "at least one; got none"),
        ({"a": constraints.simplex}, ValueError, r"`a`: no bijection leads to Simplex\(\) in shape \(\)"),
        ({"a": (1, constraints.simplex)}, ValueError, r"fit Simplex\(\); got shape \(1,\)"),
        ({"a": tb.ordered}, ValueError, "`a`: no bijection leads to"),
        ({"a": constraints.integer_interval(0, 3)}, ValueError, "no bijection leads to IntegerInterval"),
        ({"a": (3, 3, constraints.positive_definite)}, ValueError, "no bijection leads to PositiveDefinite"),
        ({"a": constraints.interval(2.0, 1.0)}, ValueError, "bounds that fit Interval"),
        ({"a": constraints.greater_than(torch.zeros(2))}, ValueError, "bounds that fit GreaterThan"),
        ({"a": (0,)}, ValueError, r"length 1 or more; got shape \(0,\)"),
        ({"a": constraints.greater_than}, TypeError, "got the class _GreaterThan"),
        ({"a": (constraints.positive, 2)}, TypeError, "shape that ends in one"),
        ({"a": "x"}, TypeError, "got 'x'"),
        ({"a": 2.0}, TypeError, "got 2.0"),
        ({"a": None}, TypeError, "got None"),
    ],
)
def test_what_is_no_parameter_is_refused(wrong, error, said):
    with pytest.raises(error, match=said):
        tb.Parameters(**wrong)


@pytest.mark.parametrize(
    ("values", "error", "said"),
    [
        ({"mu": 1.0}, ValueError, "must name mu, tau; got mu"),
        ({"mu": 1.0, "tau": 1.0, "z": 1.0}, ValueError, "must name mu, tau; got mu, tau, z"),
        ({"mu": 1.0, "tau": 0.0}, ValueError, "`tau` must start at finite numbers within GreaterThan"),
        ({"mu": float("nan"), "tau": 1.0}, ValueError, "`mu` must start at finite numbers"),
        ({"mu": [[1.0]], "tau": 1.0}, ValueError, r"`mu` must start at numbers of shape \(\).*got shape \(1, 1\)"),
        ({"mu": [1.0, 2.0], "tau": [1.0, 2.0, 3.0]}, ValueError, "one number of chains; got 2, 3"),
        ({"mu": "x", "tau": 1.0}, TypeError, "`mu` must be numbers; got 'x'"),
        (3, TypeError, "mapping from names to numbers; got 3"),
    ],
)
def test_starts_that_do_not_fit_are_refused(values, error, said):
    with pytest.raises(error, match=said):
        tb.Parameters(mu=(), tau=constraints.positive).unconstrained(values)
