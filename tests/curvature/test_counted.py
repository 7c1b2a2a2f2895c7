"""Curvature of likelihoods that weigh, ignore or soften their observations, against autograd and repeated rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, distributions
from torch.utils import _pytree as pytree

from tests.oracles import assert_close, classes, normal
from torchbayes.curvature.roots import parameter_information, root
from torchbayes.model.likelihoods import (
    Bernoulli,
    Categorical,
    Custom,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    Poisson,
    StudentT,
    Weighted,
)

B, K, T = 6, 3, 2
WEIGHTS = torch.tensor([1.0, 0.0, 3.0, 2.0, 0.5, 1.7], dtype=torch.float64)
LOG_SCALE = {"log_scale": torch.tensor([-0.3], dtype=torch.float64)}
LABELS, PLACES = classes(B, K), classes(B * T, K, seed=2).view(B, T)
HOLES, HOLED = LABELS.clone(), PLACES.clone()
HOLES[1], HOLED[0, 1] = -100, -100
HOLED[3] = -100
SOFT, SOFT_PLACES = normal(B, K).softmax(-1), normal(B, T, K).softmax(-1)
BINARY, SHARES = classes(2 * B, 2).view(B, 2), normal(B, 2).sigmoid()
REAL, COUNTS = normal(B, 2, seed=1), classes(2 * B, 5).view(B, 2)
ONE, GRID = normal(B, K, seed=3), normal(B, T, K, seed=3)


@dataclass(frozen=True)
class Mine(Categorical):
    """Class weights and labels of −100 as a user writes them: as a subclass."""

    def log_prob(self, outputs: Tensor, targets: Tensor, parameters: Any = None) -> Tensor:
        known = targets.clamp_min(0)
        each = outputs.log_softmax(-1).gather(-1, known.unsqueeze(-1)).squeeze(-1)
        return torch.where(targets < 0, 0.0, each * outputs.new_tensor([1.0, 5.0, 0.2])[known])


class Apart:
    """The same as a separate class, whose log probability is not that of the distribution it names."""

    def parameters(self) -> dict[str, Any]:
        return {}

    def distribution(self, outputs: Tensor, parameters: Any = None) -> distributions.Distribution:
        return distributions.Categorical(logits=outputs)

    def log_prob(self, outputs: Tensor, targets: Tensor, parameters: Any = None) -> Tensor:
        return Mine().log_prob(outputs, targets)

    def check(self, outputs: Tensor, targets: Tensor) -> None: ...


@dataclass(frozen=True)
class Noisy(Gaussian):
    """A subclass that changes what the base's log_prob is made of."""

    def noise(self, outputs: Tensor, parameters: Any = None) -> Tensor:
        return 0.3 + outputs.square()


FORMS: dict[str, tuple[Any, Tensor, Any]] = {
    "class weights": (Categorical(weights=(0.5, 2.0, 0.0)), ONE, LABELS),
    "ignored": (Categorical(ignore_index=-100), ONE, HOLES),
    "an ignored class": (Categorical(ignore_index=1), ONE, LABELS),
    "weights, ignored": (Categorical(weights=(0.5, 2.0, 1.3), ignore_index=-100), ONE, HOLES),
    "smoothed": (Categorical(label_smoothing=0.2), ONE, LABELS),
    "all three": (Categorical(weights=(0.5, 2.0, 1.3), ignore_index=-100, label_smoothing=0.1), ONE, HOLES),
    "soft": (Categorical(), ONE, SOFT),
    "soft, one hot": (Categorical(), ONE, torch.eye(K, dtype=torch.float64)[LABELS]),
    "soft, weights": (Categorical(weights=(0.5, 2.0, 1.3)), ONE, SOFT),
    "weights at places": (Categorical(weights=(0.5, 2.0, 1.3)), GRID, PLACES),
    "ignored at places": (Categorical(ignore_index=-100), GRID, HOLED),
    "all three at places": (Categorical((0.5, 2.0, 1.3), -100, 0.1), GRID, HOLED),
    "soft at places": (Categorical(), GRID, SOFT_PLACES),
    "soft binary": (Bernoulli(soft=True), ONE[:, :2], SHARES),
    "rows of classes": (Weighted(Categorical()), ONE, (LABELS, WEIGHTS)),
    "rows and classes": (Weighted(Categorical((0.5, 2.0, 1.3), -100)), ONE, (HOLES, WEIGHTS)),
    "rows of places": (Weighted(Categorical((0.5, 2.0, 1.3), -100)), GRID, (HOLED, WEIGHTS)),
    "rows, soft": (Weighted(Categorical()), ONE, (SOFT, WEIGHTS)),
    "rows twice": (Weighted(Weighted(Categorical())), ONE, ((LABELS, WEIGHTS), WEIGHTS.flip(0))),
    "rows, binary": (Weighted(Bernoulli()), ONE[:, :2], (BINARY, WEIGHTS)),
    "rows, soft binary": (Weighted(Bernoulli(soft=True)), ONE[:, :2], (SHARES, WEIGHTS)),
    "rows, gaussian": (Weighted(Gaussian(0.4)), ONE[:, :2], (REAL, WEIGHTS)),
    "rows, learned gaussian": (Weighted(Gaussian("learned")), ONE[:, :2], (REAL, WEIGHTS)),
    "rows, poisson": (Weighted(Poisson()), ONE[:, :2], (COUNTS, WEIGHTS)),
    "rows, custom classes": (Weighted(Custom(lambda f: distributions.Categorical(logits=f))), ONE, (LABELS, WEIGHTS)),
    "rows, custom normal": (Weighted(Custom(lambda f: distributions.Normal(f, 0.4))), ONE[:, :2], (REAL, WEIGHTS)),
    "a subclass": (Mine(), ONE, HOLES),
    "a class": (Apart(), ONE, HOLES),
    "a class without holes": (Apart(), ONE, LABELS),
    "rows, a subclass": (Weighted(Mine()), ONE, (HOLES, WEIGHTS)),
}
each_form = pytest.mark.parametrize("name", FORMS)


def gram(columns: Tensor) -> Tensor:
    """Return Σ r rᵀ of every row, all outputs of a row on one axis."""
    flat = columns.flatten(2)
    return torch.einsum("rbk,rbl->bkl", flat, flat)


def columns_of(kind: str, likelihood: Any, outputs: Tensor, targets: Any, samples: int = 1) -> Tensor:
    parameters = LOG_SCALE if likelihood.parameters() else {}
    return gram(root(kind, likelihood, outputs, targets=targets, parameters=parameters, samples=samples))


def hessians(likelihood: Any, outputs: Tensor, targets: Any) -> Tensor:
    """Return −∇² log_prob of each row alone, by autograd."""
    parameters, actual = LOG_SCALE if likelihood.parameters() else {}, []
    for b, row in enumerate(outputs):
        own = pytree.tree_map(lambda t, b=b: t[b : b + 1], targets)
        matrix = torch.autograd.functional.hessian(
            lambda f, y=own: -likelihood.log_prob(f.unsqueeze(0), y, parameters)[0] + 0 * f.square().sum(), row
        )
        actual.append(torch.as_tensor(matrix).reshape(row.numel(), row.numel()))
    return torch.stack(actual)


@each_form
def test_the_matrix_is_the_hessian_of_the_very_log_prob(name: str):
    likelihood, outputs, targets = FORMS[name]
    assert_close(columns_of("ggn", likelihood, outputs, targets), hessians(likelihood, outputs, targets))


def test_a_subclass_was_treated_as_its_base():
    """What the matrix of the base would be: the two differ by more than half."""
    likelihood, outputs, targets = FORMS["a subclass"]
    right, base = hessians(likelihood, outputs, targets), columns_of("ggn", Categorical(), outputs, LABELS)
    assert (base - right).norm() > 0.5 * right.norm()


def test_a_subclass_that_changes_what_log_prob_is_made_of():
    likelihood, targets = Noisy(1.0), REAL
    exact = hessians(likelihood, ONE[:, :2], targets)
    values, vectors = torch.linalg.eigh(exact)
    positive = vectors @ torch.diag_embed(values.clamp_min(0)) @ vectors.mT
    assert_close(columns_of("ggn", likelihood, ONE[:, :2], targets), positive)


def one_hot(places: Tensor) -> Tensor:
    return (places.unsqueeze(-1) == torch.arange(K)).double()


def label_score(outputs: Tensor, hard: Tensor) -> Tensor:
    """Return e_y − p at every place of a row, (T, K)."""
    return one_hot(hard) - outputs.softmax(-1)


def enumerated_scores(outputs: Tensor, counts: Tensor) -> Tensor:
    """Return E[s sᵀ] of the score of rows (B, T, K) whose labels are drawn from c / Σ c and count Σ c at each place."""
    actual = torch.zeros(len(outputs), outputs[0].numel(), outputs[0].numel(), dtype=torch.float64)
    for b, row in enumerate(outputs):
        total = counts[b].sum(-1)
        shares = counts[b] / torch.where(total == 0, 1.0, total).unsqueeze(-1)
        for drawn in product(range(K), repeat=len(row)):
            chance = math.prod(float(shares[t, k]) if total[t] > 0 else 1 / K for t, k in enumerate(drawn))
            score = (total.sqrt().unsqueeze(-1) * label_score(row, torch.tensor(drawn))).flatten()
            actual[b] += chance * torch.outer(score, score)
    return actual


def counts_by_hand(likelihood: Categorical, targets: Tensor) -> Tensor:
    """Return what each class counts at each place, written out."""
    soft = targets.is_floating_point()
    counts = targets if soft else one_hot(targets)
    counts = (1 - likelihood.label_smoothing) * counts + likelihood.label_smoothing / K
    counts = counts * torch.tensor(likelihood.weights or (1.0,) * K, dtype=torch.float64)
    if soft or likelihood.ignore_index is None:
        return counts
    return torch.where((targets == likelihood.ignore_index).unsqueeze(-1), 0.0, counts)


@pytest.mark.parametrize("name", [n for n, form in FORMS.items() if type(form[0]) is Categorical])
def test_the_empirical_matrix_is_the_mean_over_what_the_labels_leave_open(name: str):
    likelihood, outputs, targets = FORMS[name]
    counts = counts_by_hand(likelihood, targets)
    rows = (B, -1, K)
    expected = enumerated_scores(outputs.reshape(rows), counts.reshape(rows))
    assert_close(columns_of("empirical", likelihood, outputs, targets), expected)


def test_the_empirical_matrix_of_soft_binary_labels_is_the_mean_over_labels():
    outputs, p = ONE[:, :2], ONE[:, :2].sigmoid()
    expected = torch.zeros(B, 2, 2, dtype=torch.float64)
    for labels in product((0.0, 1.0), repeat=2):
        hard = torch.tensor(labels, dtype=torch.float64)
        chance = torch.where(hard == 1, SHARES, 1 - SHARES).prod(-1)
        expected += chance.view(-1, 1, 1) * (hard - p).unsqueeze(2) * (hard - p).unsqueeze(1)
    assert_close(columns_of("empirical", Bernoulli(soft=True), outputs, SHARES), expected)


@pytest.mark.parametrize("kind", ["ggn", "empirical"])
@pytest.mark.parametrize("name", [n for n, form in FORMS.items() if n.startswith("rows") and n != "rows twice"])
def test_weights_of_rows_are_factors(kind: str, name: str):
    likelihood, outputs, (targets, weights) = FORMS[name]
    base = columns_of(kind, likelihood.base, outputs, targets)
    assert_close(columns_of(kind, likelihood, outputs, (targets, weights)), weights.view(-1, 1, 1) * base)


@pytest.mark.parametrize("kind", ["ggn", "empirical"])
def test_class_weights_are_weights_of_rows(kind: str):
    weights = torch.tensor([0.5, 2.0, 1.3], dtype=torch.float64)
    as_rows = columns_of(kind, Weighted(Categorical()), ONE, (LABELS, weights[LABELS]))
    assert_close(columns_of(kind, Categorical((0.5, 2.0, 1.3)), ONE, LABELS), as_rows)


OWN = ["a subclass", "a class", "a class without holes", "rows, a subclass"]


@pytest.mark.parametrize(  # those of the user draw slowly, and `test_roots.py` has them without weights
    "name", [pytest.param(n, marks=[pytest.mark.study] * ("custom" in n)) for n in FORMS if n not in OWN]
)
def test_sampled_fisher_has_the_weighted_one_as_its_mean(name: str):
    likelihood, outputs, targets = FORMS[name]
    torch.manual_seed(3)
    actual = torch.stack([columns_of("fisher", likelihood, outputs, targets, samples=40) for _ in range(20)])
    error = actual.std(0) / math.sqrt(20)
    # 6 standard errors by Student's t with 19 degrees of freedom; entries that are zero for every draw are exact
    assert ((actual.mean(0) - hessians(likelihood, outputs, targets)).abs() <= 6 * error + 1e-12).all()


@pytest.mark.parametrize("name", OWN)
def test_sampled_fisher_is_refused_where_the_model_cannot_draw_what_log_prob_takes(name: str):
    likelihood, outputs, targets = FORMS[name]
    with pytest.raises(ValueError, match="is not the log probability of its distribution"):
        columns_of("fisher", likelihood, outputs, targets)


def test_ignored_rows_have_nothing_and_one_hot_labels_are_labels():
    for kind in ("ggn", "empirical", "fisher"):
        assert not columns_of(kind, Categorical(ignore_index=-100), ONE, HOLES)[1].any()
        assert not columns_of(kind, Weighted(Gaussian()), ONE[:, :2], (REAL, WEIGHTS))[1].any()
    for kind in ("ggn", "empirical"):
        soft = columns_of(kind, Categorical(), ONE, one_hot(LABELS))
        assert_close(soft, columns_of(kind, Categorical(), ONE, LABELS))


@pytest.mark.parametrize("kind", ["ggn", "empirical"])
def test_a_mixture_labels_is_rows_by_their_shares(kind: str):
    whole = columns_of(kind, Categorical(), ONE, SOFT)
    rows = [columns_of(kind, Weighted(Categorical()), ONE, (torch.full((B,), k), SOFT[:, k])) for k in range(K)]
    assert_close(whole, torch.stack(rows).sum(0))
    share = SHARES[:, :1]
    pair = [
        columns_of(kind, Weighted(Bernoulli()), ONE[:, :1], (torch.full((B, 1), y), (share if y else 1 - share)[:, 0]))
        for y in (0, 1)
    ]
    assert_close(columns_of(kind, Bernoulli(soft=True), ONE[:, :1], share), pair[0] + pair[1])


@pytest.mark.parametrize(
    ("base", "width", "targets"),
    [
        (StudentT(4.0, 0.5), 2, REAL),
        (HeteroscedasticGaussian(), 4, REAL),
        (Custom(lambda f: distributions.Cauchy(f, 1.0)), 2, REAL),
    ],
)
def test_families_whose_matrix_is_not_the_hessian_are_weighted_too(base: Likelihood, width: int, targets: Tensor):
    outputs = normal(B, width, seed=5)
    actual = columns_of("ggn", Weighted(base), outputs, (targets, WEIGHTS))
    assert_close(actual, WEIGHTS.view(-1, 1, 1) * columns_of("ggn", base, outputs, targets))


def test_information_of_a_learned_scale_counts_rows_by_their_weights():
    actual = parameter_information(Weighted(Gaussian("learned")), ONE[:, :2], (REAL, WEIGHTS), parameters=LOG_SCALE)
    assert_close(actual["log_scale"], [2.0 * 2 * WEIGHTS.sum()])


@dataclass(frozen=True)
class Halved(Gaussian):
    """A learned scale under a log_prob of its own."""

    def log_prob(self, outputs: Tensor, targets: Tensor, parameters: Any = None) -> Tensor:
        return 0.5 * super().log_prob(outputs, targets, parameters)


def test_information_under_a_log_prob_of_ones_own():
    squares = ((REAL - ONE[:, :2]) / LOG_SCALE["log_scale"].exp()).square().sum(-1)  # ½ z² has 2 z² in log s
    alone = parameter_information(Halved("learned"), ONE[:, :2], REAL, parameters=LOG_SCALE)
    assert_close(alone["log_scale"], [squares.sum()])
    rows = parameter_information(Weighted(Halved("learned")), ONE[:, :2], (REAL, WEIGHTS), parameters=LOG_SCALE)
    assert_close(rows["log_scale"], [(WEIGHTS * squares).sum()])


def censored(outputs: Tensor, targets: dict[str, Tensor]) -> Tensor:
    """Return log p of exponential times, or of outliving them: f is the log rate."""
    rate = outputs.squeeze(-1)
    return targets["event"] * rate - rate.exp() * targets["time"]


class Censored:
    """Times until an event, or until observation ended."""

    def parameters(self) -> dict[str, Any]:
        return {}

    def distribution(self, outputs: Tensor, parameters: Any = None) -> distributions.Distribution:
        return distributions.Exponential(outputs.squeeze(-1).exp(), validate_args=False)

    def log_prob(self, outputs: Tensor, targets: Any, parameters: Any = None) -> Tensor:
        return censored(outputs, targets)

    def check(self, outputs: Tensor, targets: Any) -> None: ...


def test_targets_that_are_a_dict():
    targets = {"time": REAL[:, 0].exp(), "event": BINARY[:, 0].double()}
    outputs = ONE[:, :1]
    expected = (outputs.squeeze(-1).exp() * targets["time"]).view(B, 1, 1)
    assert_close(columns_of("ggn", Censored(), outputs, targets), expected)
    score = targets["event"] - expected.flatten()
    assert_close(columns_of("empirical", Censored(), outputs, targets), score.square().view(B, 1, 1))
    weighted = columns_of("ggn", Weighted(Censored()), outputs, (targets, WEIGHTS))
    assert_close(weighted, WEIGHTS.view(B, 1, 1) * expected)
    with pytest.raises(ValueError, match="log_prob of Censored is not the log probability"):
        columns_of("fisher", Censored(), outputs, targets)
