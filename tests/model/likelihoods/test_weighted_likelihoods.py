"""Weights, ignored labels, soft labels: log probabilities against torch's own losses, and what is refused."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, distributions, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import torchbayes as tb
from tests.oracles import assert_close, classes, normal
from torchbayes.checks import holds
from torchbayes.density.kernels import kernel_of
from torchbayes.model.likelihoods import Bernoulli, Categorical, Custom, Gaussian, StudentT, Weighted
from torchbayes.model.likelihoods.protocol import average_log_prob, counted, scored
from torchbayes.model.likelihoods.weighted import fixed_noise, num_values, rescaled, unweighted
from torchbayes.native.build import UnavailableError

B, K, T, S = 6, 4, 3, 5
WEIGHTS = (0.5, 2.0, 0.0, 1.25)
LABELS, PLACES = classes(B, K), classes(B * T, K, seed=1).view(B, T)
HOLES, HOLED = LABELS.clone(), PLACES.clone()
HOLES[2], HOLED[0, 1], HOLED[4] = -100, -100, -100
SOFT, SOFT_PLACES = normal(B, K, seed=2).softmax(-1), normal(B, T, K, seed=3).softmax(-1)
ROWS = torch.tensor([1.0, 0.0, 3.0, 0.5, 2.0, 1.0], dtype=torch.float64)


SETTINGS = [
    {},
    {"weights": WEIGHTS},
    {"ignore_index": -100},
    {"label_smoothing": 0.3},
    {"weights": WEIGHTS, "ignore_index": -100},
    {"weights": WEIGHTS, "ignore_index": -100, "label_smoothing": 0.3},
    {"ignore_index": 1, "label_smoothing": 0.3},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("lead", [(), (S,), (2, S)])
@pytest.mark.parametrize("form", ["rows", "places", "soft", "soft places"])
def test_categorical_is_cross_entropy(settings: dict[str, Any], lead: tuple[int, ...], form: str):
    holes = settings.get("ignore_index") == -100
    targets = {
        "rows": HOLES if holes else LABELS,
        "places": HOLED if holes else PLACES,
        "soft": SOFT,
        "soft places": SOFT_PLACES,
    }[form]
    soft, places = form.startswith("soft"), form.endswith("places")
    outputs = normal(*lead, B, *((T,) if places else ()), K)
    likelihood = Categorical(**settings)
    likelihood.check(outputs[(0,) * len(lead)], targets)
    options = {n: v for n, v in settings.items() if n != "weights" and not (soft and n == "ignore_index")}
    weights = torch.tensor(WEIGHTS, dtype=torch.float64) if "weights" in settings else None
    expected = []
    for each in outputs.reshape(-1, *outputs.shape[len(lead) :]):
        losses = F.cross_entropy(
            each.movedim(-1, 1), targets.movedim(-1, 1) if soft else targets, weights, reduction="none", **options
        )
        expected.append(-losses.reshape(B, -1).sum(-1))
    assert_close(likelihood.log_prob(outputs, targets).reshape(-1, B), torch.stack(expected))


@pytest.mark.parametrize("shape", [(B, K), (S, B, K), (B, T, K)])
def test_impossible_classes_count_nothing_where_they_have_no_share(shape: tuple[int, ...]):
    outputs = normal(*shape)
    outputs[..., 0] = -torch.inf
    targets = torch.zeros(B, *shape[1 + (shape[0] == S) : -1], K, dtype=torch.float64)
    targets[..., 1:3] = 0.5
    leaf = outputs.clone().requires_grad_()
    value = Categorical().log_prob(leaf, targets)
    hard = (
        Categorical().log_prob(outputs, targets.argmax(-1)) + Categorical().log_prob(outputs, targets.argmax(-1) + 1)
    ) / 2
    assert_close(value, hard)
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("labels", [LABELS, PLACES])
def test_impossible_classes_without_weight_count_nothing(labels: Tensor):
    outputs = normal(*labels.shape, K)
    outputs[..., 2] = -torch.inf
    labels = labels.masked_fill(labels == 0, 2)
    values = Categorical(WEIGHTS).log_prob(outputs, labels)
    left_out = Categorical(WEIGHTS, ignore_index=2).log_prob(outputs, labels)
    assert torch.isfinite(values).all()
    assert_close(values, left_out)


class Sizes(TorchDispatchMode):
    """Notes the sizes of all tensors that are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        actual = func(*args, **(kwargs or {}))
        self.seen += [leaf.numel() for leaf in tree_leaves(actual) if isinstance(leaf, Tensor)]
        return actual


@pytest.mark.parametrize("settings", [{"ignore_index": -100}, {"weights": WEIGHTS}], ids=str)
def test_labels_that_count_otherwise_cost_no_table_of_all_classes(settings: dict[str, Any]):
    """With a vocabulary of 20,000 tokens a table of counts would cost several times the likelihood itself."""
    outputs, actual = normal(B, T, K), []
    for likelihood in (Categorical(), Categorical(**settings)):
        with Sizes() as sizes:
            likelihood.log_prob(outputs, PLACES)
        actual.append(sum(size >= outputs.numel() for size in sizes.seen))
    assert actual[0] == actual[1] == 1


def test_soft_binary_labels_are_the_mean_over_labels():
    outputs, shares = normal(S, B, 2), normal(B, 2, seed=4).sigmoid()
    zeros, ones = torch.zeros(B, 2, dtype=torch.float64), torch.ones(B, 2, dtype=torch.float64)
    p = distributions.Bernoulli(logits=outputs)
    expected = (shares * p.log_prob(ones) + (1 - shares) * p.log_prob(zeros)).sum(-1)
    likelihood = Bernoulli(soft=True)
    likelihood.check(outputs[0], shares)
    assert_close(likelihood.log_prob(outputs, shares), expected)


@pytest.mark.parametrize(
    ("base", "width", "targets"),
    [
        (Gaussian(0.5), 2, normal(B, 2, seed=5)),
        (StudentT(), 1, normal(B, seed=5)),
        (Categorical(WEIGHTS, -100), K, HOLES),
        (Custom(lambda f: distributions.Laplace(f, 1.0)), 2, normal(B, 2, seed=5)),
    ],
)
def test_weights_of_rows_are_factors_in_front(base: Any, width: int, targets: Tensor):
    outputs, likelihood = normal(S, B, width), Weighted(base)
    likelihood.check(outputs[0], (targets, ROWS))
    assert_close(likelihood.log_prob(outputs, (targets, ROWS)), ROWS * base.log_prob(outputs, targets))
    assert_close(likelihood.log_prob(outputs, [targets, ROWS.long()]), ROWS.long() * base.log_prob(outputs, targets))
    assert likelihood.parameters() == base.parameters()


def test_a_row_without_weight_is_not_there_whatever_it_holds():
    base = Custom(lambda f: distributions.Uniform(f - 1, f + 1, validate_args=False))
    targets, outputs = torch.full((B, 1), 9.0, dtype=torch.float64), normal(B, 1)
    assert_close(Weighted(base).log_prob(outputs, (targets, torch.zeros(B))), torch.zeros(B))


def test_what_is_no_likelihood():
    with pytest.raises(TypeError, match=r"`base` must be a likelihood; got the class Gaussian"):
        Weighted(Gaussian)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"got function\. Wrap functions in likelihoods\.Custom"):
        Weighted(lambda f: distributions.Normal(f, 1.0))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="or a function of the outputs; got 3"):
        tb.Model(nn.Linear(1, 1), 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"got the class Gaussian\. Write Gaussian\(\)"):
        tb.Model(nn.Linear(1, 1), Gaussian)  # type: ignore[arg-type]
    assert Categorical([1, 2]).weights == Categorical(torch.tensor([1.0, 2.0])).weights == (1.0, 2.0)  # type: ignore[arg-type]


# --- what counts, in fits and in scores ---


def test_counted_is_the_same_log_prob():
    for likelihood, outputs, targets in [
        (Categorical(WEIGHTS, -100), normal(B, K), HOLES),
        (Categorical(WEIGHTS, -100, 0.2), normal(B, K), HOLES),
        (Categorical(WEIGHTS), normal(B, K), SOFT),
        (Weighted(Categorical(WEIGHTS, -100)), normal(B, K), (HOLES, ROWS)),
        (Weighted(Weighted(Gaussian())), normal(B, 2), ((normal(B, 2, seed=1), ROWS), ROWS)),
    ]:
        plain, values, weights = counted(likelihood, outputs, targets)
        assert not isinstance(plain, Weighted)
        assert weights is not None
        assert_close(weights * plain.log_prob(outputs, values), likelihood.log_prob(outputs, targets))


def test_scores_know_rows_and_what_is_ignored_but_no_weights_of_classes():
    judged = scored(Weighted(Categorical(WEIGHTS, -100, 0.2)), normal(B, K), (HOLES, ROWS))
    assert judged.likelihood == Categorical(ignore_index=-100)
    assert judged.weights is not None
    assert_close(judged.weights, torch.where(HOLES == -100, 0.0, ROWS))
    alone = scored(Weighted(Categorical(WEIGHTS, -100)), normal(B, K), HOLES)  # as for data without weights
    assert alone.weights is not None
    assert_close(alone.weights, (HOLES != -100).double())
    places = scored(Categorical(ignore_index=-100), normal(B, T, K), HOLED)
    assert places.row_weights is not None
    assert_close(places.row_weights, [1.0, 1.0, 1.0, 1.0, 0.0, 1.0])


def test_the_average_of_soft_labels_is_that_of_rows_by_their_shares():
    outputs = normal(S, B, K)
    p = outputs.softmax(-1).mean(0)
    assert_close(average_log_prob(Categorical(), outputs, SOFT), (SOFT * p.log()).sum(-1))
    assert_close(average_log_prob(Categorical(), outputs, LABELS), p.gather(1, LABELS[:, None])[:, 0].log())
    one_hot = F.one_hot(LABELS, K).double()
    assert_close(average_log_prob(Categorical(), outputs, one_hot), average_log_prob(Categorical(), outputs, LABELS))
    one, share = outputs[..., :1], SOFT[:, :1]
    q = one.sigmoid().mean(0)
    expected = (share * q.log() + (1 - share) * (1 - q).log()).sum(-1)
    assert_close(average_log_prob(Bernoulli(soft=True), one, share), expected)
    assert_close(average_log_prob(Bernoulli(soft=True), one, share[:, 0]), expected)


def test_predictions_are_judged_without_weights():
    outputs, real = normal(S, B, K), normal(B, 1, seed=6)
    for likelihood in (Categorical(WEIGHTS, label_smoothing=0.1), Weighted(Categorical())):
        targets = (LABELS, ROWS) if isinstance(likelihood, Weighted) else LABELS
        expected = tb.Predictive(outputs, Categorical()).log_prob(LABELS)
        assert_close(tb.Predictive(outputs, likelihood).log_prob(targets), expected)
    assert_close(tb.Predictive(outputs, Categorical(ignore_index=-100)).log_prob(HOLES)[2], 0.0)
    spread = torch.full((S, B, 1), 0.3, dtype=torch.float64)
    weighted = tb.Predictive(outputs[..., :1], Weighted(Gaussian(0.5)), function_variance=spread)
    plain = tb.Predictive(outputs[..., :1], Gaussian(0.5), function_variance=spread)
    assert_close(weighted.log_prob((real, ROWS)), plain.log_prob(real))


# --- subclasses ---


@dataclass(frozen=True)
class Longer(Categorical):
    """Adds what its base does not have."""

    def describe(self) -> str:
        return "longer"

    def check(self, outputs: Tensor, targets: Any) -> None: ...


@dataclass(frozen=True)
class Loud(Gaussian):
    def log_prob(self, outputs: Tensor, targets: Tensor, parameters: Any = None) -> Tensor:
        return 3 * super().log_prob(outputs, targets, {})


@dataclass(frozen=True)
class Known(Loud):
    """Says what its curvature is, too."""

    def curvature_root(self, outputs: Tensor, targets: Tensor, parameters: Any) -> Tensor:
        return math.sqrt(3) * super().curvature_root(outputs, targets, parameters)


class Mixin:
    def log_prob(self, outputs: Tensor, targets: Tensor, parameters: Any = None) -> Tensor:
        return outputs.sum(-1)


class Mixed(Mixin, Gaussian):
    """A log_prob from the side."""


@dataclass(frozen=True)
class Scaled(Categorical):
    def distribution(self, outputs: Tensor, parameters: Any = None) -> distributions.Distribution:
        return distributions.Categorical(logits=2 * outputs)


def test_closed_forms_are_those_of_the_class_that_defines_log_prob():
    for likelihood in (Categorical(), Longer(), Gaussian(), Known(), Weighted(Loud())):
        assert holds(likelihood, "counted" if isinstance(likelihood, Weighted) else "curvature_root")
    for likelihood in (Loud(), Mixed(), Scaled(), Custom(lambda f: distributions.Normal(f, 1.0))):
        assert not holds(likelihood, "curvature_root")
    assert holds(Known(), "curvature_root")
    assert not holds(Known(), "parameter_information")
    assert fixed_noise(Gaussian((1.0, 2.0))) == fixed_noise(Weighted(Gaussian((1.0, 2.0)))) == (1.0, 2.0)
    assert fixed_noise(Loud()) == fixed_noise(Weighted(Loud())) == fixed_noise(Gaussian("learned")) == ()
    assert unweighted(Weighted(Weighted(Gaussian()))) == Gaussian()


def test_noise_and_numbers_of_values():
    assert rescaled(Weighted(Gaussian((1.0, 2.0))), 0.5) == Weighted(Gaussian((0.5, 1.0)))
    assert rescaled(Gaussian(2), 0.5) == Gaussian(1.0)
    with pytest.raises(TypeError, match="Loud has no fixed noise scale"):
        rescaled(Weighted(Loud()), 0.5)
    targets = normal(B, 3)
    assert num_values(Gaussian(), targets) == 3 * B
    assert num_values(Weighted(Gaussian()), (targets, ROWS)) == 3 * 7.5
    assert num_values(Weighted(Weighted(Gaussian())), ((targets, ROWS), ROWS)) == 3 * float((ROWS**2).sum())


@pytest.mark.parametrize("likelihood", [Loud(), Longer(), Weighted(Categorical()), Categorical(WEIGHTS)], ids=repr)
def test_the_kernel_runs_no_likelihood_but_those_it_knows(likelihood: Any):
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, K))
    assert isinstance(kernel_of(tb.Model(net, likelihood)), UnavailableError)


def test_links_look_for_the_distribution_and_gaussians_for_the_density():
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, K)).double()

    def link(likelihood: Any, asked: Any = "auto") -> str:
        from torchbayes.predictive.links import link_of

        return link_of(asked, tb.Model(net, likelihood).likelihood)

    assert link(Categorical(WEIGHTS)) == link(Weighted(Categorical())) == link(Longer()) == "pairwise"
    assert link(tb.likelihoods.Bernoulli()) == "probit"
    assert link(Weighted(Gaussian())) == link(Gaussian()) == "gaussian"
    assert link(Loud()) == link(Scaled()) == link(Weighted(Loud())) == "samples"
    with pytest.raises(ValueError, match="link 'gaussian' needs a Gaussian likelihood; got Loud"):
        link(Weighted(Loud()), "gaussian")
    with pytest.raises(ValueError, match="got Scaled"):
        link(Scaled(), "probit")


# --- what is refused ---

FAR = torch.tensor([[0.5, 0.5, 0.2, 0.0]] * B, dtype=torch.float64)
WRONG = [
    (Categorical((1.0, 2.0)), normal(B, K), LABELS, ValueError, r"one number per class, 4; got 2"),
    (Categorical(), normal(B, K), FAR, ValueError, r"smallest of 0 and a sum of 1\.2.*likelihoods\.Weighted"),
    (Categorical(), normal(B, K), FAR - 0.3, ValueError, "at least 0 and sum to 1"),
    (Categorical(), normal(B, K), FAR * math.nan, ValueError, "at least 0 and sum to 1"),
    (Categorical(), normal(B, K), SOFT[:, :2], TypeError, r"must be int64.*or soft labels of the shape.*\(6, 4\)"),
    (Categorical(), normal(B, K), HOLES, ValueError, r"got -100.*Categorical\(ignore_index=-100\)"),
    (Categorical(ignore_index=-1), normal(B, K), HOLES, ValueError, r"got -100"),
    (Categorical(), normal(B, K), (LABELS, ROWS), TypeError, r"must be one tensor; got tuple.*likelihoods\.Weighted"),
    (Gaussian(), normal(B, 1), {"a": ROWS}, TypeError, "must be one tensor; got dict"),
    (Custom(lambda f: distributions.Normal(f, 1.0)), normal(B, 1), (ROWS, ROWS), TypeError, "got tuple"),
    (Bernoulli(), normal(B, 1), ROWS / 3, ValueError, r"0\.\.1\. Probabilities are Bernoulli\(soft=True\)"),
    (Bernoulli(soft=True), normal(B, 1), ROWS, ValueError, r"must lie in \[0, 1\]; got values in 0\.\.3"),
    (Bernoulli(soft=True), normal(B, 1), ROWS * math.nan, ValueError, r"must lie in \[0, 1\]"),
    (Weighted(Gaussian()), normal(B, 1), ROWS, TypeError, r"must be a pair \(targets, weights\); got Tensor"),
    (Weighted(Gaussian()), normal(B, 1), (ROWS,), TypeError, "must be a pair"),
    (Weighted(Gaussian()), normal(B, 1), (ROWS, ROWS[:3]), ValueError, r"shape \(6,\), one for each row; got \(3,\)"),
    (Weighted(Gaussian()), normal(B, 1), (ROWS, ROWS[:, None]), ValueError, r"got \(6, 1\)"),
    (Weighted(Gaussian()), normal(B, 1), (ROWS, 1.0), ValueError, "got float"),
    (Weighted(Gaussian()), normal(B, 1), (ROWS, ROWS - 1), ValueError, r"at least 0; got values in -1\.\.2"),
    (Weighted(Gaussian()), normal(B, 1), (ROWS, ROWS / 0), ValueError, "finite and at least 0"),
    (Weighted(Categorical()), normal(B, K), (HOLES, ROWS), ValueError, "got -100"),
]


@pytest.mark.parametrize(("likelihood", "outputs", "targets", "error", "words"), WRONG, ids=lambda v: str(v)[:40])
def test_targets_that_do_not_fit(likelihood: Any, outputs: Tensor, targets: Any, error: type[Exception], words: str):
    with pytest.raises(error, match=words):
        likelihood.check(outputs, targets)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Categorical((1.0, -1.0)), "`weights` must be at least 0; got -1.0"),
        (lambda: Categorical((1.0, math.nan)), "`weights` must be at least 0; got nan"),
        (lambda: Categorical((0.0, 0.0)), "`weights` must be above 0 for a class"),
        (lambda: Categorical(()), "`weights` must be a tuple of one or more"),
        (lambda: Categorical(label_smoothing=1.0), r"in \[0, 1\), as a share; got 1\.0"),
        (lambda: Categorical(label_smoothing=math.nan), "got nan"),
        (lambda: Gaussian(math.nan), "`scale` must be above 0; got nan"),
        (lambda: Gaussian((1.0, math.inf)), "must be finite and above 0"),
        (lambda: Gaussian(()), "`scale` must be a tuple of one or more"),
        (lambda: Gaussian("learned", initial=math.inf), "`initial` must be finite and above 0"),
        (lambda: StudentT(math.nan), "`df` must be above 0"),
        (lambda: tb.likelihoods.HeteroscedasticGaussian(-1.0), "`floor` must be at least 0; got -1.0"),
    ],
)
def test_settings_outside_their_range(make: Any, words: str):
    with pytest.raises(ValueError, match=words):
        make()


def test_a_likelihood_says_itself_the_same_in_every_process():
    def normal_of(f: Tensor) -> distributions.Distribution:
        return distributions.Normal(f, 1.0)

    assert repr(Weighted(Custom(normal_of))).endswith("normal_of))")
    assert " at 0x" not in repr(Weighted(Custom(normal_of))) + repr(Custom(nn.Softplus()))
