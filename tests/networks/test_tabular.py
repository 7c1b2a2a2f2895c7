import copy
import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

import torchbayes as tb
from torchbayes import networks
from torchbayes.networks import ColumnEncoding, tabular

NAN = math.nan


def rows(count: int = 60, columns: int = 3, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(count, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def by_hand(training: np.ndarray, new: float, bins: int) -> tuple[float, list[float]]:
    """The formulas of one column without missing values, number by number."""
    q0, q25, median, q75, q100 = np.quantile(training, [0, 0.25, 0.5, 0.75, 1])
    z = (new - median) / (q75 - q25) if q75 > q25 else 2 * (new - median) / (q100 - q0)
    knots = sorted(set(np.quantile(training, np.linspace(0, 1, bins + 1)).tolist()))
    steps = [min(max((new - a) / (b - a), 0), 1) for a, b in pairwise(knots)]
    return z / math.sqrt(1 + (z / 3) ** 2), steps


def test_features_are_the_formulas():
    training, new = rows(), rows(5, seed=1) * 3
    encoding = ColumnEncoding.fit(training, bins=4)
    features = encoding(new)
    assert features.shape == (5, encoding.features) == (5, 3 + 3 * 4)
    for row in range(5):
        for column in range(3):
            clipped, steps = by_hand(training[:, column].numpy(), new[row, column].item(), 4)
            assert features[row, column].item() == pytest.approx(clipped, abs=1e-14)
            actual = features[row, 3 + 4 * column : 7 + 4 * column]
            torch.testing.assert_close(actual, torch.tensor(steps, dtype=torch.float64), atol=1e-12, rtol=0)


def test_smooth_clipping_has_the_published_values():
    # formula x/√(1 + (x/3)²) of RealMLP (Holzmüller et al. 2024), whose values these are
    encoding = tabular(1, 1)[1].double()
    values = encoding(torch.tensor([[0.5], [1.0], [3.0], [10.0], [1e30], [-1e30]], dtype=torch.float64)).flatten()
    assert values.tolist() == pytest.approx([0.493197, 0.948683, 2.121320, 2.873479, 3.0, -3.0], abs=1e-6)


def test_encoding_agrees_with_that_of_rtdl_between_the_knots():
    # PiecewiseLinearEncoding of rtdl_num_embeddings 0.0.12 at bins [0, 1, 3, 7] and x = .5, 2, 6
    knots = torch.tensor([0.0, 1.0, 3.0, 7.0], dtype=torch.float64)
    column = torch.zeros(3, dtype=torch.int64)
    encoding = ColumnEncoding(
        torch.zeros(1).double(),
        torch.ones(1).double(),
        column=column,
        lower=knots[:-1],
        width=knots.diff(),
        marked=column[:0],
    )
    expected = [[0.5, 0.0, 0.0], [1.0, 0.5, 0.0], [1.0, 1.0, 0.75]]
    assert encoding(torch.tensor([[0.5], [2.0], [6.0]], dtype=torch.float64))[:, 1:].tolist() == expected


def test_a_linear_layer_behind_the_encoding_is_any_piecewise_linear_function():
    training = rows(200, 1)
    features = ColumnEncoding.fit(training, bins=8)(training)[:, 1:]
    knots = np.quantile(training.numpy(), np.linspace(0, 1, 9))
    heights = np.array([0.0, 3.0, -1.0, 2.0, 2.0, -5.0, 0.5, 4.0, 1.0])
    target = torch.from_numpy(np.interp(training.numpy(), knots, heights))
    design = torch.cat([features, torch.ones(200, 1, dtype=torch.float64)], dim=1)
    solution = torch.linalg.lstsq(design, target).solution
    torch.testing.assert_close(design @ solution, target, atol=1e-10, rtol=0)
    torch.testing.assert_close(solution[:-1, 0], torch.from_numpy(np.diff(heights)), atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    ("values", "bins", "expected"),
    [
        ([5.0] * 8, 4, 0),  # constant
        ([1e9 + 1e-4] * 4 + [1e9] * 4, 4, 0),  # constant up to rounding, 1e-13 of the size
        ([0.0, 1.0] * 4, 4, 0),  # two values
        ([0.0, 1.0, 2.0] * 3, 4, 2),  # a knot at each of three
        ([0.0] * 70 + [1.0, 2.0, 3.0, 4.0, 5.0, 6.0] * 5, 4, 2),  # quartiles that coincide: quantiles 0, 1.25, 6
        ([NAN] * 3, 4, 0),  # nothing but missing values
        ([0.0, 1e-9, 1.0, 2.0], 4, 2),  # a bin too narrow
        (list(range(9)), 0, 0),
        (list(range(9)), 4, 4),
    ],
)
def test_knots_of_odd_columns(values: list[float], bins: int, expected: int):
    inputs = torch.tensor(values, dtype=torch.float64)[:, None]
    encoding = ColumnEncoding.fit(inputs, bins=bins)
    assert len(encoding.column) == expected
    assert encoding(inputs).isfinite().all()
    assert encoding(inputs).abs().max() <= 3


def test_a_constant_column_says_nothing_of_new_rows():
    inputs = torch.cat([torch.full((20, 1), 7.0), torch.arange(20.0)[:, None]], dim=1)
    encoding = ColumnEncoding.fit(inputs)
    assert encoding(inputs + torch.tensor([5.0, 0.0])).equal(encoding(inputs))


def test_missing_values_are_the_median_and_marked():
    inputs = rows(40, 2)
    inputs[:10, 1] = NAN
    encoding = ColumnEncoding.fit(inputs, bins=2)
    features = encoding(inputs)
    assert encoding.marked.tolist() == [1]
    assert features[:, -1].tolist() == [1.0] * 10 + [0.0] * 30
    at_median = inputs.clone()
    at_median[:10, 1] = inputs[10:, 1].quantile(0.5)
    torch.testing.assert_close(features[:, :-1], encoding(at_median)[:, :-1])
    unmarked = encoding(torch.tensor([[NAN, 0.0]], dtype=torch.float64))  # missing only in new rows
    assert unmarked[0, 0] == 0


@pytest.mark.parametrize(
    ("count", "columns", "bins"), [(30, 1, 3), (1000, 3, 16), (50, 500, 2), (5, 2, 0), (40, 2000, 0)]
)
def test_bins_follow_rows_and_columns(count: int, columns: int, bins: int):
    encoding = ColumnEncoding.fit(rows(count, columns, dtype=torch.float32))
    assert len(encoding.column) == bins * columns
    assert tabular(columns, 2, encoding=encoding)(rows(3, columns, dtype=torch.float32)).shape == (3, 2)


def test_features_do_not_depend_on_the_unit_of_a_column():
    inputs = rows(100, 2)
    other = inputs * torch.tensor([0.001, 40.0]) + torch.tensor([3.0, -1000.0])
    torch.testing.assert_close(ColumnEncoding.fit(inputs)(inputs), ColumnEncoding.fit(other)(other), atol=1e-9, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_members_in_a_stack_are_the_members_one_by_one(dtype: torch.dtype):
    inputs = rows(30, 3, dtype=dtype)
    net = tabular(3, 2, encoding=ColumnEncoding.fit(inputs), hidden=(8,))
    assert {p.dtype for p in net.parameters()} == {dtype}
    members = [copy.deepcopy(net) for _ in range(3)]
    for member in members:
        first: Any = member[2]
        first.reset_parameters()
    stacked = {
        name: torch.stack([dict(m.named_parameters())[name] for m in members]) for name, _ in net.named_parameters()
    }
    outputs = vmap(lambda weights: functional_call(net, weights, (inputs,)))(stacked)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(outputs, torch.stack([m(inputs) for m in members]), atol=tolerance, rtol=tolerance)


def test_the_kernel_runs_what_follows_the_encoding():
    inputs = rows(30, 3, dtype=torch.float32)
    net = tabular(3, 1, encoding=ColumnEncoding.fit(inputs), hidden=(8,))
    assert isinstance(net[2:], nn.Sequential)
    torch.testing.assert_close(net[2:](net[1](inputs)), net(inputs))
    assert all(a is b for a, b in zip(net[2:].parameters(), net.parameters(), strict=True))


@pytest.mark.parametrize(
    "method",
    [
        tb.MAP(members=2, epochs=2),
        tb.SWAG(members=2, epochs=4, burn_in=0.25),
        tb.Laplace(prior=1.0, structure="kronecker"),
        tb.SGNHT(chains=2, steps=6, burn_in=2, thin=2),
    ],
    ids=lambda method: type(method).__name__,
)
@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")
def test_methods_take_it(method: Any):
    inputs = rows(40, 3, dtype=torch.float32)
    net = tabular(3, 1, encoding=ColumnEncoding.fit(inputs), hidden=(8,))
    model = tb.Model(net, tb.likelihoods.Gaussian(0.3), tb.priors.FanInNormal())
    start = net if isinstance(method, tb.Laplace) else None
    posterior = tb.fit(model, (inputs, inputs[:, :1] ** 2), method, start=start)
    assert tb.predict(posterior, inputs[:5]).mean.isfinite().all()


def test_an_encoding_is_rebuilt_from_its_tensors():
    inputs = rows()
    inputs[0, 0] = NAN
    encoding = ColumnEncoding.fit(inputs)
    assert ColumnEncoding(**encoding.state_dict())(inputs).equal(encoding(inputs))


def test_networks_by_name():
    assert "tabular" in networks.names()
    assert networks.build("tabular", (4,), 2)(torch.zeros(3, 4)).shape == (3, 2)


def test_refusals():
    encoding = ColumnEncoding.fit(rows())
    with pytest.raises(ValueError, match="`encoding` must be of 4 columns"):
        tabular(4, 1, encoding=encoding)
    with pytest.raises(ValueError, match="`inputs` must be finite"):
        ColumnEncoding.fit(torch.tensor([[math.inf]]))
    with pytest.raises(TypeError, match="`inputs` must be floating point"):
        ColumnEncoding.fit(torch.tensor([[1]]))
    with pytest.raises(ValueError, match="a row and a column at least"):
        ColumnEncoding.fit(torch.zeros(0, 3))
    with pytest.raises(ValueError, match="`width` must be positive"):
        ColumnEncoding(**{**encoding.state_dict(), "width": -encoding.width})
    with pytest.raises(ValueError, match="`column` must be int64 numbers of columns, from 0 to 2"):
        ColumnEncoding(**{**encoding.state_dict(), "column": encoding.column + 1})
    with pytest.raises(ValueError, match="for each column; got 3 and 2"):
        ColumnEncoding(**{**encoding.state_dict(), "factor": encoding.factor[:2]})
    with pytest.raises(ValueError, match="for each bin"):
        ColumnEncoding(**{**encoding.state_dict(), "lower": encoding.lower[:2]})
