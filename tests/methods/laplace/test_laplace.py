"""Laplace meets closed forms, and refuses what would be silently wrong."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from tests.oracles import LinearGaussian, assert_close, classes, normal
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.data import load
from torchbayes.driver.checks import ChangingDataWarning
from torchbayes.driver.progress import summary
from torchbayes.evidence import linear_gaussian_evidence
from torchbayes.health.mode import AWAY, TOO_CAUTIOUS, off_mode
from torchbayes.linalg import Dense, Diagonal
from torchbayes.linalg.dropped import rest_diagonal
from torchbayes.model.priors.joint import Joint
from torchbayes.selection import length

X, TEST = normal(40, 3), normal(6, 3, seed=9)
Y = X @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + 0.3 + 0.7 * normal(40, seed=1)
EXACT = LinearGaussian(X, Y, 0.4, 0.7)
# diagonal is not: the inputs are correlated
EXACT_STRUCTURES = ("dense", "kronecker", "ekfac", "low_rank")


def linear(outputs: int = 1, **settings: Any) -> tb.Model:
    module = nn.Linear(3, outputs).double()
    likelihood = settings.pop("likelihood", tb.likelihoods.Gaussian(0.7))
    return tb.Model(module, likelihood, settings.pop("prior", tb.priors.Normal(0.4)), **settings)


def laplace(model: tb.Model, data: tuple[Tensor, Tensor], start: Tensor, **settings: Any) -> tb.LaplacePosterior:
    return tb.fit(
        model, data, tb.Laplace(**{"batch_size": 16, "prior": "model", **settings}), start=start, callbacks=()
    )  # type: ignore[return-value]


@pytest.mark.parametrize("structure", EXACT_STRUCTURES)
@pytest.mark.parametrize("curvature", ["ggn", "hessian"])
def test_linear_gaussian_posterior_predictive_and_evidence_are_exact(structure: str, curvature: str) -> None:
    if curvature == "hessian" and structure != "dense":
        return
    mean, covariance = EXACT.posterior()
    actual = laplace(linear(), (X, Y), mean, structure=structure, curvature=curvature)
    assert_close(actual.gaussian.covariance.dense()[0], covariance, rtol=1e-8)
    assert_close(actual.log_evidence()[0], EXACT.log_evidence(), rtol=1e-10)
    prediction = tb.predict(tb.Linearised(actual), TEST)
    expected_mean, expected_variance = EXACT.predictive(TEST)
    assert_close(prediction.mean[:, 0], expected_mean, rtol=1e-8)
    assert_close(prediction.variance[:, 0], expected_variance, rtol=1e-8)
    assert_close(prediction.aleatoric[:, 0], torch.full((6,), 0.49, dtype=torch.float64))
    assert_close(prediction.epistemic[:, 0], expected_variance - 0.49, rtol=1e-8)
    targets = normal(6, seed=4)
    density = torch.distributions.Normal(expected_mean, expected_variance.sqrt()).log_prob(targets)
    assert_close(prediction.log_prob(targets), density, rtol=1e-8)


def test_diagonal_is_the_diagonal_of_the_exact_precision() -> None:
    mean, covariance = EXACT.posterior()
    actual = laplace(linear(), (X, Y), mean, structure="diagonal")
    assert_close(1 / actual.gaussian.covariance.diagonal()[0], torch.linalg.inv(covariance).diagonal(), rtol=1e-9)


@pytest.mark.parametrize("structure", EXACT_STRUCTURES)
def test_several_outputs_with_noise_of_their_own(structure: str) -> None:
    """KFAC is exact where every output has the same noise; a dense matrix always is."""
    scales = (0.7, 0.7) if structure != "dense" else (0.5, 1.2)
    model = linear(2, likelihood=tb.likelihoods.Gaussian(scales))
    targets = torch.stack([Y, normal(40, seed=5)], dim=1)
    exact = linear_gaussian_evidence(model, (X, targets)).log_evidence
    features = LinearGaussian.features(X)
    weights = []
    for target, scale in zip(targets.T, scales, strict=True):
        own = LinearGaussian(X, target, 0.4, scale)
        weights.append(own.posterior()[0])
    mode = torch.cat([torch.stack(weights)[:, :3].flatten(), torch.stack(weights)[:, 3]])
    actual = laplace(model, (X, targets), mode, structure=structure)
    assert_close(actual.log_evidence()[0], exact, rtol=1e-10)
    noise = torch.diag(torch.tensor([1 / s**2 for s in scales], dtype=torch.float64))
    precision = torch.kron(noise, features.T @ features)
    assert_close(actual.curvature.trace()[0] / 0.4**2, precision.trace(), rtol=1e-10)


@pytest.mark.parametrize("tempering", ["joint", "likelihood"])
@pytest.mark.parametrize("structure", EXACT_STRUCTURES)
def test_temperature_changes_the_spread_as_it_says(structure: str, tempering: Any) -> None:
    temperature, joint = 0.3, tempering == "joint"
    own = LinearGaussian(X, Y, 0.4, 0.7 if joint else 0.7 * math.sqrt(temperature), temperature if joint else 1.0)
    mean, covariance = own.posterior()
    model = linear(temperature=temperature, tempering=tempering)
    actual = laplace(model, (X, Y), mean, structure=structure)
    assert_close(actual.gaussian.covariance.dense()[0], covariance, rtol=1e-8)
    with pytest.raises(ValueError, match="T = 1"):
        actual.log_evidence()


def test_learned_noise_has_the_fisher_information_of_a_log_scale() -> None:
    model = linear(likelihood=tb.likelihoods.Gaussian("learned", prior=tb.priors.Normal(2.0)))
    start = torch.cat([EXACT.posterior()[0], torch.tensor([math.log(0.7)], dtype=torch.float64)])
    for structure in ("dense", "kronecker", "diagonal", "low_rank"):
        actual = laplace(model, (X, Y), start, structure=structure, check_mode=False)
        assert_close(actual.gaussian.covariance.diagonal()[0, -1], 1 / (2 * 40 + 1 / 4))
        if structure != "diagonal":
            assert_close(actual.gaussian.covariance.dense()[0, :-1, :-1], EXACT.posterior()[1], rtol=1e-8)
        variance = tb.predict(tb.Linearised(actual), TEST).aleatoric
        assert_close(variance, torch.full_like(variance, 0.49))


def test_priors_of_several_scales_are_exact_too() -> None:
    """Biases may have a prior of their own although they share the layer's Kronecker factors."""
    model = linear(prior={"weight": tb.priors.Normal(0.4), "bias": tb.priors.Normal(2.0)})
    features = LinearGaussian.features(X)
    precision = features.T @ features / 0.49 + torch.diag(torch.tensor([6.25, 6.25, 6.25, 0.25])).double()
    mode = torch.linalg.solve(precision, features.T @ Y / 0.49)
    exact = linear_gaussian_evidence(model, (X, Y)).log_evidence
    for structure in EXACT_STRUCTURES:
        actual = laplace(model, (X, Y), mode, structure=structure)
        assert_close(actual.gaussian.covariance.dense()[0], torch.linalg.inv(precision), rtol=1e-8)
        assert_close(actual.log_evidence()[0], exact, rtol=1e-10)


def test_a_posterior_is_the_next_task_s_prior() -> None:
    """Two halves of the data one after the other give what both give together."""
    whole = EXACT.posterior()
    first = LinearGaussian(X[:25], Y[:25], 0.4, 0.7)
    for structure in ("dense", "kronecker", "ekfac"):
        before = laplace(linear(), (X[:25], Y[:25]), first.posterior()[0], structure=structure)
        model = tb.Model(nn.Linear(3, 1).double(), tb.likelihoods.Gaussian(0.7), tb.as_prior(before))
        after = laplace(model, (X[25:], Y[25:]), whole[0], structure=structure)
        assert_close(after.gaussian.covariance.dense()[0], whole[1], rtol=1e-8)
        total = before.log_evidence()[0] + after.log_evidence()[0]
        assert_close(total, EXACT.log_evidence(), rtol=1e-9)


def test_a_diagonal_posterior_as_the_next_task_s_prior() -> None:
    inputs = torch.linalg.qr(X).Q * 3  # uncorrelated, so that a diagonal is exact
    module = nn.Linear(3, 1, bias=False).double()
    precision = 9 / 0.49 / 2 + 1 / 0.16
    start = torch.zeros(3, dtype=torch.float64)
    variance = torch.full((1, 3), 1 / precision, dtype=torch.float64)
    prior = Joint(start, Diagonal(variance))
    model = tb.Model(module, tb.likelihoods.Gaussian(0.7), prior)
    for structure in ("diagonal", "kronecker", "dense"):
        actual = laplace(model, (inputs, Y), start, structure=structure, check_mode=False)
        expected = torch.full((3,), 1 / (precision + 9 / 0.49), dtype=torch.float64)
        assert_close(actual.gaussian.covariance.diagonal()[0], expected, rtol=1e-8)


def test_a_mixture_has_the_evidence_of_each_mode() -> None:
    model = linear()
    mean = EXACT.posterior()[0]
    both = laplace(model, (X, Y), torch.stack([mean, mean + 1.0]), check_mode=False)
    alone = laplace(model, (X, Y), mean + 1.0, check_mode=False)
    assert both.members == 2
    assert_close(both.log_evidence()[1], alone.log_evidence()[0])
    assert_close(both.log_evidence()[0], EXACT.log_evidence(), rtol=1e-10)


def test_a_matrix_is_inverted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, real = [], Dense.of_precision
    monkeypatch.setattr(Dense, "of_precision", lambda precision: seen.append(1) or real(precision))
    actual = laplace(linear(), (X, Y), EXACT.posterior()[0], structure="dense")
    actual.log_evidence()
    tb.predict(tb.Linearised(actual), TEST)
    assert len(seen) == 1
    assert actual.calibration is not None


def test_the_progress_bar_knows_what_a_pass_tells() -> None:
    """A fit without `callbacks` shows one."""
    seen: list[str] = []
    mean = EXACT.posterior()[0]
    tb.fit(
        linear(), (X, Y), tb.Laplace(prior="model"), start=mean, callbacks=[lambda event: seen.append(summary(event))]
    )
    residual = Y - LinearGaussian.features(X) @ mean
    nll = float((0.5 * (residual / 0.7) ** 2).mean()) + math.log(0.7 * math.sqrt(2 * math.pi))
    assert seen == [f"train NLL {nll:.4g}"]
    actual = tb.fit(linear(), (X, Y), tb.Laplace(prior="model"), start=mean)
    assert_close(actual.log_evidence()[0], EXACT.log_evidence(), rtol=1e-10)  # type: ignore[attr-defined]


class TestModes:
    """A start that is not a mode is said."""

    def test_a_mode_is_silent(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            laplace(linear(), (X, Y), EXACT.posterior()[0])

    @pytest.mark.parametrize("structure", ["diagonal", "kronecker", "dense", "low_rank", "ekfac"])
    def test_the_gradient_norm_is_said(self, structure: str) -> None:
        mean, covariance = EXACT.posterior()
        shift = torch.tensor([1.0, -1.0, 2.0, 0.5], dtype=torch.float64)
        gradient = torch.linalg.solve(covariance, shift)
        norm, gain = float(torch.linalg.vector_norm(gradient)), float(0.5 * shift @ gradient)
        said = f"norm {norm:.3g}, and a Newton step would raise it by {gain:.3g} nats"
        with pytest.warns(tb.ProblemWarning, match=said if structure != "diagonal" else AWAY):
            actual = laplace(linear(), (X, Y), mean + shift, structure=structure)
        assert [AWAY in problem for problem in actual.problems] == [True]

    def test_the_gradient_is_that_under_the_noise_of_the_posterior(self) -> None:
        """It was added up under the noise scale of the fit, before another was chosen."""
        start = EXACT.posterior()[0] + torch.tensor([1.0, -1.0, 2.0, 0.5], dtype=torch.float64)
        features, said = torch.cat([X, torch.ones(40, 1).double()], 1), list[list[str]]()
        for noise, factor in ((0.7, 1.0), (0.35, 2.0)):
            model = linear(likelihood=tb.likelihoods.Gaussian(noise))
            actual = laplace(model, (X, Y), start, structure="dense", check_mode=False).with_noise(factor)
            said.append(off_mode(actual, (features.T @ (Y - features @ start)).unsqueeze(0) / noise**2))
        assert said[0] == said[1] != []

    def test_as_far_as_a_draw_of_the_posterior_is_near_enough(self) -> None:
        """The bound: draws lie at ½ χ²_γ nats on average γ/2, so those of half the spread are below it."""
        mean, covariance = EXACT.posterior()
        root = torch.linalg.cholesky(covariance)
        for scale, expected in ((0.5, False), (3.0, True)):
            direction = torch.full((4,), scale, dtype=torch.float64)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                actual = laplace(linear(), (X, Y), mean + root @ direction, structure="dense")
            assert len(caught) == len(actual.problems) == expected

    @pytest.mark.parametrize("trained", [True, False])
    def test_a_posterior_far_less_sure_than_its_mode_is_reported(self, trained: bool) -> None:
        """Trained without the prior, weights grow until all rows are certain, and the curvature there nearly vanishes.

        A mode that `fit` finds itself, under the prior, is no such point.
        """
        rows = load("digits", train_size=500).train
        torch.manual_seed(0)
        network = nn.Sequential(nn.Flatten(), nn.Linear(64, 30), nn.ReLU(), nn.Linear(30, 10))
        optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
        for _ in range(300 * trained):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(rows.inputs), rows.targets).backward()
            optimizer.step()
        model = tb.Model(network, tb.likelihoods.Categorical())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", tb.ProblemWarning)
            posterior = tb.fit(model, rows, tb.Laplace(), start=network if trained else None, callbacks=())
        assert [TOO_CAUTIOUS in problem for problem in posterior.problems] == [True] * trained
        if not trained:
            assert tb.evaluate(posterior, rows).metrics["nll"] < 0.1

    def test_what_a_low_rank_leaves_out_is_no_distance_from_a_mode(self) -> None:
        """In the directions left out the covariance is the prior's, along which a small gradient would lead far."""
        mean, covariance = EXACT.posterior()
        direction = torch.full((4,), 0.5, dtype=torch.float64)
        at = mean + torch.linalg.cholesky(covariance) @ direction
        actual = laplace(linear(), (X, Y), at, structure="low_rank", rank=1)
        assert not actual.problems
        assert float(rest_diagonal(actual.curvature).sum()) > 1  # so that something is left out

    def test_an_untrained_classifier(self) -> None:
        module = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)).double()
        model = tb.Model(module, tb.likelihoods.Categorical())
        labels = X.argmax(1)
        with pytest.warns(tb.ProblemWarning, match="train to convergence"):
            tb.fit(model, (X, labels), tb.Laplace(prior="model"), start=module, callbacks=())
        trained = tb.fit(model, (X, labels), tb.MAP(epochs=400, optimizer=tb.Adam(0.02)), callbacks=())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tb.fit(model, (X, labels), tb.Laplace(prior="model"), start=trained, callbacks=())


class TestBadInput:
    """Clear errors, and nothing lost."""

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"structure": "full"}, "`structure` must be one of diagonal, kronecker"),
            ({"curvature": "newton"}, "`curvature` must be one of auto, ggn"),
            ({"curvature": "hessian"}, "dense matrix alone"),
            ({"prior": "both"}, "`prior` must be one of"),
            ({"rank": 0}, "`rank` must be a whole number"),
            ({"structure": "low_rank", "passes": 1}, "at least 2"),
            ({"sharing": "shrink"}, "`sharing` must be one of expand, reduce"),
        ],
    )
    def test_settings(self, settings: dict[str, Any], words: str) -> None:
        with pytest.raises(ValueError, match=words):
            tb.Laplace(**{"prior": "model", **settings})

    def test_a_likelihood_without_curvature(self) -> None:
        model = linear(likelihood=lambda f: torch.distributions.Laplace(f, 1.0, validate_args=False))
        with pytest.raises(ValueError, match="no curvature in f"):
            laplace(model, (X, Y), EXACT.posterior()[0])
        actual = laplace(model, (X, Y), EXACT.posterior()[0], curvature="empirical", check_mode=False)
        features = LinearGaussian.features(X)  # the score is ±1
        assert_close(actual.curvature.trace()[0] / 0.16, features.square().sum(), rtol=1e-9)

    def test_a_precision_that_is_not_positive_definite(self) -> None:
        """The exact Hessian of a saddle, under a wide prior."""
        module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
        model = tb.Model(module, tb.likelihoods.Categorical(), tb.priors.Normal(100.0))
        start = 0.3 * normal(model.layout.size)
        with pytest.raises(ValueError, match="not positive definite: its smallest eigenvalue is -"):
            laplace(model, (X, classes(40, 3)), start, structure="dense", curvature="hessian", check_mode=False)

    def test_a_flat_prior_without_data_enough(self) -> None:
        model = linear(prior=tb.priors.Flat())
        with pytest.raises(ValueError, match="the data do not determine 3 of the 3 weights of `weight`, 1 of the 1"):
            laplace(model, (X[:2], Y[:2]), EXACT.posterior()[0], structure="dense", check_mode=False)
        actual = laplace(model, (X, Y), EXACT.posterior()[0], structure="dense", check_mode=False)
        with pytest.raises(ValueError, match="flat for 3 of the 3 weights of `weight`"):
            actual.log_evidence()

    def test_a_heavy_tailed_prior_where_it_curves_upwards(self) -> None:
        model = linear(prior=tb.priors.StudentT(df=2.0, scale=0.1))
        with pytest.raises(ValueError, match="curves upwards"):
            laplace(model, (X, Y), EXACT.posterior()[0], check_mode=False)

    def test_uneven_priors_within_a_layer(self) -> None:
        module = nn.Linear(3, 2).double()
        prior = Joint.independent(torch.zeros(8, dtype=torch.float64), normal(8).exp())
        model = tb.Model(module, tb.likelihoods.Categorical(), prior)
        with pytest.raises(ValueError, match="same prior precision for all weights of a layer"):
            laplace(model, (X, classes(40, 2)), model.given_weights(), check_mode=False)

    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_weights_that_are_not_finite(self, bad: float) -> None:
        start = EXACT.posterior()[0].clone()
        start[1] = bad
        with pytest.raises((ValueError, tb.DivergedError), match="not finite"):
            laplace(linear(), (X, Y), start)

    def test_one_row_and_one_class(self) -> None:
        actual = laplace(linear(), (X[:1], Y[:1]), torch.zeros(4).double(), check_mode=False)
        exact = LinearGaussian(X[:1], Y[:1], 0.4, 0.7)
        assert_close(actual.gaussian.covariance.dense()[0], exact.posterior()[1], rtol=1e-9)
        module = nn.Linear(3, 2).double()
        model = tb.Model(module, tb.likelihoods.Categorical())
        one = laplace(model, (X, torch.zeros(40).long()), model.given_weights(), check_mode=False)
        assert torch.isfinite(one.log_evidence()).all()

    def test_augmented_data(self) -> None:
        class Shaken(torch.utils.data.Dataset[Any]):
            """Rows with fresh noise at every look."""

            noise = 0.1

            def __len__(self) -> int:
                return 40

            def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
                return X[row] + self.noise * torch.randn(3, dtype=torch.float64), Y[row]

        data, start = Shaken(), EXACT.posterior()[0]
        method = tb.Laplace(check_mode=False, prior="model")
        with pytest.warns(ChangingDataWarning, match="differ from pass to pass"):
            tb.fit(linear(), data, method, start=start, callbacks=())
        data.noise = 0.0
        actual = tb.fit(linear(), data, method, start=start, callbacks=())
        assert_close(actual.log_evidence()[0], EXACT.log_evidence(), rtol=1e-10)  # type: ignore[attr-defined]

    def test_dropout_in_training_mode_is_off(self) -> None:
        module = nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.5), nn.Linear(5, 1)).double().train()
        model = tb.Model(module, tb.likelihoods.Gaussian(0.7), tb.priors.Normal(0.4))
        plain = tb.Model(nn.Sequential(module[0], nn.Identity(), module[2]), tb.likelihoods.Gaussian(0.7),
                         tb.priors.Normal(0.4))  # fmt: skip
        actual, expected = (laplace(m, (X, Y), m.given_weights(), check_mode=False) for m in (model, plain))
        assert_close(actual.curvature.dense(), expected.curvature.dense())
        assert module.training


@pytest.mark.parametrize("trainable", [True, False])
def test_batch_norm_without_statistics_is_refused_before_training(trainable: bool) -> None:
    """Its outputs depend on the batch even where it is frozen and in evaluation mode."""
    norm = nn.BatchNorm1d(5, track_running_stats=False).requires_grad_(trainable)
    model = tb.Model(nn.Sequential(nn.Linear(3, 5), norm, nn.Linear(5, 1)).double(), tb.likelihoods.Gaussian(0.7))
    message = r"`1` is a batch norm without running statistics.*filter response norm or group norm"
    start, short = tb.Point(model, model.given_weights().unsqueeze(0)), tb.OnlineLaplace(epochs_of_descent=5)
    for fail in (
        lambda: laplace(model, (X, Y), start),  # type: ignore[arg-type]
        lambda: tb.fit(model, (X, Y), short, callbacks=[lambda _: pytest.fail("it was trained")]),
        lambda: tb.functional_laplace(model, (X, Y), start),
    ):
        with pytest.raises(ValueError, match=message):
            fail()


@pytest.mark.parametrize("prior", [pytest.param("model", marks=pytest.mark.study), 100.0])
def test_a_length_that_was_chosen_is_no_mode_and_nothing_is_said_of_it(
    prior: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(length, "_LONGEST", 50)  # steps of the first runs at most
    source = torch.Generator().manual_seed(0)
    inputs = torch.randn(200, 5, generator=source)
    labels = (inputs[:, 0] + 0.5 * torch.randn(200, generator=source) > 0).long()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 30), nn.Tanh(), nn.Linear(30, 2))
    model = tb.Model(net, tb.likelihoods.Categorical())
    actual = tb.fit(model, (inputs, labels), tb.Laplace(prior=prior), callbacks=())  # warnings are errors
    again = tb.fit(model, (inputs, labels), tb.Laplace(prior=prior, check_mode=False), start=actual.mean_MD[0])
    assert not actual.problems
    assert_close(actual.strength_D, again.strength_D)


def test_problems_of_a_mode_that_was_sought_are_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(length, "_LONGEST", 20)  # steps of the first runs at most
    inputs = 1000 * normal(60, 3).float()
    model = tb.Model(nn.Linear(3, 1), tb.likelihoods.Gaussian(0.1))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        tb.fit(model, (inputs, 5000 + 1000 * inputs[:, :1].sin()), tb.Laplace(prior=1.0), callbacks=())
    texts = [str(each.message).partition(": ")[2] for each in said if issubclass(each.category, tb.ProblemWarning)]
    assert texts
    assert len(texts) == len({*texts})
