"""Online evidence: training ends at the prior and noise that maximise the evidence."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.optimize import minimize
from tests.covering import with_studies
from tests.laws.cases import NETWORKS, assert_same_tensors, everything, losses, made, rows_of
from tests.laws.test_method_laws import break_after, keep_every
from tests.oracles import LinearGaussian, assert_close, normal
from torch import nn

import torchbayes as tb
from torchbayes.data import load
from torchbayes.density.density import LogDensity
from torchbayes.driver.checkpoint import flatten, restore
from torchbayes.driver.loop import Begin
from torchbayes.health.mode import TOO_CAUTIOUS
from torchbayes.methods.choices import FACTORS
from torchbayes.methods.schedules import epochs_of
from torchbayes.model.sources.sources import as_source
from torchbayes.selection import length
from torchbayes.selection.trials import Fold, trial

X = normal(40, 3)
Y = X @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + 0.3 + 0.7 * normal(40, seed=1)
SMALL: dict[str, Any] = {"epochs_of_descent": 5, "every": 2, "batch_size": 7, "plan": "loop"}
SMALLEST: dict[str, Any] = {**SMALL, "epochs_of_descent": 2, "every": 1, "batch_size": 12}  # a pass after each epoch
STRUCTURES = ["kronecker", "dense", "diagonal", "ekfac", "low_rank"]


@pytest.mark.parametrize("start", [0.1, pytest.param(5.0, marks=pytest.mark.study)])  # to the same maximum
def test_a_linear_model_ends_at_the_maximum_of_its_exact_evidence(start: float) -> None:
    method = tb.OnlineLaplace(
        prior="scalar", noise=True, epochs_of_descent=200, every=10, batch_size=40, optimizer=tb.SGD(0.2),
        schedule=tb.Constant(), plan="loop",
    )  # fmt: skip
    model = tb.Model(nn.Linear(3, 1).double(), tb.likelihoods.Gaussian(0.7), tb.priors.Normal(start))
    actual = tb.fit(model, (X, Y), method, callbacks=())
    assert isinstance(actual, tb.LaplacePosterior)

    def negative(point: Any) -> float:
        return -LinearGaussian(X, Y, math.exp(point[0]), math.exp(point[1])).log_evidence()

    best = minimize(negative, [0.0, 0.0], method="Nelder-Mead", options={"fatol": 1e-12, "xatol": 1e-9})
    scale, noise = (math.exp(value) for value in best.x)
    assert_close(actual.model.prior.stds()[0], scale, rtol=1e-4)
    assert isinstance(actual.model.likelihood, tb.likelihoods.Gaussian)
    assert actual.model.likelihood.scale == pytest.approx(noise, rel=1e-4)
    assert float(actual.log_evidence()) == pytest.approx(-best.fun, abs=1e-6)
    mean, covariance = LinearGaussian(X, Y, scale, noise).posterior()
    assert_close(actual.mean_MD[0], mean, rtol=1e-3, atol=1e-4)
    assert_close(actual.gaussian.covariance.dense()[0], covariance, rtol=1e-3, atol=1e-6)


def on_a_small_table(**settings: Any) -> tuple[Any, tuple[torch.Tensor, torch.Tensor], float]:
    """A fit whose weights are of size 2, its data, and the best evidence of any prior."""
    inputs = normal(80, 2)
    targets = 2 * inputs[:, :1] + 0.3 * normal(80, 1, seed=1)
    model = tb.Model(nn.Linear(2, 1).double(), tb.likelihoods.Gaussian(0.3), tb.priors.Normal(1.0))
    actual = tb.fit(model, (inputs, targets), tb.OnlineLaplace("dense", prior="scalar", **settings), callbacks=())
    best = max(
        LinearGaussian(inputs, targets[:, 0], float(scale), 0.3).log_evidence() for scale in torch.linspace(0.5, 3, 100)
    )
    return actual, (inputs, targets), best


@pytest.mark.study  # a linear model ends at its exact evidence, above
def test_a_small_table_at_the_usual_length() -> None:
    """The evidence is the exact one; 2,000 steps are usual, as a test below has it, and 800 are enough."""
    actual, _, best = on_a_small_table(epochs_of_descent=800)
    assert float(actual.log_evidence()) == pytest.approx(best, abs=0.02)
    assert not actual.problems


def test_a_descent_that_is_too_short(tmp_path: Path) -> None:
    """Weights of size 2 are out of reach of few small steps."""
    with pytest.warns(tb.ProblemWarning, match="member 0 is not at a mode of this model"):
        short, (inputs, targets), best = on_a_small_table(epochs_of_descent=20, optimizer=tb.Adam(0.001))
    assert float(short.log_evidence()) < best - 100
    loaded = tb.load(short.save(tmp_path / "q.safetensors"), short.model)
    assert isinstance(loaded, tb.LaplacePosterior)
    assert loaded.problems == short.problems
    with pytest.warns(tb.ProblemWarning, match="not at a mode"):
        tb.predict(tb.Linearised(loaded), inputs)
    mode, covariance = LinearGaussian(inputs, targets[:, 0], float(short.model.prior.stds()[0]), 0.3).posterior()
    away = short.mean_MD[0] - mode
    assert f"would raise it by {float(0.5 * away @ torch.linalg.solve(covariance, away)):.3g} nats" in short.problems[0]


@pytest.mark.filterwarnings("ignore:this posterior should not be trusted.*too cautious")
@pytest.mark.parametrize(("scale", "worse"), [(3.0, True), (0.3, False)])
def test_a_posterior_far_less_sure_than_its_mode_is_reported(scale: float, worse: bool) -> None:
    """Under a wide prior, where nothing chooses a factor, weights grow until the curvature nearly vanishes."""
    rows = load("digits", train_size=500).train
    network = tb.networks.mlp((1, 8, 8), 10, hidden=(30,))
    model = tb.Model(network, tb.likelihoods.Categorical(), tb.priors.Normal(scale))
    method = tb.OnlineLaplace(prior="model", epochs_of_descent=60, check_mode=False)
    posterior = tb.fit(model, rows, method, seed=0, callbacks=())
    mode = tb.Point(posterior.model, posterior.mean_MD)
    assert [TOO_CAUTIOUS in problem for problem in posterior.problems] == [True] * worse
    assert (tb.evaluate(posterior, rows).metrics["nll"] > tb.evaluate(mode, rows).metrics["nll"] + 0.6) == worse


def test_the_order_of_descent_and_passes() -> None:
    method = tb.OnlineLaplace(epochs_of_descent=6, every=2, burn_in=0.34)
    train, look = True, False
    assert method.order(1) == method.order(7) == (train, train, look, train, train, look, train, train, look)
    assert method.epochs == 9
    twice = tb.OnlineLaplace(structure="ekfac", epochs_of_descent=3, every=5, burn_in=0.9)
    assert twice.order(1) == (train, train, train, look, look)


@pytest.mark.parametrize(("steps_per_epoch", "descent", "passes"), [(1, 2000, 19), (8, 250, 20), (1000, 50, 10)])
def test_the_usual_length_is_50_epochs_or_2000_steps(steps_per_epoch: int, descent: int, passes: int) -> None:
    method = tb.OnlineLaplace()
    order = method.order(steps_per_epoch)
    assert sum(order) == descent
    assert method.epochs is None
    assert len(order) == descent + passes


@pytest.mark.filterwarnings("ignore:.*not at a mode")  # after so few steps
@pytest.mark.parametrize(
    ("structure", "network", "interrupted"),
    with_studies(
        [
            ("ekfac", "mlp", (14,)),  # laws of methods resume one whose sums need a single pass
        ],
        STRUCTURES,
        ("mlp", "conv_batch_norm", "tied"),
        ((5, 11, 14), (5,), (11,), (14,), (11, 14)),
    ),
)
def test_interrupted_and_resumed_equals_uninterrupted(
    structure: Any, network: str, interrupted: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert network in NETWORKS
    prior = "scalar" if structure in {"dense", "low_rank", "kronecker"} else "layer"

    def fit(directory: Path, **options: Any) -> Any:
        model = tb.Model(made(network), tb.likelihoods.Categorical(), tb.priors.Normal(1.0))
        method = tb.OnlineLaplace(structure=structure, prior=prior, **SMALL)
        return tb.fit(model, rows_of(network), method, seed=7, directory=directory, callbacks=(), **options)

    expected = fit(tmp_path / "whole")
    keep_every(monkeypatch, 10.0)
    for steps in interrupted:
        with monkeypatch.context() as inside:
            break_after(inside, tb.OnlineLaplace, steps)
            with pytest.raises(KeyboardInterrupt):
                fit(tmp_path / str(steps))
        assert_same_tensors(everything(fit(tmp_path / str(steps), resume=True)), everything(expected))
        assert losses(tmp_path / str(steps)) == losses(tmp_path / "whole")
    loaded = tb.load(tmp_path / "whole" / "posterior.safetensors", tb.Model(
        made(network), tb.likelihoods.Categorical(), tb.priors.Normal(1.0)))  # fmt: skip
    assert isinstance(loaded, tb.LaplacePosterior)
    assert_close(loaded.log_evidence(), expected.log_evidence())


@pytest.mark.parametrize(  # which has two passes; laws of methods have one with a single pass
    "structure", [*(pytest.param(s, marks=pytest.mark.study) for s in STRUCTURES[:-1]), "low_rank"]
)
def test_step_is_pure_and_donating_changes_nothing(structure: Any) -> None:
    model = tb.Model(made("mlp"), tb.likelihoods.Categorical(), tb.priors.Normal(1.0))
    method = tb.OnlineLaplace(structure=structure, prior="scalar", **SMALLEST)
    source = as_source(model, rows_of(), method.batch_size)
    density = tb.LogDensity(model, source.num_data, plan="loop", training=True)
    options: Any = {"seeds": [3], "steps_per_epoch": source.steps_per_epoch}
    state, donated = (method.init(density, *model.starting_weights([3]), **options) for _ in range(2))
    for epoch in range(len(method.order(source.steps_per_epoch))):
        for batch in source.epoch([3], epoch):
            before = {name: tensor.clone() for name, tensor in flatten(state)[0].items()}
            first, _ = method.step(density, state, batch)
            donated, _ = method.step(density, donated, batch, donate=True)
            assert_same_tensors(flatten(state)[0], before)
            assert_same_tensors(flatten(first)[0], flatten(donated)[0])
            state = first


def test_the_pass_has_its_first_name_in_checkpoints() -> None:
    """Files of the first releases call it `survey`, and so do those of now, so that either can be resumed."""
    model = tb.Model(made("mlp"), tb.likelihoods.Categorical(), tb.priors.Normal(1.0))
    density = tb.LogDensity(model, 10, plan="loop", training=True)
    state = tb.OnlineLaplace(**SMALL).init(density, *model.starting_weights([3]), seeds=[3], steps_per_epoch=2)
    tensors, numbers = flatten(state)
    assert "/survey/weights_MD" in tensors
    assert not any("last_pass" in name for name in (*tensors, *numbers))
    other_M = torch.full_like(state.last_pass.log_likelihood_M, 7.0)
    actual = restore(state, {**tensors, "/survey/log_likelihood_M": other_M}, numbers)
    assert_close(actual.last_pass.log_likelihood_M, other_M)


def test_what_it_refuses() -> None:
    tempered = tb.Model(nn.Linear(3, 1).double(), tb.likelihoods.Gaussian(0.7), temperature=0.5)
    with pytest.raises(ValueError, match="T = 1"):
        tb.fit(tempered, (X, Y), tb.OnlineLaplace(), callbacks=())
    flat = tb.Model(nn.Linear(3, 1).double(), tb.likelihoods.Gaussian(0.7), tb.priors.Flat())
    with pytest.raises(ValueError, match="normal prior"):
        tb.fit(flat, (X, Y), tb.OnlineLaplace(), callbacks=())
    with pytest.raises(ValueError, match="`prior` must be one of"):
        tb.OnlineLaplace(prior="unit")  # type: ignore[arg-type]


def test_length_and_factor_are_those_of_a_search_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = 60
    monkeypatch.setattr(epochs_of, "__kwdefaults__", {"steps": usual})
    monkeypatch.setattr(length, "_LONGEST", 30)  # steps of the first runs at most
    inputs, held_out = normal(60, 2), (normal(40, 2, seed=5), normal(40, 1, seed=6))
    data = (inputs, inputs[:, :1] + normal(60, 1, seed=1))

    def fit(method: Any, **about: Any) -> Any:
        network = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)).double()
        with torch.no_grad():
            torch.nn.utils.vector_to_parameters(0.5 * normal(33), network.parameters())
        model = tb.Model(network, tb.likelihoods.Gaussian(1.0), tb.priors.Normal(1.0))
        return tb.fit(model, data, method, callbacks=(), seed=3, start=0.5 * normal(33), **about)

    settings = {"structure": "kronecker", "optimizer": tb.Adam(0.02), "check_mode": False}
    actual = fit(tb.OnlineLaplace(**settings), validation=held_out, directory=tmp_path)
    chosen = json.loads((tmp_path / "config.json").read_text())["chosen"]
    widest, by_hands = [], {}
    for epochs in (lengths := list(dict.fromkeys(each["epochs_of_descent"] for each in chosen["tried"]))):
        by_hand, nlls = fit(tb.OnlineLaplace(**settings, epochs_of_descent=epochs or usual)), {}
        for factor in FACTORS:
            under = by_hand.with_strength(by_hand.strength_D * factor)
            nlls[factor] = tb.evaluate(tb.predict(tb.Linearised(under), held_out[0]), held_out[1]).metrics["nll"]
        by_hands[epochs] = by_hand
        tried = {each["factor"]: each["nll"] for each in chosen["tried"] if each["epochs_of_descent"] == epochs}
        assert tried == pytest.approx(nlls, rel=1e-6)
        first = next(factor for factor, nll in nlls.items() if nll <= min(nlls.values()) + 0.005)
        widest.append((nlls[first], {"epochs_of_descent": epochs, "factor": first}))
    assert len(lengths) == 2
    assert lengths[1] is None
    best = min(widest, key=lambda each: each[0])[1]
    assert chosen["settings"] == {**best, "check_mode": False}
    own = {**settings, "epochs_of_descent": best["epochs_of_descent"] or usual}
    same, plain = fit(tb.OnlineLaplace(**own, factor=best["factor"])), by_hands[best["epochs_of_descent"]]
    assert_close(actual.strength_D, same.strength_D)
    assert_close(same.strength_D, plain.strength_D * best["factor"])
    assert torch.equal(same.mean_MD, plain.mean_MD)


def test_what_a_search_only_tries_has_no_problems_to_warn_of() -> None:
    """A curvature without correlations leaves the noise in doubt, in every trial."""
    network = nn.Sequential(nn.Linear(3, 350), nn.Tanh(), nn.Linear(350, 1)).double()
    model = tb.Model(network, tb.likelihoods.Gaussian(1.0))
    method = tb.OnlineLaplace(
        structure="diagonal",
        noise=True,
        epochs_of_descent=5,
        every=5,
        batch_size=40,
        optimizer=tb.Adam(0.05),
        plan="loop",
    )
    source = as_source(model, (X, Y), 40)
    density = LogDensity(model, 40, None, plan="loop", training=True)
    actual = trial(method, density, Fold(source, []), begin=Begin(model.given_weights()[None], {}, [0]))
    assert actual.problems == ()
    with pytest.warns(tb.ProblemWarning, match="noise scale was changed"):
        assert tb.fit(model, (X, Y), method, start=network, callbacks=()).problems
