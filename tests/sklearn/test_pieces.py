"""Columns in pieces: their sum is the column again, and columns that say no more in pieces have none."""

import numpy as np
import pytest
import torch

from torchbayes.sklearn.pieces import pieces_of

RNG = np.random.default_rng(0)


def column(values):
    return torch.as_tensor(np.asarray(values, dtype=np.float64)).reshape(len(values), -1)


def test_pieces_add_up_to_the_column_between_the_outermost_edges():
    values = column(RNG.lognormal(size=(400, 3)))
    pieces = pieces_of(values)
    assert pieces.edges_DE.shape == (3, 17)
    new = column(RNG.lognormal(size=(50, 3), sigma=3))
    parts = pieces(new)[:, 3:].reshape(50, 3, 16)
    low, high = values.amin(0), values.amax(0)
    torch.testing.assert_close((parts * pieces.edges_DE.diff()).sum(-1), new.clamp(low, high) - low)
    inside = (parts > 0) & (parts < 1)
    assert int(inside.sum(-1).max()) == 1  # a value is in one piece


def test_edges_are_quantiles_and_equal_ones_are_one():
    values = column(np.repeat([0.0, 1.0, 5.0, 7.0], [301, 40, 40, 20]))  # no quantile is between two of them
    pieces = pieces_of(values)
    edges = pieces.edges_DE[0].unique()
    assert edges.tolist() == [0, 1, 5, 7]
    assert pieces.width == 1 + len(edges) - 1 == pieces(values).shape[1]
    assert torch.equal(pieces(column([5.0]))[0, 1:], (edges[1:] <= 5).double())


def test_the_column_itself_is_scaled_by_its_quartiles_and_clipped():
    values = column(np.r_[RNG.normal(3, 2, 399), 1e9])
    low, middle, high = np.quantile(values.numpy(), [0.25, 0.5, 0.75])
    scaled = (4.0 - middle) / (high - low)
    result = pieces_of(values)(column([4.0, 1e12, -1e12]))[:, 0]
    torch.testing.assert_close(result, torch.tensor([scaled / (1 + scaled**2 / 9) ** 0.5, 3, -3], dtype=torch.float64))


@pytest.mark.parametrize(
    ("values", "width"),
    [
        (np.ones((100, 1)), 1),  # constant
        (np.r_[np.zeros(90), np.ones(10)], 1),  # two values, of which the quartiles are one
        (RNG.normal(size=(39, 1)), 1),  # fewer than 20 rows in each of two pieces
        (RNG.normal(size=(40, 1)), 3),
        (RNG.normal(size=(1000, 1)), 17),
        (RNG.normal(size=(1000, 100)), 600),  # 5 pieces each
        (RNG.normal(size=(1000, 300)), 300),
        (RNG.normal(size=(2, 1)), 1),
    ],
)
def test_there_are_as_many_pieces_as_rows_bear(values, width):
    pieces = pieces_of(column(values))
    assert pieces.width == width == pieces(column(values)).shape[1]
    assert torch.isfinite(pieces(column(values))).all()
