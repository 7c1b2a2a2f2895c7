"""Scores of numbers against MAPIE 1.6.0 and crepes 0.9.1, definitions, and coverage over simulated data."""

import math

import pytest
import torch

import torchbayes as tb
from tests.conformal.cases import average, forecast
from torchbayes.conformal import CQR, PIT, Absolute, Density, Forecast, Normalised, calibrate
from torchbayes.conformal.numbers import NUMBER_SCORES
from torchbayes.conformal.scoring import number_scores

_HETEROSCEDASTIC = tb.likelihoods.HeteroscedasticGaussian()
FIT, NEW = forecast(57), forecast(5, 57)[0]


def ends(actual):
    return torch.stack(actual, dim=1).flatten().tolist()


@pytest.mark.parametrize(("coverage", "half"), [(0.8, 0.76431787), (0.9, 0.8455734)])
def test_absolute_is_that_of_mapie(coverage, half):
    low, high = calibrate(*FIT, score="absolute", coverage=coverage).intervals(NEW)
    assert ((high - low) / 2).tolist() == pytest.approx([half] * 5, abs=1e-8)
    assert ((high + low) / 2).tolist() == pytest.approx(NEW.mean.tolist())


def test_normalised_is_that_of_crepes():
    exact = [0.13463923361406327, 0.7376902768815866, 0.48744432484395406, 1.4983009713251203, -0.3785964249932442]
    exact += [1.65207243927152, -0.9848450621510493, 0.3752238199466159, -1.2226492177423363, -0.7095863222744496]
    assert ends(calibrate(*FIT, score="normalised").intervals(NEW)) == pytest.approx(exact, abs=1e-12)


def test_quantiles_are_those_of_mapie_with_a_symmetric_correction():
    exact = [0.08750699155853475, 0.7848225189371152, 0.4851560527386223, 1.500589243430452, -0.2687419798608911]
    exact += [1.542217994139167, -0.9487325303517246, 0.3391112881472912, -1.279676924117139, -0.6525586158996468]
    assert ends(calibrate(*FIT, score="cqr", coverage=0.8).intervals(NEW)) == pytest.approx(exact, abs=1e-12)


def test_groups_are_those_of_crepes():
    # At 0.8, where (1 − 0.8) · 20 is below 4 in floats, crepes takes one rank more than is needed.
    exact = [0.14226824706773555, 0.7300612634279143, 0.5243137092032029, 1.4614315869658714, -0.3085577030370822]
    exact += [1.5820337173153578, -0.9676392486211967, 0.3580180064167633, -1.2039360667141237, -0.7282994733026622]
    actual = calibrate(*FIT, score="normalised", coverage=0.75, groups=torch.arange(57) % 3)
    assert ends(actual.intervals(NEW, groups=torch.arange(5) % 3)) == pytest.approx(exact, abs=1e-12)


@pytest.mark.parametrize("name", NUMBER_SCORES)
@pytest.mark.parametrize("coverage", [0.3, 0.8])
def test_an_interval_holds_the_targets_whose_score_is_at_most_the_threshold(name, coverage):
    predictive, targets = average(40)
    actual = calibrate(predictive, targets, score=name, coverage=coverage)
    points, rows = 401, 6
    grid = torch.linspace(-6, 6, points, dtype=torch.float64)
    new = average(rows, seed=1)[0]
    each = _rows(new, torch.arange(rows).repeat_interleave(points))
    by_score = actual.covers(each, grid.repeat(rows).unsqueeze(1)).view(rows, points)
    if name == "density":
        pairs = [pairs.unsqueeze(1) for pairs in actual.regions(new)]
        inside = torch.stack([((grid >= p[..., 0]) & (grid <= p[..., 1])).any(0) for p in pairs])
    else:
        low, high = actual.intervals(new)
        inside = (grid >= low) & (grid <= high)
    empty = ~by_score.any(1)  # an empty set is returned as a point
    assert torch.equal(inside[~empty], by_score[~empty])
    assert not inside[empty].sum(1).gt(1).any()
    # The rank-th smallest score is the threshold: so many calibration rows are covered.
    assert int(actual.covers(predictive, targets).sum()) == actual.thresholds["all rows"].rank


def test_scores_are_what_they_say():
    predictive, targets = average(6)
    scores = {name: kind().scores(predictive, targets).flatten() for name, kind in NUMBER_SCORES.items()}
    error = (targets - predictive.mean).abs().flatten()
    assert torch.allclose(scores["absolute"], error)
    assert torch.allclose(scores["normalised"], error / predictive.variance.sqrt().flatten())
    normal = predictive.distribution
    assert torch.allclose(scores["pit"], (2 * normal.cdf(targets).mean(0) - 1).abs().flatten())
    assert torch.allclose(scores["density"], -predictive.log_prob(targets))
    low, high = predictive.interval(0.9)
    assert torch.allclose(scores["cqr"], torch.maximum(low - targets, targets - high).flatten())


def test_levels_do_not_depend_on_the_scale_of_the_targets():
    predictive, targets = average(50)
    plain = calibrate(predictive, targets, score="pit").intervals(predictive)
    larger = tb.Predictive(1000 * predictive.outputs_SBK, tb.likelihoods.Gaussian(600.0))
    actual = calibrate(larger, 1000 * targets, score="pit").intervals(larger)
    assert torch.allclose(torch.stack(actual), 1000 * torch.stack(plain))


def test_two_separate_intervals_of_highest_density():
    # Two equal normal distributions far apart: each holds half of the probability, ends are normal quantiles.
    predictive = tb.Predictive(torch.tensor([[[-5.0]], [[5.0]]]).double(), tb.likelihoods.Gaussian(1.0))
    level = 0.8
    z = math.sqrt(2) * torch.erfinv(torch.tensor(level, dtype=torch.float64))
    height = -float(torch.distributions.Normal(0.0, 1.0).log_prob(z)) + math.log(2)
    (pairs,) = Density().regions(predictive, torch.tensor([height], dtype=torch.float64))
    exact = torch.stack([torch.stack([-5 - z, -5 + z]), torch.stack([5 - z, 5 + z])])
    assert torch.allclose(pairs, exact, atol=1e-9)
    low, high = Density().intervals(predictive, torch.tensor([height], dtype=torch.float64))
    assert (low.item(), high.item()) == pytest.approx((float(-5 - z), float(5 + z)))
    (point,) = Density().regions(predictive, torch.tensor([0.5], dtype=torch.float64))  # nowhere so dense
    assert point.abs().tolist() == [[5.0, 5.0]]


def test_a_narrow_component_far_away_is_not_missed():
    predictive = tb.Predictive(torch.tensor([[[0.0, 3.0]], [[50.0, -9.0]]]).double(), _HETEROSCEDASTIC)
    kind = predictive.distribution
    (pairs,) = Density().regions(predictive, torch.tensor([4.0], dtype=torch.float64))
    assert len(pairs) == 2
    height = kind.log_prob(pairs.view(1, 4, 1).expand(2, 4, 1)[:, :, :]).logsumexp(0) - math.log(2)
    assert torch.allclose(height, torch.full_like(height, -4.0), atol=1e-6)
    assert float(pairs[1, 1] - pairs[1, 0]) < 0.1


def test_a_density_with_an_edge():
    exponential = tb.likelihoods.Custom(lambda f: torch.distributions.Exponential(f.exp()))
    predictive = tb.Predictive(torch.zeros(1, 2, 1, dtype=torch.float64), exponential)
    (first, second) = Density().regions(predictive, torch.tensor([2.0, math.inf], dtype=torch.float64))
    assert torch.allclose(first, torch.tensor([[0.0, 2.0]], dtype=torch.float64), atol=1e-9)
    assert second.tolist() == [[-math.inf, math.inf]]


def test_a_box_holds_all_numbers_of_a_row():
    source = torch.Generator().manual_seed(0)
    mean = torch.randn(4000, 3, generator=source, dtype=torch.float64)
    scale = torch.tensor([0.1, 1.0, 10.0]).expand_as(mean)
    noise = torch.randn(4000, 1, generator=source) + torch.randn(4000, 3, generator=source)
    targets = mean + scale * noise
    actual = calibrate(Forecast(mean[:2000], scale[:2000]), targets[:2000])
    new = Forecast(mean[2000:], scale[2000:])
    low, high = actual.intervals(new)
    inside = ((low <= targets[2000:]) & (targets[2000:] <= high)).all(1)
    assert torch.equal(inside, actual.covers(new, targets[2000:]))
    assert float(inside.double().mean()) == pytest.approx(0.9, abs=4 * math.sqrt(2 * 0.09 / 2000))
    # All outputs have the same width in their own units, and less than Bonferroni's, at 1 − 0.1/3 each.
    widths = ((high - low) / scale[2000:]).mean(0)
    assert torch.allclose(widths, widths[0])
    bonferroni = [
        calibrate(Forecast(mean[:2000, k], scale[:2000, k]), targets[:2000, k], coverage=1 - 0.1 / 3) for k in range(3)
    ]
    assert all(actual.thresholds["all rows"].value < each.thresholds["all rows"].value for each in bonferroni)


def test_crossing_quantiles_are_the_middle():
    actual = CQR().intervals(Forecast(low=[0.0, 0.0], high=[2.0, 2.0]), torch.tensor([-0.5, -3.0]).double())
    assert [end.tolist() for end in actual] == [[0.5, 1.0], [1.5, 1.0]]


def test_counts_keep_their_coverage():
    source, coverages = torch.Generator().manual_seed(1), []
    for _ in range(40):
        rate = torch.rand(80, 1, generator=source, dtype=torch.float64) * 5 + 0.2
        counts = torch.poisson(1.5 * rate, generator=source)  # more than is predicted
        some, others = (
            tb.Predictive(part.log().unsqueeze(0), tb.likelihoods.Poisson()) for part in (rate[:40], rate[40:])
        )
        actual = calibrate(some, counts[:40], coverage=0.8)
        assert actual.score == PIT()
        low, high = actual.intervals(others)
        covered = actual.covers(others, counts[40:])
        assert torch.equal(covered, ((low <= counts[40:]) & (counts[40:] <= high))[:, 0])
        coverages.append(float(covered.double().mean()))
    assert sum(coverages) / len(coverages) >= 0.8 - 0.01


@pytest.mark.parametrize("score", [Absolute(), Normalised(), PIT(), CQR(0.5), Density()])
def test_coverage_is_the_rank_over_one_more_over_a_thousand_data_sets(score):
    sets, rows, coverage = 1000, 20, 0.9
    predictive, targets = average(sets * (rows + 1), draws=3)  # wrong: too narrow
    order = torch.randperm(sets * (rows + 1), generator=torch.Generator().manual_seed(5))
    scores = number_scores(score, predictive, targets)[order].view(sets, rows + 1)
    covered = scores[:, -1] <= scores[:, :-1].kthvalue(19, dim=1).values
    assert float(covered.double().mean()) == pytest.approx(19 / 21, abs=4 * math.sqrt(0.09 / sets))
    chosen = calibrate(_rows(predictive, order[:rows]), targets[order[:rows]], score=score, coverage=coverage)
    last = order[rows : rows + 1]
    assert bool(chosen.covers(_rows(predictive, last), targets[last])) == bool(covered[0])


def _rows(predictive, rows):
    return tb.Predictive(predictive.outputs_SBK[:, rows], predictive.likelihood)
