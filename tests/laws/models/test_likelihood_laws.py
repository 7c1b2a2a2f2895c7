"""Laws of weights: two ways to say the same of the data give the same posterior, evidence, predictions and scores.

A row of weight w is w rows; what is ignored is not there; weights of classes are weights of rows; a soft label is the
rows of all classes with their shares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, distributions, nn

import torchbayes as tb
from tests.covering import some_of, with_studies
from tests.laws.cases import unjudged, with_variants_as_studies
from tests.laws.models.survival import Survival, times
from tests.oracles import assert_close, classes, normal
from torchbayes.evidence import linear_gaussian_evidence
from torchbayes.linalg import Diagonal
from torchbayes.model.batches.batch import on_rows
from torchbayes.model.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Poisson,
    Probit,
    StudentT,
    Weighted,
)

N, K = 9, 3
X, ELSEWHERE = normal(N, 2, seed=4), normal(5, 2, seed=5)
COUNTS = torch.tensor([2, 0, 1, 3, 1, 0, 2, 1, 4])
LABELS, REAL = classes(N, K, seed=6), normal(N, 2, seed=7)
HOLES = torch.where(COUNTS == 0, -100, LABELS)
SOFT, SHARES = normal(N, K, seed=8).softmax(-1), normal(N, 1, seed=9).sigmoid()
CLASS_WEIGHTS = (0.5, 2.0, 1.25)


class Way(NamedTuple):
    """One way to say it: a likelihood, and data as it takes them."""

    likelihood: Any
    inputs: Tensor
    targets: Any


class Pair(NamedTuple):
    """Two ways to say the same, and the outputs of the network; `judged` where metrics are the same too."""

    outputs: int
    one: Way
    other: Way
    kinds: tuple[str, ...] = ("ggn", "empirical", "hessian")
    judged: bool = True


@dataclass(frozen=True)
class Mine(Categorical):
    """Class weights as a user writes them."""

    def log_prob(self, outputs: Tensor, targets: Tensor, parameters: Any = None) -> Tensor:
        each = outputs.log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        return each * outputs.new_tensor(CLASS_WEIGHTS)[targets]


def repeated(base: Any, outputs: int, targets: Any) -> Pair:
    """Return rows with weights, and the same rows as often as they count."""
    rows = on_rows(lambda t: t.repeat_interleave(COUNTS, 0), targets)
    weighted = Way(Weighted(base), X, (targets, COUNTS.double()))
    kinds = ("ggn", "hessian") if outputs < K else ("ggn", "empirical", "hessian")  # of one likelihood for all
    return Pair(outputs, weighted, Way(base, X.repeat_interleave(COUNTS, 0), rows), kinds)


def every_class(targets: Tensor, shares_NK: Tensor) -> Way:
    """Return a row for each class, with its share as the weight."""
    return Way(Weighted(Categorical()), X.repeat_interleave(K, 0), (targets, shares_NK.flatten()))


ALL = torch.arange(K).repeat(N)
KEPT = COUNTS > 0
SMOOTH = 0.8 * torch.eye(K, dtype=torch.float64)[LABELS] + 0.2 / K
PAIRS: dict[str, Pair] = {
    "classes": repeated(Categorical(), K, LABELS),
    "soft classes": repeated(Categorical(), K, SOFT),
    "binary": repeated(Bernoulli(), 2, (REAL > 0).double()),
    "probit": repeated(Probit(), 2, (REAL > 0).double()),
    "gaussian": repeated(Gaussian(0.6), 2, REAL),
    "gaussian, two scales": repeated(Gaussian((0.6, 0.9)), 2, REAL),
    "gaussian, learned": repeated(Gaussian("learned"), 2, REAL),
    "heteroscedastic": repeated(HeteroscedasticGaussian(), 4, REAL),
    "student": repeated(StudentT(), 2, REAL),
    "poisson": repeated(Poisson(), 2, classes(2 * N, 4).view(N, 2)),
    "custom": repeated(tb.likelihoods.Custom(lambda f: distributions.Gumbel(f, 1.0, validate_args=False)), 2, REAL),
    "survival": repeated(Survival(), 1, times(N)),
    "ignored rows": Pair(K, Way(Categorical(ignore_index=-100), X, HOLES), Way(Categorical(), X[KEPT], LABELS[KEPT])),
    "class weights": Pair(
        K,
        Way(Categorical(CLASS_WEIGHTS), X, LABELS),
        Way(Weighted(Categorical()), X, (LABELS, torch.tensor(CLASS_WEIGHTS, dtype=torch.float64)[LABELS])),
        judged=False,
    ),
    "both weights": Pair(
        K,
        Way(Weighted(Categorical(CLASS_WEIGHTS)), X, (LABELS, COUNTS)),
        Way(Categorical(CLASS_WEIGHTS), X.repeat_interleave(COUNTS, 0), LABELS.repeat_interleave(COUNTS)),
    ),
    "a subclass": Pair(
        K,
        Way(Mine(), X, LABELS),
        Way(Categorical(CLASS_WEIGHTS), X, LABELS),
        kinds=("hessian", "ggn"),
        judged=False,
    ),
    "one hot": Pair(K, Way(Categorical(), X, torch.eye(K, dtype=torch.float64)[LABELS]), Way(Categorical(), X, LABELS)),
    "shares": Pair(K, Way(Categorical(), X, SOFT), every_class(ALL, SOFT)),
    "smoothing": Pair(K, Way(Categorical(label_smoothing=0.2), X, LABELS), every_class(ALL, SMOOTH), judged=False),
    "binary shares": Pair(
        1,
        Way(Bernoulli(soft=True), X, SHARES),
        Way(Weighted(Bernoulli()), X.repeat(2, 1), (torch.arange(2 * N) // N, torch.cat([1 - SHARES, SHARES])[:, 0])),
    ),
}


def models(name: str, scale: float = 0.8) -> list[tuple[tb.Model, Any]]:
    """Return the two models of a pair with their data."""
    actual = []
    for way in PAIRS[name].one, PAIRS[name].other:
        torch.manual_seed(2)
        net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, PAIRS[name].outputs)).double()
        actual.append((tb.Model(net, way.likelihood, tb.priors.Normal(scale)), (way.inputs, way.targets)))
    return actual


def laplaces(name: str, scale: float = 0.8, **options: Any) -> list[tb.LaplacePosterior]:
    method = tb.Laplace(check_mode=False, **{"prior": "model", **options})
    with unjudged():
        actual = [tb.fit(m, data, method, start=m.given_weights(), callbacks=()) for m, data in models(name, scale)]
    assert all(isinstance(each, tb.LaplacePosterior) for each in actual)
    return actual  # type: ignore[return-value]


@pytest.mark.parametrize(("name", "plan"), some_of(PAIRS, ("loop", "vmap"), one_in=2))
def test_the_log_joint_density_is_the_same(name: str, plan: Any):
    actual = []
    for model, data in models(name):
        model.check(model.unpack(data))
        rows = model.unpack(data)
        weights_MD = model.given_weights() + 0.3 * normal(2, model.layout.size, seed=1)
        actual.append(tb.LogDensity(model, rows.size, rows, plan=plan, chunk_size=4)(weights_MD))
    assert_close(actual[0].log_density, actual[1].log_density)
    assert_close(actual[0].gradient, actual[1].gradient, atol=1e-10)
    assert_close(actual[0].log_likelihood, actual[1].log_likelihood)


STRUCTURES = ["diagonal", "kronecker", "ekfac", "dense", "low_rank"]


# autograd knows no likelihood, and `test_the_log_joint_density_is_the_same` has the densities of all
DIFFERENTIATED = {*list(PAIRS)[::4], "a subclass"}
# each pair with the exact matrix, and every fourth with one other structure in turn: likelihoods reach the structures
# by the same factors
IN_TURN = [(name, STRUCTURES[:3][place // 4 % 3]) for place, name in enumerate(PAIRS) if place % 4 == 0]


@pytest.mark.parametrize(
    ("name", "structure"),
    with_studies(
        [*((name, "dense") for name in PAIRS), *IN_TURN, ("both weights", "low_rank")],
        PAIRS,
        STRUCTURES,
    ),
)
def test_the_curvature_is_the_same(name: str, structure: Any):
    for kind in PAIRS[name].kinds:
        if kind == "hessian" and (structure != "dense" or name not in DIFFERENTIATED):
            continue
        if name == "a subclass" and structure in {"kronecker", "ekfac"}:
            continue  # the second moments of a layer's inputs cannot know the weights that a subclass hides
        # a narrow prior makes the exact Hessian positive definite
        options = {"structure": structure, "curvature": kind, "rank": 60, "chunk": 2**10}
        one, other = laplaces(name, 0.1 if kind == "hessian" else 0.8, **options)
        assert_close(one.curvature.dense(), other.curvature.dense(), rtol=1e-7, atol=1e-9)
        assert_close(one.log_likelihood_M, other.log_likelihood_M)
        assert_close(one.log_evidence(), other.log_evidence(), rtol=1e-8)


# equal curvatures, above, give equal posteriors; what else predictions and forms ask a likelihood for is in either half
def half(start: int, *, leave: str = "") -> pytest.MarkDecorator:
    """Every second pair but one that is left out; the others are studies."""
    names = [name for name in PAIRS if name != leave]
    return pytest.mark.parametrize("name", with_variants_as_studies({n: n for n in names}, names[1 - start :: 2]))


@half(0)
def test_predictions_and_tuned_priors_are_the_same(name: str):
    structure = "dense" if name == "a subclass" else "kronecker"
    one, other = (tb.tune(each, prior="layer") for each in laplaces(name, structure=structure))
    assert_close(one.strength_D, other.strength_D, rtol=1e-6)
    assert_close(one.log_evidence(), other.log_evidence(), rtol=1e-7)
    drawn = [tb.predict(each, ELSEWHERE, draws=4, seed=1).outputs_SBK for each in (one, other)]
    assert_close(*drawn, rtol=1e-6, atol=1e-8)
    linear = [tb.predict(tb.Linearised(each), ELSEWHERE).outputs_SBK for each in (one, other)]
    assert linear[0].shape == linear[1].shape
    assert_close(*linear, rtol=1e-6, atol=1e-8)


def test_a_function_of_survival_is_drawn():
    """A likelihood without a closed link."""
    (one, _) = laplaces("survival")
    assert tb.predict(tb.Linearised(one, samples=7), ELSEWHERE).draws == 7


@half(1, leave="gaussian, learned")  # the form has no place for its parameter
def test_the_functional_form_is_the_same(name: str):
    actual = []
    for model, data in models(name):
        posterior = tb.functional_laplace(model, data, model.given_weights())
        actual.append((posterior.log_evidence(), posterior.functions(ELSEWHERE)))
    assert_close(actual[0][0], actual[1][0], rtol=1e-8)
    assert_close(actual[0][1].covariance_MBKK, actual[1][1].covariance_MBKK, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", [n for n, pair in PAIRS.items() if pair.judged])
def test_metrics_are_the_same(name: str):
    actual = []
    for model, data in models(name):
        variance = Diagonal(0.3 * torch.ones(1, model.layout.size, dtype=torch.float64))
        posterior = tb.Gaussian(model, model.given_weights().unsqueeze(0), variance)
        actual.append(tb.evaluate(posterior, data, draws=5, seed=3).metrics)
        # whole rows go to bins of equal mass where they have no weights: see test_weights of metrics
        actual[-1].pop("ece_mass", None)
        # depends on ties, and rows that are given twice can differ by a rounding: its weights are in test_weights too
        actual[-1].pop("aurc", None)
    if name == "student":  # of samples, others for other rows, as torch has no distribution function of a Student t
        assert actual[0].pop("crps") == pytest.approx(actual[1].pop("crps"), rel=0.01)
    assert actual[0] == pytest.approx(actual[1], rel=1e-9, abs=1e-12)
    assert len(actual[0]) > (1 if name not in {"survival", "custom", "poisson"} else 0)


@pytest.mark.parametrize(("structure", "padding"), some_of(STRUCTURES, [None, 2], one_in=2))
def test_rows_of_words_count_by_their_weights_too(structure: Any, padding: int | None):
    """An embedding, whose second moments are counts of words; a row without weight has a word that no other has."""
    words = classes(2 * N, 4, seed=11).view(N, 2)
    words[KEPT.logical_not()] = 5
    actual = []
    for likelihood, rows, targets in [
        (Weighted(Categorical()), words, (LABELS, COUNTS)),
        (Categorical(), words.repeat_interleave(COUNTS, 0), LABELS.repeat_interleave(COUNTS)),
    ]:
        torch.manual_seed(3)
        net = nn.Sequential(nn.Embedding(6, 3, padding_idx=padding), nn.Flatten(), nn.Linear(6, K)).double()
        model = tb.Model(net, likelihood, tb.priors.Normal(0.8))
        method = tb.Laplace(structure=structure, check_mode=False, rank=60, prior="model")
        with unjudged():
            actual.append(tb.fit(model, (rows, targets), method, start=model.given_weights(), callbacks=()))
    assert_close(actual[0].curvature.dense(), actual[1].curvature.dense(), rtol=1e-7, atol=1e-9)
    assert actual[0].curvature.trace() > 0


def test_loaders_of_triples():
    rows = torch.utils.data.TensorDataset(X, REAL, COUNTS)
    net, weighted = nn.Linear(2, 2).double(), Weighted(Gaussian())
    triples = tb.Model(net, weighted, batch=lambda row: (row[0], (row[1], row[2])))
    pairs = tb.Model(net, weighted)
    method = tb.Laplace(structure="dense", check_mode=False, prior="model")
    actual = tb.fit(triples, torch.utils.data.DataLoader(rows, batch_size=4), method, start=net, callbacks=())
    expected = tb.fit(pairs, (X, (REAL, COUNTS)), method, start=net, callbacks=())
    assert isinstance(actual, tb.LaplacePosterior)
    assert isinstance(expected, tb.LaplacePosterior)
    assert_close(actual.curvature.dense(), expected.curvature.dense())
    assert actual.num_targets == expected.num_targets == 2 * int(COUNTS.sum())


NOISY = [("gaussian, two scales", "model")]


@pytest.mark.parametrize(
    ("name", "prior"), with_studies(NOISY, ("gaussian", "gaussian, two scales"), ("model", "scalar"))
)
def test_the_noise_is_the_same(name: str, prior: Any):
    posteriors = laplaces(name, structure="dense")
    assert [p.num_targets for p in posteriors] == [2 * int(COUNTS.sum())] * 2
    one, other = (tb.tune(each, prior=prior, noise=True) for each in posteriors)
    assert one.noise_scale == pytest.approx(other.noise_scale, rel=1e-7)
    assert_close(one.log_evidence(), other.log_evidence(), rtol=1e-7)
    validated = [
        tb.tune(each, prior=prior, noise=True, on=data)
        for each, (_, data) in zip(posteriors, models(name), strict=True)
    ]
    assert validated[0].noise_scale == pytest.approx(validated[1].noise_scale, rel=1e-6)


@pytest.mark.parametrize("name", ["gaussian", "gaussian, two scales"])
def test_the_exact_evidence_of_a_linear_model_is_the_same_and_that_of_laplace(name: str):
    pair, actual = PAIRS[name], []
    for way in (pair.one, pair.other):
        net = nn.Linear(2, 2).double()
        model, data = tb.Model(net, way.likelihood, tb.priors.Normal(0.8)), (way.inputs, way.targets)
        exact = linear_gaussian_evidence(model, data).log_evidence
        posterior = tb.fit(
            model, data, tb.Laplace(structure="dense", check_mode=False, prior="model"), start=model.given_weights()
        )
        assert isinstance(posterior, tb.LaplacePosterior)
        rows = model.unpack(data)
        gradient_MD = tb.LogDensity(model, rows.size, rows, plan="loop")(posterior.mean_MD).gradient
        mode = posterior.mean_MD + posterior.gaussian.covariance.matvec(gradient_MD)  # one step of Newton's
        there = tb.fit(model, data, tb.Laplace(structure="dense", prior="model"), start=mode[0])
        assert isinstance(there, tb.LaplacePosterior)
        assert_close(there.log_evidence(), [exact], rtol=1e-9)
        actual.append(exact)
    assert actual[0] == pytest.approx(actual[1], rel=1e-12)


METHODS: dict[str, Callable[[float], Any]] = {
    # the loss is a mean over rows, so that the rate of the one is that of the other times the ratio of rows
    "map": lambda rate: tb.MAP(
        epochs=12, batch_size=100, optimizer=tb.SGD(lr=0.02 * rate, momentum=0.9), schedule=tb.Constant(), plan="loop"
    ),
    "hmc": lambda _: tb.HMC(chains=2, step_size=0.01, trajectory=0.05, steps=5, burn_in=0, plan="loop"),
}


@pytest.mark.filterwarnings("ignore:.*still on its way down:torchbayes.ProblemWarning")
@pytest.mark.parametrize(
    ("name", "method"),
    some_of(["classes", "gaussian, learned", "survival", "ignored rows", "shares"], METHODS, one_in=2),
)
def test_fits_on_all_rows_are_the_same(name: str, method: str):
    actual, start = [], models(name)[0][0].given_weights()
    for model, data in models(name):
        settings = METHODS[method](len(data[0]) / N)
        with unjudged():
            posterior: Any = tb.fit(model, data, settings, start=start, callbacks=())
        actual.append(posterior.weights_MD if method == "map" else posterior.weights_MSD)
    assert_close(*actual, rtol=1e-6, atol=1e-9)
    assert not torch.allclose(actual[0].flatten()[: len(start)], start, rtol=1e-3)
