"""tune finds the maximum of the evidence, whatever the structure, and the best of held-out data."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch
from scipy.optimize import minimize
from tests.covering import some_of, with_studies
from tests.oracles import LinearGaussian, assert_close, classes, normal
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.curvature import exact as beside

X = normal(40, 3)
Y = X @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + 0.3 + 0.7 * normal(40, seed=1)
SCALE, NOISE = 0.4, 0.7


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def regression(structure: str = "dense", **settings: Any) -> tb.LaplacePosterior:
    model = tb.Model(network(), tb.likelihoods.Gaussian(NOISE), tb.priors.Normal(SCALE))
    start = 0.4 * normal(settings.pop("members", 1), model.layout.size, seed=3)
    method = tb.Laplace(structure=structure, rank=21, check_mode=False, **{"prior": "model", **settings})  # type: ignore[arg-type]
    return tb.fit(model, (X, Y), method, start=start, callbacks=())  # type: ignore[return-value]


@cache
def curvature_of(posterior: tb.LaplacePosterior) -> Tensor:
    """H, (M, D, D), which each step of a search looks at."""
    return posterior.curvature.dense() / SCALE**2


def groups(posterior: tb.LaplacePosterior, prior: str) -> Tensor:
    """Group of each weight, from its name."""
    layout, actual = posterior.model.layout, []
    for number, (name, size) in enumerate(zip(layout.names, layout.sizes, strict=True)):
        group = {"scalar": 0, "layer": int(name[0]) // 2, "model": 0}[prior]
        actual.append(torch.full((size,), group if prior != "tensor" else number))
    return torch.cat(actual)


def log_evidence(posterior: tb.LaplacePosterior, factor_D: Tensor, noise: float = 1.0) -> float:
    """By the definition: dense H, prior N(0, SCALE²/d), noise times a factor; summed over the modes."""
    total = 0.0
    for m, mode in enumerate(posterior.mean_MD):
        matrix = curvature_of(posterior)[m] / noise**2
        precision = matrix + torch.diag(factor_D / SCALE**2)
        residual = posterior.log_likelihood_M[m] + 40 * math.log(NOISE * math.sqrt(2 * math.pi))
        fit = residual / noise**2 - 40 * math.log(NOISE * noise * math.sqrt(2 * math.pi))
        prior = torch.distributions.Normal(0.0, SCALE / factor_D.sqrt()).log_prob(mode).sum()
        total += float(fit + prior + len(mode) / 2 * math.log(2 * math.pi) - 0.5 * torch.logdet(precision))
    return total


@cache
def exact_noise(prior: str, members: int = 1, force_D: Tensor | None = None) -> float:
    """Return the factor on the noise at the maximum of the exact evidence, over it and at most one on the prior."""
    fitted = regression("dense", members=members)
    force_D = torch.ones(fitted.strength_D.numel(), dtype=torch.float64) if force_D is None else force_D
    start = [0.0] if prior == "model" else [0.0, 0.0]

    def negative(point: Any) -> float:
        return -log_evidence(fitted, force_D * math.exp(point[1] if len(point) > 1 else 0.0), math.exp(point[0]))

    options = {"fatol": 1e-10, "xatol": 1e-7, "maxiter": 4000}
    best = minimize(negative, start, method="Nelder-Mead", options=options)
    return math.exp(best.x[0])


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("prior", ["scalar", "layer", "model"])
@pytest.mark.parametrize("structure", ["dense", "kronecker", "diagonal", "low_rank", "ekfac"])
def test_the_maximum_of_the_evidence(structure: str, prior: Any, noise: bool, members: int) -> None:
    """For the noise that of the exact curvature, if the structure drops correlations; its own given that noise."""
    if prior == "model" and not noise:
        return
    fitted = regression(structure, members=members)
    tuned = tb.tune(fitted, prior=prior, noise=noise)
    group_D = groups(fitted, prior)
    given = 1.0 if not noise else None if structure == "dense" else exact_noise(prior, members)

    def negative(point: Any) -> float:
        factors = (
            torch.as_tensor(point[:-1], dtype=torch.float64).exp()[group_D]
            if prior != "model"
            else torch.ones(len(group_D)).double()
        )
        return -log_evidence(fitted, factors, math.exp(point[-1]) if given is None else given)

    best = minimize(negative, [0.0] * (int(group_D.max()) + 2), method="Nelder-Mead", options={"fatol": 1e-9,
                    "xatol": 1e-6, "maxiter": 4000, "maxfev": 4000})  # fmt: skip
    assert_close(float(tuned.log_evidence().sum()), -best.fun, rtol=1e-9)
    if not noise:
        assert_close(-negative([0.0] * (int(group_D.max()) + 2)), float(fitted.log_evidence().sum()), rtol=1e-9)
    if prior != "model":
        assert_close(tuned.strength_D, torch.as_tensor(best.x[:-1]).exp()[group_D], rtol=1e-4)
        assert_close(tuned.model.prior.stds(), SCALE / tuned.strength_D.sqrt())
    if noise:
        likelihood = tuned.model.likelihood
        assert isinstance(likelihood, tb.likelihoods.Gaussian)
        assert likelihood.scale == pytest.approx(NOISE * (given or math.exp(best.x[-1])), rel=1e-4)


def test_a_precision_for_every_weight() -> None:
    fitted = regression("diagonal")
    tuned = tb.tune(fitted, prior="weight")
    value = float(tuned.log_evidence())
    for shift in (0.99, 1.01):
        for place in range(len(fitted.strength_D)):
            moved = tuned.strength_D.clone()
            moved[place] *= shift
            assert float(fitted.with_strength(moved).log_evidence()) < value
    with pytest.raises(ValueError, match="diagonal curvature"):
        tb.tune(regression("dense"), prior="weight")


@pytest.mark.parametrize("few", [1024, 0])
def test_a_precision_for_every_weight_goes_with_noise(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """First the noise at one factor, then the precisions given it, whether the exact curvature is there or not."""
    monkeypatch.setattr(beside, "_FEW", few)
    fitted = regression("diagonal")
    noise = tb.tune(fitted, prior="scalar", noise=True).noise_scale
    actual = tb.tune(fitted, prior="weight", noise=True)
    assert actual.noise_scale == pytest.approx(noise)
    assert_close(actual.strength_D, tb.tune(fitted.with_noise(noise), prior="weight").strength_D)
    assert_close(tb.tune(actual, prior="weight", noise=True).noise_scale, noise, rtol=1e-6)
    with pytest.raises(ValueError, match="for one mode with diagonal curvature"):
        tb.tune(regression("kronecker"), prior="weight", noise=True)


def test_a_doubtful_noise_is_told_with_a_precision_for_every_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "_FEW", 0)
    module = nn.Sequential(nn.Linear(3, 30), nn.Tanh(), nn.Linear(30, 1)).double()
    model = tb.Model(module, tb.likelihoods.Gaussian(0.3), tb.priors.Normal(1.0))
    data = X, Y.unsqueeze(1)
    start = normal(model.layout.size, seed=2)
    fitted = tb.fit(model, data, tb.Laplace("diagonal", check_mode=False, prior="model"), start=start, callbacks=())
    tuned = tb.tune(fitted, prior="weight", noise=True)  # type: ignore[arg-type]
    doubt = tb.tune(fitted, prior="scalar", noise=True).problems  # type: ignore[arg-type]
    assert doubt
    assert tuned.problems == doubt


def test_fit_can_tune_at_once() -> None:
    later = tb.tune(regression("kronecker"), prior="layer", noise=True)
    at_once = regression("kronecker", prior="layer", noise=True)
    assert_close(at_once.strength_D, later.strength_D)
    assert_close(at_once.log_evidence(), later.log_evidence())


@pytest.mark.study  # the first test has the maximum at a mode, and `test_online_laplace.py` this one
def test_tuned_linear_regression_is_the_exact_evidence_s_maximum() -> None:
    """The mode moves with the prior, so one tunes, finds the mode and tunes again (MacKay 1992)."""
    scale, noise, tuned = SCALE, NOISE, regression()
    for _ in range(12):
        own = LinearGaussian(X, Y, scale, noise)
        model = tb.Model(nn.Linear(3, 1).double(), tb.likelihoods.Gaussian(noise), tb.priors.Normal(scale))
        fitted = tb.fit(
            model, (X, Y), tb.Laplace(structure="dense", prior="model"), start=own.posterior()[0], callbacks=()
        )
        tuned = tb.tune(fitted, prior="scalar", noise=True)  # type: ignore[arg-type]
        scale = float(tuned.model.prior.stds()[0])
        noise = float(tuned.model.likelihood.scale)  # type: ignore[attr-defined]

    def negative(point: Any) -> float:
        return -LinearGaussian(X, Y, math.exp(point[0]), math.exp(point[1])).log_evidence()

    best = minimize(negative, [math.log(scale), math.log(noise)], method="Nelder-Mead",
                    options={"fatol": 1e-12, "xatol": 1e-9})  # fmt: skip
    assert_close(float(tuned.log_evidence()), -best.fun, rtol=1e-9)
    assert scale == pytest.approx(math.exp(best.x[0]), rel=1e-5)
    assert noise == pytest.approx(math.exp(best.x[1]), rel=1e-5)


def test_tuning_twice_changes_nothing_and_saving_keeps_it(tmp_path: Any) -> None:
    tuned = tb.tune(regression("kronecker"), prior="layer", noise=True)
    again = tb.tune(tuned, prior="layer", noise=True)
    assert_close(again.strength_D, tuned.strength_D, rtol=1e-6)
    assert_close(again.log_evidence(), tuned.log_evidence())
    loaded = tb.load(tuned.save(tmp_path / "q.safetensors"), regression("kronecker").model)
    assert isinstance(loaded, tb.LaplacePosterior)
    assert_close(loaded.log_evidence(), tuned.log_evidence())
    assert loaded.model.likelihood == tuned.model.likelihood
    inputs = normal(3, 3, seed=8)
    actual, expected = (tb.predict(tb.Linearised(p), inputs) for p in (loaded, tuned))
    assert_close(actual.variance, expected.variance)


@pytest.mark.parametrize(("prior", "noise"), [("scalar", True), ("model", True), ("layer", False)])
def test_a_file_is_read_with_the_model_given_to_fit_or_the_tuned_one(prior: Any, noise: bool, tmp_path: Any) -> None:
    fitted = regression("kronecker")
    tuned = tb.tune(fitted, prior=prior, noise=noise)
    path, inputs = tuned.save(tmp_path / "q.safetensors"), normal(5, 3, seed=8)
    expected = tb.predict(tb.Linearised(tuned), inputs)
    for model in (fitted.model, tuned.model):
        loaded = tb.load(path, model)
        assert isinstance(loaded, tb.LaplacePosterior)
        assert loaded.model.likelihood == tuned.model.likelihood
        assert_close(loaded.log_evidence(), tuned.log_evidence(), rtol=1e-12)
        assert_close(loaded.model.prior.stds(), tuned.model.prior.stds(), rtol=1e-12)
        assert_close(tb.predict(tb.Linearised(loaded), inputs).variance, expected.variance, rtol=1e-12)
        again = tb.load(loaded.save(tmp_path / "again.safetensors"), loaded.model)
        assert again.settings() == tuned.settings()
    other = tb.Model(network(), tb.likelihoods.StudentT(4.0, NOISE), tb.priors.Normal(SCALE))
    with pytest.raises(ValueError, match=r"likelihood is Gaussian.*, the model's StudentT"):
        tb.load(path, other)
    with pytest.raises(
        ValueError, match=f"prior of weights 0:21 is Normal\\(scale={SCALE}, loc=0.0\\), the model's Joint"
    ):
        tb.load(fitted.save(tmp_path / "fitted.safetensors"), tb.tune(fitted).model)


def test_noise_of_several_outputs_and_weighted_rows_is_read_with_either_model(tmp_path: Any) -> None:
    likelihood = tb.likelihoods.Weighted(tb.likelihoods.Gaussian((0.5, 2.0)))
    model = tb.Model(nn.Linear(3, 2).double(), likelihood, tb.priors.Normal(SCALE))
    data = (X, (torch.stack([Y, -Y], 1), torch.linspace(0.5, 2.0, 40, dtype=torch.float64)))
    fitted = tb.fit(model, data, tb.Laplace("dense", check_mode=False, prior="model"), start=normal(8), callbacks=())
    tuned = tb.tune(fitted, noise=True)  # type: ignore[arg-type]
    path = tuned.save(tmp_path / "q.safetensors")
    assert [tb.load(path, m).model.likelihood == tuned.model.likelihood for m in (model, tuned.model)] == [True] * 2


@pytest.mark.parametrize("structure", ["dense", "diagonal"])
def test_other_noise_gives_the_posterior_of_a_fit_with_it_at_the_same_weights(structure: Any) -> None:
    """Also for several outputs and weighted rows, and in the exact matrix beside a structure."""

    def fitted(factor: float) -> tb.LaplacePosterior:
        likelihood = tb.likelihoods.Weighted(tb.likelihoods.Gaussian((0.5 * factor, 2.0 * factor)))
        model = tb.Model(nn.Linear(3, 2).double(), likelihood, tb.priors.Normal(SCALE))
        rows = 8  # few enough that the exact matrix is added up beside a structure
        data = (X[:rows], (torch.stack([Y, -Y], 1)[:rows], torch.linspace(0.5, 2.0, rows, dtype=torch.float64)))
        method = tb.Laplace(structure, check_mode=False, prior="model")
        return tb.fit(model, data, method, start=0.4 * normal(8), callbacks=())  # type: ignore[return-value]

    changed, expected = fitted(1.0).with_noise(1.7), fitted(1.7)
    assert_close(changed.log_likelihood_M, expected.log_likelihood_M)
    assert_close(changed.log_evidence(), expected.log_evidence())
    assert (expected.exact is None) == (structure == "dense")
    for one, other in ((changed.curvature, expected.curvature), (changed.exact, expected.exact)):
        if one is not None and other is not None:
            assert_close(one.dense(), other.dense())


def test_held_out_data_choose_the_prior_and_noise() -> None:
    fitted, data = regression("dense"), (normal(30, 3, seed=6), normal(30, seed=7))
    tuned = tb.tune(fitted, prior="scalar", on=data)
    grid = [fitted.with_strength(torch.full_like(fitted.strength_D, 10 ** (k / 2))) for k in range(-8, 9)]
    best = min(tb.evaluate(tb.Linearised(p), data).metrics["nll"] for p in grid)
    assert tb.evaluate(tb.Linearised(tuned), data).metrics["nll"] <= best + 1e-6
    both = tb.tune(fitted, prior="scalar", noise=True, on=data)
    assert tb.evaluate(tb.Linearised(both), data).metrics["nll"] < best


@pytest.mark.parametrize(("miss", "factor"), [(0.0, 1e4), (100.0, 1e-4)])
def test_held_out_data_that_determine_no_factor_are_told(miss: float, factor: float) -> None:
    """Targets at the mode's outputs want no variance of the functions, those far away ever more."""
    fitted, inputs = regression("dense"), normal(30, 3, seed=6)
    data = inputs, tb.Linearised(fitted).functions(inputs).mean_MBK[0, :, 0] + miss
    tuned = tb.tune(fitted, on=data)
    assert_close(tuned.strength_D / fitted.strength_D, torch.full((21,), factor, dtype=torch.float64), rtol=0.02)
    (said,) = tuned.problems
    assert said.startswith(f"its prior was changed by a factor {factor:.0e} on the precision, at which the search")
    with pytest.warns(tb.ProblemWarning, match="held-out data ends"):
        tb.evaluate(tb.Linearised(tuned), data)
    with pytest.warns(tb.ProblemWarning, match="held-out data ends"):
        assert tb.tune(tuned).problems == ()  # by the evidence: chosen anew
    noisy = inputs, data[1] - miss + 0.9 * normal(30, seed=7)
    assert fitted.problems == tb.tune(fitted, on=noisy).problems == ()


def test_a_noise_scale_that_held_out_data_do_not_determine_is_told() -> None:
    fitted, inputs = regression("dense"), normal(30, 3, seed=6)
    data = inputs, tb.Linearised(fitted).functions(inputs).mean_MBK[0, :, 0]
    tuned = tb.tune(fitted, prior="model", noise=True, on=data)
    assert tuned.noise_scale == pytest.approx(0.01, rel=0.01)
    (said,) = tuned.problems
    assert said.startswith("its noise scale was changed by a factor 1e+04 on the precision")
    both = tb.tune(fitted, noise=True, on=data).problems
    assert [problem[:9] for problem in both] == ["its prior", "its noise"]


def test_classification_is_tuned_too() -> None:
    module = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    model = tb.Model(module, tb.likelihoods.Categorical(), tb.priors.Normal(1.0))
    fitted = tb.fit(model, (X, classes(40, 3)), tb.Laplace(check_mode=False, prior="model"), start=module, callbacks=())
    assert isinstance(fitted, tb.LaplacePosterior)
    tuned = tb.tune(fitted)
    for factor in (0.9, 1.1):
        assert float(fitted.with_strength(tuned.strength_D * factor).log_evidence()) < float(tuned.log_evidence())
    with pytest.raises(TypeError, match="no fixed noise scale"):
        tb.tune(fitted, noise=True)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: tb.tune(regression(), prior="every"), "`prior` must be one of"),  # type: ignore[arg-type]
        (lambda: tb.tune(regression(), prior="layer", on=(X, Y)), "held-out data choose one factor"),
        (lambda: regression().with_strength(torch.zeros(21)), "positive and finite"),
        (lambda: regression().with_strength(torch.full((21,), math.nan)), "positive and finite"),
    ],
)
def test_bad_input(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("structure", "prior"), some_of(["dense", "kronecker", "diagonal", "ekfac"], ["model", "scalar", "layer"], one_in=2)
)
def test_factors_multiply_the_prior_in_force(structure: str, prior: Any) -> None:
    """Of a posterior that another prior was chosen for, layer by layer."""
    fitted = regression(structure)
    force_D = torch.where(groups(fitted, "layer") == 0, 9.0, 0.2).double()
    before = fitted.with_strength(force_D)
    tuned, group_D = tb.tune(before, prior=prior, noise=True), groups(fitted, prior)
    given = None if structure == "dense" else exact_noise(prior, force_D=None if prior == "layer" else force_D)

    def negative(point: Any) -> float:
        factors = torch.as_tensor(point[:-1], dtype=torch.float64).exp()[group_D] if prior != "model" else 1.0
        return -log_evidence(fitted, force_D * factors, math.exp(point[-1]) if given is None else given)

    best = minimize(negative, [0.0] * (int(group_D.max()) + 2), method="Nelder-Mead", options={"fatol": 1e-9,
                    "xatol": 1e-6, "maxiter": 4000, "maxfev": 4000})  # fmt: skip
    assert_close(float(tuned.log_evidence()), -best.fun, rtol=1e-9)
    ratio_D = tuned.strength_D / force_D
    for group in group_D.unique():
        assert_close(ratio_D[group_D == group], ratio_D[group_D == group][:1].expand(int((group_D == group).sum())))


def test_a_precision_for_every_weight_of_a_tuned_prior_is_the_same() -> None:
    fitted = regression("diagonal")
    once, twice = (tb.tune(p, prior="weight") for p in (fitted, tb.tune(fitted, prior="layer")))
    assert_close(twice.strength_D, once.strength_D, rtol=1e-6)


@pytest.mark.parametrize("prior", ["scalar", pytest.param("layer", marks=pytest.mark.study)])
def test_single_precision_does_not_lose_the_way(prior: Any) -> None:
    """A matrix that rounding has made indefinite, and a start far from the noise."""
    module = nn.Sequential(nn.Linear(3, 40), nn.Tanh(), nn.Linear(40, 1))
    inputs, targets = X.float(), Y.unsqueeze(1).float()
    actual = {}
    for dtype in (torch.float32, torch.float64):
        model = tb.Model(module.to(dtype), tb.likelihoods.Gaussian(0.02), tb.priors.Normal(1.0))
        start = (0.4 * normal(1, model.layout.size, seed=3)).to(dtype)
        data = inputs.to(dtype), targets.to(dtype)
        method = tb.Laplace("dense", prior=prior, noise=True, check_mode=False)
        actual[dtype] = tb.fit(model, data, method, start=start, callbacks=())
    single, double = (p.model.likelihood.scale for p in actual.values())  # type: ignore[attr-defined]
    # eigenvalues of 201 weights are known to 201 ε = 2.4e-5 of the largest; a lost way is off by orders of magnitude
    assert single == pytest.approx(double, rel=1e-4)


def test_a_count_of_parameters_too_large_for_the_targets_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "_FEW", 0)  # as for networks too large for the exact matrix
    module = nn.Sequential(nn.Linear(3, 30), nn.Tanh(), nn.Linear(30, 1)).double()
    model = tb.Model(module, tb.likelihoods.Gaussian(0.3), tb.priors.Normal(1.0))
    data = X, Y.unsqueeze(1)
    mode = tb.fit(model, data, tb.MAP(epochs=200, optimizer=tb.Adam(0.02), batch_size=40), callbacks=())
    method = tb.Laplace("diagonal", prior="scalar", noise=True, check_mode=False)
    with pytest.warns(UserWarning, match=r"counts 3\d parameters as determined by 40 targets"):
        tuned = tb.fit(model, data, method, start=mode, callbacks=())
    assert float(tuned.effective_parameters()) > 40 / 3  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match="probably too large"):
        tb.evaluate(tuned, data, draws=2)
    with pytest.warns(UserWarning, match="probably too large"):
        again = tb.tune(tuned, prior="model", noise=True, on=data)  # type: ignore[arg-type]
    assert not again.problems
    assert not tb.tune(regression("dense"), prior="scalar", noise=True).problems


def test_the_exact_curvature_is_added_up_where_the_structure_could_count_too_many() -> None:
    """With three targets for every weight it cannot, and the pass took ten times as long for nothing."""
    model = tb.Model(nn.Linear(3, 2).double(), tb.likelihoods.Gaussian(1.0))  # 8 weights
    weighted = tb.Model(nn.Linear(3, 2).double(), tb.likelihoods.Weighted(tb.likelihoods.Gaussian(1.0)))
    for rows, exact in ((11, True), (12, False)):
        data = normal(rows, 3), normal(rows, 2, seed=1)
        fitted = tb.fit(
            model, data, tb.Laplace(batch_size=5, check_mode=False, prior="model"), start=normal(8), callbacks=()
        )
        assert (fitted.exact is not None) == exact  # type: ignore[attr-defined]
        halved = data[0], (data[1], torch.full((rows,), 0.5, dtype=torch.float64))
        fewer = tb.fit(weighted, halved, tb.Laplace(check_mode=False, prior="model"), start=normal(8), callbacks=())
        assert fewer.exact is not None  # type: ignore[attr-defined]


@pytest.mark.parametrize("structure", ["kronecker", "diagonal"])
def test_without_the_exact_curvature_the_noise_is_near_that_by_it(structure: Any) -> None:
    """The exact one at the same weights is that of the dense structure: two targets or more for every weight."""
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()  # 21 weights
    model = tb.Model(module, tb.likelihoods.Gaussian(NOISE), tb.priors.Normal(SCALE))
    data = normal(90, 3), normal(90, 1, seed=1)
    fitted = {
        name: tb.fit(model, data, tb.Laplace(name, check_mode=False, prior="model"), start=normal(21), callbacks=())  # type: ignore[arg-type]
        for name in (structure, "dense")
    }
    assert fitted[structure].exact is None  # type: ignore[attr-defined]
    actual, exact = (tb.tune(fitted[name], noise=True).noise_scale for name in (structure, "dense"))  # type: ignore[arg-type]
    assert exact <= actual < 1.22 * exact


def table(rows: int, seed: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return training and test rows of a smooth function of five inputs with noise of scale 0.3."""
    inputs = normal(rows + 400, 5, seed=seed)
    mean = (2 * inputs[:, 0]).sin() + 0.5 * inputs[:, 1] * inputs[:, 2] + inputs[:, 3]
    targets = ((mean + 0.3 * normal(rows + 400, seed=seed + 1)) / mean.std()).unsqueeze(1)
    return (inputs[:rows], targets[:rows]), (inputs[rows:], targets[rows:])


@pytest.mark.slow
@pytest.mark.parametrize(("start", "seed"), with_studies([(0.1, 10)], (1.0, 0.1), (0, 10)))
def test_intervals_of_small_tables_cover_what_they_say(start: float, seed: int) -> None:
    """The noise from the structure's own count gave 50 % intervals that covered 90 to 100 % here."""
    train, test = table(150, seed)
    model = tb.Model(
        nn.Sequential(nn.Linear(5, 50), nn.Tanh(), nn.Linear(50, 1)).double(), tb.likelihoods.Gaussian(start)
    )
    mode = tb.fit(model, train, tb.MAP(epochs=300, optimizer=tb.Adam(0.01), batch_size=150), callbacks=())
    for structure in ("kronecker", "diagonal"):
        fitted = tb.fit(model, train, tb.Laplace(structure, check_mode=False, prior="model"), start=mode, callbacks=())  # type: ignore[arg-type]
        predictive = tb.predict(tb.Linearised(tb.tune(fitted, prior="scalar", noise=True)), test[0])  # type: ignore[arg-type]
        for level, least, most in ((0.5, 0.4, 0.8), (0.95, 0.88, 1.0)):
            low, high = predictive.quantile(torch.tensor([0.5 - level / 2, 0.5 + level / 2]))
            covered = float(((test[1] > low) & (test[1] < high)).double().mean())
            assert least <= covered <= most, (structure, level, covered)
