"""Jackknife+ against MAPIE 1.6.0, refits, and coverage over simulated data."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import torchbayes as tb
from torchbayes.conformal import jackknife, jackknife_intervals, outputs


def _linear(rows, columns, *, prior=10.0, noise=1.0, seed=0):
    """A linear model with normal noise, its rows, and its exact posterior."""
    source = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows + 30, columns, generator=source, dtype=torch.float64)
    slopes = torch.randn(columns, 1, generator=source, dtype=torch.float64)
    targets = inputs @ slopes + noise * torch.randn(rows + 30, 1, generator=source, dtype=torch.float64)
    model = tb.Model(
        nn.Linear(columns, 1, bias=False).double(), tb.likelihoods.Gaussian(noise), tb.priors.Normal(prior)
    )
    return model, inputs, targets


def _ridge(inputs, targets, at, *, prior, noise):
    """Mean and variance of the function at some inputs."""
    precision = inputs.T @ inputs / noise**2 + torch.eye(inputs.shape[1]).double() / prior**2
    mean = torch.linalg.solve(precision, inputs.T @ targets / noise**2)
    return at @ mean, (at * torch.linalg.solve(precision, at.T).T).sum(1, keepdim=True)


LAPLACE = tb.Laplace(structure="dense", prior="model", check_mode=False)


def _fitted(model, inputs, targets, structure="dense"):
    mean, _ = _ridge(inputs, targets, torch.eye(inputs.shape[1]).double(), prior=10.0, noise=1.0)
    method = replace(LAPLACE, structure=structure)
    return tb.fit(model, (inputs, targets), method, start=mean.T.flatten().contiguous(), callbacks=())


def test_arrays_are_those_of_mapie():
    source = np.random.default_rng(0)
    inputs = source.standard_normal((40, 5))
    targets = inputs @ np.arange(1, 6) + source.standard_normal(40)
    new = source.standard_normal((4, 5))

    def without(rows):
        kept = ~rows
        return np.linalg.lstsq(inputs[kept], targets[kept], rcond=None)[0]

    slopes = np.stack([without(np.arange(40) == i) for i in range(40)])
    own = (inputs * slopes).sum(1)
    low, high = jackknife_intervals(own, targets, slopes @ new.T)
    assert low.tolist() == pytest.approx([7.596989049, -3.458808186, 0.8423875354, 5.775000396])
    assert high.tolist() == pytest.approx([12.19528498, 1.505740801, 5.580454378, 10.37329633])
    low, high = jackknife_intervals(own, targets, slopes @ new.T, kind="minmax")
    assert low.tolist() == pytest.approx([7.433272243, -3.545124659, 0.756071062, 5.694164661])
    assert high.tolist() == pytest.approx([12.51709146, 1.623120372, 5.603056204, 10.63505493])
    folds = np.arange(40) // 8  # of KFold(5)
    by_fold = np.stack([without(folds == f) for f in range(5)])
    low, high = jackknife_intervals((inputs * by_fold[folds]).sum(1), targets, (by_fold @ new.T)[folds])
    assert low.tolist() == pytest.approx([7.858744717, -3.050326557, 1.096673672, 5.722857012])
    assert high.tolist() == pytest.approx([12.46859309, 2.167099958, 5.599928807, 10.64170836])


@pytest.mark.parametrize("score", ["absolute", "normalised"])
@pytest.mark.parametrize("kind", ["plus", "minmax"])
@pytest.mark.parametrize("columns", [3, 25, 60])
def test_a_linear_model_is_that_of_refits(score, kind, columns):
    rows, coverage = 30, 0.85
    model, inputs, targets = _linear(rows, columns)
    (train, y), new = (inputs[:rows], targets[:rows]), inputs[rows:]
    posterior = _fitted(model, train, y, structure="dense" if columns < 60 else "diagonal")  # any gives the same
    actual = jackknife(posterior, (train, y), coverage=coverage, score=score, kind=kind)
    assert actual.problems == ()
    own, at = [], []
    for i in range(rows):
        kept = torch.arange(rows) != i
        mean, variance = _ridge(train[kept], y[kept], torch.cat([train[i : i + 1], new]), prior=10.0, noise=1.0)
        scale = (1 + variance).sqrt() if score == "normalised" else torch.ones_like(mean)
        own.append(torch.cat([mean[:1], scale[:1]], dim=1))
        at.append(torch.stack([mean[1:], scale[1:]]))
    (means, scales), (means_B, scales_B) = torch.stack(own).unbind(-1), torch.stack(at, dim=1)
    assert torch.allclose(actual.means_N, means, rtol=1e-6, atol=1e-8)
    assert torch.allclose(actual.scales_N, scales, rtol=1e-6)
    exact = jackknife_intervals(means, y, means_B, coverage=coverage, scales_N=scales, scales_NB=scales_B, kind=kind)
    for end, right in zip(actual.intervals(new), exact, strict=True):
        assert torch.allclose(end, right, rtol=1e-6, atol=1e-6)


# Least squares on 40 rows: coverage and mean width over 4,000 data sets, from a computation of its own.
KNOWN = {5: {"plus": (0.902, 3.66), "minmax": (0.926, 4.01)}, 38: {"plus": (0.927, 32.1), "minmax": (0.978, 71.9)}}


@pytest.mark.parametrize("columns", [5, 38, 80])
def test_coverage_over_data_sets(columns):
    rows, sets = 40, 600
    source = torch.Generator().manual_seed(columns)
    inputs = torch.randn(sets, rows + 1, columns, generator=source, dtype=torch.float64)
    noise = torch.randn(sets, rows + 1, generator=source, dtype=torch.float64)
    targets = inputs @ torch.randn(columns, generator=source, dtype=torch.float64) + noise
    train, y = inputs[:, :rows], targets[:, :rows]
    inverse = torch.linalg.inv(train @ train.mT + 1e-7 * torch.eye(rows).double())  # nearly without a prior
    dual, diagonal = (inverse @ y.unsqueeze(-1)).squeeze(-1), inverse.diagonal(dim1=1, dim2=2)
    errors = dual / diagonal  # y_i − μ₋ᵢ(x_i)
    kernel = (train @ inputs[:, rows:].mT).squeeze(-1)
    at = ((kernel * dual).sum(1, keepdim=True) - (inverse @ kernel.unsqueeze(-1)).squeeze(-1) * errors).T
    for kind in ("plus", "minmax"):
        ends = [jackknife_intervals(y[k] - errors[k], y[k], at[:, k : k + 1], kind=kind) for k in range(sets)]
        low, high = (torch.cat(each) for each in zip(*ends, strict=True))
        inside = float(((low <= targets[:, -1]) & (targets[:, -1] <= high)).double().mean())
        assert inside >= (0.8 if kind == "plus" else 0.9 - 3 * math.sqrt(0.09 / sets))
        if columns in KNOWN:
            coverage, width = KNOWN[columns][kind]
            assert inside == pytest.approx(coverage, abs=4 * math.sqrt(1.25 * coverage * (1 - coverage) / sets))
            assert float((high - low).mean()) == pytest.approx(width, rel=0.08)


def _regression(likelihood, outputs, rows):
    source = torch.Generator().manual_seed(0)
    inputs = torch.randn(rows + 200, 3, generator=source)
    targets = torch.sin(inputs[:, :1]) + inputs[:, 1:2] + 0.3 * torch.randn(rows + 200, 1, generator=source)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, outputs))
    model = tb.Model(net, likelihood, tb.priors.Normal(1.0))
    mode = tb.fit(model, (inputs[:rows], targets[:rows]), tb.MAP(epochs=150, optimizer=tb.Adam(0.02)), callbacks=())
    return mode, inputs, targets


@pytest.mark.parametrize(
    ("likelihood", "outputs"),
    [
        (tb.likelihoods.Gaussian("learned"), 1),
        (tb.likelihoods.HeteroscedasticGaussian(), 2),
        pytest.param(tb.likelihoods.StudentT(scale=0.3), 1, marks=pytest.mark.study),
    ],
)
def test_networks(likelihood, outputs):
    rows = 60
    mode, inputs, targets = _regression(likelihood, outputs, rows)
    data = inputs[:rows], targets[:rows]
    posterior = tb.fit(mode.model, data, tb.Laplace(structure="dense", prior="model"), start=mode, callbacks=())
    actual = jackknife(posterior, data)
    assert actual.problems == ()
    low, high = actual.intervals(inputs[rows:])
    assert low.dtype == torch.float32
    inside = ((low <= targets[rows:]) & (targets[rows:] <= high)).double().mean()
    assert 0.8 <= float(inside) < 1
    # Errors of predictions without the row are larger than those with it.
    with_row = (tb.predict(mode, data[0]).mean - data[1]).square().double()
    assert float((actual.means_N - data[1]).square().mean()) > float(with_row.mean())


def test_several_outputs_make_a_box():
    source = torch.Generator().manual_seed(0)
    inputs = torch.randn(340, 2, generator=source, dtype=torch.float64)
    targets = inputs @ torch.randn(2, 3, generator=source).double() + torch.randn(340, 3, generator=source).double()
    model = tb.Model(nn.Linear(2, 3, bias=False).double(), tb.likelihoods.Gaussian(1.0), tb.priors.Normal(10.0))
    train, y = inputs[:40], targets[:40]
    posterior = _fitted(model, train, y)
    actual = jackknife(posterior, (train, y))
    low, high = actual.intervals(inputs[40:])
    assert low.shape == (300, 3)
    assert float(((low <= targets[40:]) & (targets[40:] <= high)).all(1).double().mean()) > 0.8
    kept = ~torch.eye(40, dtype=torch.bool)
    without = [_ridge(train[k], y[k], train[~k], prior=10.0, noise=1.0)[0] for k in kept]
    assert torch.allclose(actual.means_N, torch.cat(without), rtol=1e-6)


def test_members_are_averaged():
    model, inputs, targets = _linear(30, 3)
    data = inputs[:30], targets[:30]
    one = _fitted(model, *data)
    both = tb.fit(model, data, LAPLACE, start=one.mean_MD.expand(2, -1).contiguous(), callbacks=())
    single, double = (jackknife(each, data).intervals(inputs[30:]) for each in (one, both))
    assert both.members == 2
    assert torch.allclose(torch.stack(single), torch.stack(double))


def test_a_tempered_likelihood_counts_less():
    rows = 30
    _, inputs, targets = _linear(rows, 3)
    net = nn.Linear(3, 1, bias=False).double()
    prior = tb.priors.Normal(10.0)
    tempered = tb.Model(net, tb.likelihoods.Gaussian(1.0), prior, temperature=4.0, tempering="likelihood")
    wide = tb.Model(net, tb.likelihoods.Gaussian(2.0), prior)
    data = inputs[:rows], targets[:rows]
    mean, _ = _ridge(*data, torch.eye(3).double(), prior=10.0, noise=2.0)
    posteriors = [tb.fit(model, data, LAPLACE, start=mean.flatten(), callbacks=()) for model in (tempered, wide)]
    first, second = (jackknife(each, data, score="absolute").intervals(inputs[rows:]) for each in posteriors)
    assert torch.allclose(torch.stack(first), torch.stack(second))


@pytest.mark.parametrize("case", ["learned", "heteroscedastic", "student_t", "tempered", "tuned", "members"])
def test_covariances_by_rows_are_those_of_the_dense_structure(case, monkeypatch):
    likelihood = {
        "learned": tb.likelihoods.Gaussian("learned"),
        "heteroscedastic": tb.likelihoods.HeteroscedasticGaussian(),
        "student_t": tb.likelihoods.StudentT(scale=0.3),
    }.get(case, tb.likelihoods.Gaussian(0.3))
    width, members = 2 if case == "heteroscedastic" else 1, 2 if case == "members" else 1
    source = torch.Generator().manual_seed(0)
    inputs = torch.randn(40, 3, generator=source, dtype=torch.float64)
    data = inputs[:30], inputs[:30, :1].sin() + 0.3 * torch.randn(30, 1, generator=source, dtype=torch.float64)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, width)).double()
    model = tb.Model(net, likelihood, tb.priors.Normal(1.0), temperature=0.5 if case == "tempered" else 1.0)
    mode = tb.fit(model, data, tb.MAP(members=members, epochs=15, optimizer=tb.Adam(0.05)), callbacks=())
    ends = {}
    for structure in ("dense", "kronecker"):
        method = tb.Laplace(structure=structure, prior="layer" if case == "tuned" else "model", check_mode=False)
        posterior = tb.fit(mode.model, data, method, start=mode, callbacks=())
        ends[structure] = torch.stack(jackknife(posterior, data).intervals(inputs[30:]))
        if structure == "dense":
            monkeypatch.setattr(outputs, "LARGEST", 0)
            by_structure = jackknife(posterior, data)
            assert isinstance(by_structure.outputs, outputs.OfStructure)
            assert torch.allclose(torch.stack(by_structure.intervals(inputs[30:])), ends[structure], rtol=1e-5)
            monkeypatch.undo()
    if case != "tuned":  # each structure is tuned to a prior of its own
        assert torch.allclose(ends["dense"], ends["kronecker"])


def test_leverages_above_one_and_few_rows_are_said(monkeypatch):
    monkeypatch.setattr(outputs, "LARGEST", 0)
    model, inputs, targets = _linear(30, 25)
    data = inputs[:30], targets[:30]
    with pytest.warns(tb.ProblemWarning, match=r"leverage of .* of 30 rows is 1 or more"):
        actual = jackknife(_fitted(model, *data, structure="diagonal"), data)
    assert "1 problem" in repr(actual)
    assert all(end.isfinite().all() for end in actual.intervals(inputs[30:]))
    model, inputs, targets = _linear(6, 2)
    few = inputs[:6], targets[:6]
    with pytest.warns(tb.ProblemWarning, match="6 rows are too few"):
        actual = jackknife(_fitted(model, *few), few)
    assert all(end.isinf().all() for end in actual.intervals(inputs))


def test_what_it_does_not_take():
    model, inputs, targets = _linear(30, 3)
    data = inputs[:30], targets[:30]
    posterior = _fitted(model, *data)
    with pytest.raises(ValueError, match="must be the 30 rows that the posterior was fitted to; got 29"):
        jackknife(posterior, (inputs[:29], targets[:29]))
    weighted = tb.Model(nn.Linear(3, 1).double(), tb.likelihoods.Weighted(tb.likelihoods.Gaussian(1.0)))
    rows = (data[0], (data[1], torch.ones(30).double()))
    with pytest.raises(TypeError, match="whose rows count once"):
        jackknife(tb.fit(weighted, rows, LAPLACE, start=torch.zeros(4).double(), callbacks=()), rows)
    assert jackknife(posterior, data).bound == pytest.approx(0.8)
    assert jackknife(posterior, data, kind="minmax").bound == 0.9
