import math

import pytest
import torch

from torchbayes.diagnostics import _blocks, modes, modes_visited


def test_draws_near_known_centres_are_counted():
    source = torch.Generator().manual_seed(0)
    centres_KD = torch.tensor([[0.0, 0.0, 0.0], [5.0, 0.0, 0.0], [0.0, 5.0, 0.0], [0.0, 0.0, 50.0]])
    home_MS = torch.randint(3, (4, 25), generator=source)
    draws_MSD = centres_KD[home_MS] + 0.2 * torch.randn(4, 25, 3, generator=source)
    draws_MSD[0, :5] = 20.0
    seen = modes_visited(draws_MSD, centres_KD, 2.0)
    kept = torch.cat([home_MS[0, 5:], home_MS[1:].flatten()])
    assert seen.counts_K.tolist() == torch.bincount(kept, minlength=4).tolist()
    assert (seen.visited, seen.share) == (3, 0.95)
    flat = modes_visited(draws_MSD.view(100, 3), centres_KD, 2.0)
    assert torch.equal(flat.counts_K, seen.counts_K)


def test_overlapping_balls_count_once_for_the_nearest_and_the_edge_is_inside():
    points_SD = torch.tensor([[0.4], [0.6], [2.0], [2.5]])
    seen = modes_visited(points_SD, torch.tensor([[0.0], [1.0]]), 1.0)
    assert seen.counts_K.tolist() == [1, 2]
    assert seen.share == 0.75


def test_small_distances_between_large_weights_in_blocks(monkeypatch):
    monkeypatch.setattr(modes, "BLOCK_CPU", 64)
    centres_KD = torch.full((2, 1000), 1e4, dtype=torch.float64)
    centres_KD[1] += 1e-3
    points_SD = centres_KD[1:] + 1e-4
    distance = 1e-4 * math.sqrt(1000)
    assert modes_visited(points_SD, centres_KD, distance * 1.001).counts_K.tolist() == [0, 1]
    assert modes_visited(points_SD, centres_KD, distance * 0.999).counts_K.tolist() == [0, 0]
    assert _blocks.BLOCK_CPU > 64


@pytest.mark.parametrize(
    ("draws", "centres", "radius", "message"),
    [
        (torch.zeros(4), torch.zeros(1, 4), 1.0, r"shape \(M, S, D\) or \(S, D\); got shape \(4,\)"),
        (torch.zeros(4, 3), torch.zeros(1, 2), 1.0, r"shape \(K, 3\), like the draws; got shape \(1, 2\)"),
        (torch.zeros(4, 3), torch.zeros(0, 3), 1.0, r"must not be empty; got shapes \(4, 3\) and \(0, 3\)"),
        (torch.zeros(4, 3), torch.zeros(1, 3), 0.0, "`radius` must be above 0; got 0.0"),
        (torch.full((4, 3), math.nan), torch.zeros(1, 3), 1.0, "`draws_MSD` holds NaN .* 12 of 12 for weights 0 to 2"),
        (torch.zeros(4, 3), torch.full((1, 3), math.inf), 1.0, "`centres_KD` holds NaN or infinite values: 3 of 3"),
    ],
)
def test_wrong_calls_say_what_was_wrong(draws, centres, radius, message):
    with pytest.raises(ValueError, match=message):
        modes_visited(draws, centres, radius)
