"""evaluate against metrics/ and arithmetic by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.laws.cases import POSTERIORS, model_of, normal, rows_of
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import torchbayes as tb
from torchbayes import metrics
from torchbayes.assess.evaluate import Scores
from torchbayes.assess.numbers import number_columns
from torchbayes.linalg import Diagonal
from torchbayes.predictive import intervals

INPUTS, TARGETS = rows_of()


def labels_of(probs_BK: Tensor, seed: int = 5) -> Tensor:
    """Labels drawn from the probabilities themselves."""
    return torch.multinomial(probs_BK, 1, generator=torch.Generator().manual_seed(seed)).squeeze(1)


class Rows(Dataset):
    """Rows of the classification data."""

    def __len__(self) -> int:
        return len(INPUTS)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return INPUTS[index], TARGETS[index]


FORMS: dict[str, Callable[[], Any]] = {
    "tuple": lambda: (INPUTS, TARGETS),
    "numpy": lambda: (INPUTS.numpy(), TARGETS.numpy()),
    "mapping": lambda: {"inputs": INPUTS, "labels": TARGETS},
    "tensor_dataset": lambda: TensorDataset(INPUTS, TARGETS),
    "dataset": Rows,
    "loader": lambda: DataLoader(Rows(), batch_size=5),
    "list": lambda: [(INPUTS[:7], TARGETS[:7]), (INPUTS[7:], TARGETS[7:])],
    "generator": lambda: iter([{"x": INPUTS[:7], "targets": TARGETS[:7]}, (INPUTS[7:], TARGETS[7:])]),
    "float32": lambda: (INPUTS.float(), TARGETS),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_every_form_of_data_gives_the_same(form: Callable[[], Any]) -> None:
    posterior = POSTERIORS["gaussian_low_rank"](model_of(), 2)
    expected = tb.evaluate(tb.predict(posterior, INPUTS, draws=6, seed=2), TARGETS)
    actual = tb.evaluate(posterior, form(), draws=6, seed=2)
    assert actual.metrics == pytest.approx(expected.metrics, rel=1e-5)
    assert torch.equal(actual.targets, TARGETS)
    assert actual.probs is not None
    torch.testing.assert_close(actual.probs, expected.probs, rtol=1e-5, atol=1e-6)
    functions = posterior.functions(6, seed=2)
    assert tb.evaluate(functions, form(), chunk_size=7).metrics == pytest.approx(expected.metrics, rel=1e-5)


def test_a_hook_reads_the_data_once() -> None:
    """A mapping that only the model's hook understands."""
    model = tb.Model(nn.Linear(4, 3).double(), tb.likelihoods.Categorical(), batch=lambda row: (row["a"], row["b"]))
    posterior, data = POSTERIORS["point"](model, 2), {"a": INPUTS, "b": TARGETS}
    expected = tb.evaluate(tb.predict(posterior, INPUTS), TARGETS).metrics
    assert tb.evaluate(posterior, data).metrics == pytest.approx(expected, rel=1e-12)
    assert tb.evaluate(posterior, [data]).metrics == pytest.approx(expected, rel=1e-12)


def area_by_hand(probs: Tensor, targets: Tensor) -> float:
    """The mean over n of the error rate of the n most confident rows."""
    wrong = (probs.argmax(1) != targets)[probs.amax(1).argsort(descending=True)].double()
    return float((wrong.cumsum(0) / torch.arange(1, len(wrong) + 1)).mean())


def test_metrics_of_a_classification_are_those_of_metrics() -> None:
    predictive = tb.Predictive(2 * normal(6, 200, 4), tb.likelihoods.Categorical())
    targets = labels_of(predictive.probs)
    actual = tb.evaluate(predictive, targets)
    probs = predictive.probs
    expected = {
        "nll": float(-probs.gather(1, targets.unsqueeze(1)).log().mean()),
        "accuracy": float((probs.argmax(1) == targets).double().mean()),
        "brier": float(((probs - nn.functional.one_hot(targets, 4)) ** 2).sum(1).mean()),
        "ece": float(metrics.ece(probs, targets, 15)),
        "ece_mass": float(metrics.ece_mass(probs, targets, 20)),
        "entropy": float(-(probs * probs.log()).sum(1).mean()),
        "mutual_information": float(metrics.mutual_information(predictive.outputs_SBK.softmax(-1)).mean()),
        "aurc": area_by_hand(probs, targets),
    }
    assert actual.metrics == pytest.approx(expected, rel=1e-10)
    assert actual.scores is not None
    torch.testing.assert_close(actual.scores.confidence, probs.amax(1))
    torch.testing.assert_close(actual.scores.entropy, predictive.entropy)
    torch.testing.assert_close(actual.log_prob, predictive.log_prob(targets))
    assert actual.mean is None


def test_metrics_by_hand_on_three_rows() -> None:
    probs = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]], dtype=torch.float64)
    actual = tb.evaluate(tb.Predictive.from_probs(probs), torch.tensor([0, 0, 2])).metrics
    assert actual["accuracy"] == pytest.approx(2 / 3)
    assert actual["nll"] == pytest.approx(-(math.log(0.7) + math.log(0.1) + math.log(0.4)) / 3)
    assert actual["brier"] == pytest.approx((0.14 + 1.46 + 0.54) / 3)
    assert actual["ece"] == pytest.approx((abs(1 - 0.7) + 0.8 + abs(1 - 0.4)) / 3)
    assert actual["mutual_information"] == pytest.approx(0.0, abs=1e-15)


def test_binary_equals_two_classes() -> None:
    outputs = 2 * normal(5, 100, 1)
    binary = tb.Predictive(outputs, tb.likelihoods.Bernoulli())
    two = tb.Predictive(torch.cat([torch.zeros_like(outputs), outputs], dim=-1), tb.likelihoods.Categorical())
    targets = labels_of(two.probs)
    expected = tb.evaluate(two, targets).metrics
    assert tb.evaluate(binary, targets).metrics == pytest.approx(expected, rel=1e-10)
    assert tb.evaluate(binary, targets.unsqueeze(1)).metrics == pytest.approx(expected, rel=1e-10)


def test_multi_label_scores_every_label() -> None:
    predictive = tb.Predictive(normal(5, 50, 3), tb.likelihoods.Bernoulli())
    targets = (normal(50, 3, seed=4) > 0).long()
    actual = tb.evaluate(predictive, targets)
    assert actual.metrics["accuracy"] == pytest.approx(float(((predictive.probs > 0.5) == targets).double().mean()))
    assert actual.metrics["nll"] == pytest.approx(float(-predictive.log_prob(targets).mean()))
    brier = 2 * ((predictive.probs - targets) ** 2).mean()
    assert actual.metrics["brier"] == pytest.approx(float(brier))


LIKELIHOODS = pytest.mark.parametrize(
    ("likelihood", "width"),
    [
        (tb.likelihoods.Gaussian(0.4), 1),
        (tb.likelihoods.Gaussian((0.4, 0.9)), 2),
        (tb.likelihoods.HeteroscedasticGaussian(), 1),
        (tb.likelihoods.HeteroscedasticGaussian(), 2),
    ],
)


def regression(likelihood: Any, width: int, rows: int = 300) -> tuple[tb.Predictive, Tensor]:
    columns = 2 * width if isinstance(likelihood, tb.likelihoods.HeteroscedasticGaussian) else width
    predictive = tb.Predictive(normal(6, rows, columns), likelihood)
    return predictive, predictive.sample(6, seed=3)[-1]


@LIKELIHOODS
def test_metrics_of_a_regression_by_hand(likelihood: Any, width: int) -> None:
    predictive, targets = regression(likelihood, width)
    each = predictive.distribution
    mean = each.mean.mean(0)
    variance = (each.mean**2 + each.variance).mean(0) - mean**2
    gaussian = torch.distributions.Normal(mean, variance.sqrt()).log_prob(targets).sum(-1)
    mixture = each.log_prob(targets).sum(-1).exp().mean(0).log()
    low, high = predictive.quantile(0.025), predictive.quantile(0.975)
    expected = {
        "nll": -float(mixture.mean()),
        "nll_gaussian": -float(gaussian.mean()),
        "rmse": float(((mean - targets) ** 2).mean().sqrt()),
        "mae": float((mean - targets).abs().mean()),
        "coverage": float(((targets >= low) & (targets <= high)).double().mean()),
        "crps": float(metrics.crps_normals(each.mean, each.stddev.expand_as(each.mean), targets)),
    }
    actual = tb.evaluate(predictive, targets)
    assert actual.metrics == pytest.approx(expected, rel=1e-9)
    # the targets were drawn from the predictive itself
    assert abs(actual.metrics["coverage"] - 0.95) < 4 * math.sqrt(0.05 * 0.95 / (300 * width))
    assert actual.scale is not None
    torch.testing.assert_close(actual.scale, variance.sqrt())
    assert actual.probs is None


@LIKELIHOODS
@pytest.mark.parametrize("target_scale", [0.01, 9.2])
def test_target_scale_gives_original_units(likelihood: Any, width: int, target_scale: float) -> None:
    """Targets y = a u + b: evaluated with the densities of y, by hand."""
    predictive, targets = regression(likelihood, width)
    actual = tb.evaluate(predictive, targets, target_scale=target_scale).metrics
    each, shift = predictive.distribution, 3.7
    assert isinstance(each, torch.distributions.Normal)
    original = torch.distributions.Normal(target_scale * each.mean + shift, target_scale * each.stddev)
    y = target_scale * targets + shift
    mean = original.mean.mean(0)
    scale = (original.variance.mean(0) + original.mean.var(0, correction=0)).sqrt()
    assert actual["nll"] == pytest.approx(-float(original.log_prob(y).sum(-1).logsumexp(0).sub(math.log(6)).mean()))
    gaussian = torch.distributions.Normal(mean, scale).log_prob(y).sum(-1)
    assert actual["nll_gaussian"] == pytest.approx(-float(gaussian.mean()))
    assert actual["rmse"] == pytest.approx(float(((mean - y) ** 2).mean().sqrt()))
    assert actual["mae"] == pytest.approx(float((mean - y).abs().mean()))
    assert actual["coverage"] == pytest.approx(tb.evaluate(predictive, targets).metrics["coverage"])
    spread = original.stddev.expand_as(original.mean)
    assert actual["crps"] == pytest.approx(float(metrics.crps_normals(original.mean, spread, y)))


def test_flat_targets_equal_columns() -> None:
    predictive, targets = regression(tb.likelihoods.Gaussian(0.4), 1)
    expected = tb.evaluate(predictive, targets, target_scale=2.0).metrics
    assert tb.evaluate(predictive, targets.squeeze(1), target_scale=2.0).metrics == pytest.approx(expected)


def test_student_t_interval_comes_from_samples() -> None:
    """One draw, so that the central interval is known: ±2.776 scales for four degrees of freedom."""
    predictive = tb.Predictive(torch.zeros(1, 400, 1, dtype=torch.float64), tb.likelihoods.StudentT(df=4.0, scale=1.0))
    targets = torch.linspace(-4, 4, 400, dtype=torch.float64)
    actual = tb.evaluate(predictive, targets)
    inside = float((targets.abs() <= 2.776).double().mean())
    # the 2.5 % point of 2,000 samples has a deviation of √(0.025 · 0.975 / 2000) / density(−2.776) = 0.12
    assert actual.metrics["coverage"] == pytest.approx(inside, abs=2 * 0.12 / 8)
    assert actual.metrics["rmse"] == pytest.approx(float((targets**2).mean().sqrt()))


def test_metrics_of_counts_by_hand() -> None:
    predictive = tb.Predictive(normal(4, 300, 1), tb.likelihoods.Poisson())
    targets = predictive.sample(4, seed=3)[-1].long()
    actual = tb.evaluate(predictive, targets.squeeze(-1))
    each = torch.distributions.Poisson(predictive.outputs_SBK.exp())
    mean = each.mean.mean(0)
    variance = (each.mean**2 + each.mean).mean(0) - mean**2
    below = each.log_prob(torch.arange(400.0).view(-1, 1, 1, 1)).exp().mean(1).cumsum(0)
    low, high = ((below < level).sum(0) for level in (0.025, 0.975))
    expected = {
        "nll": -float(each.log_prob(targets.double()).exp().mean(0).log().mean()),
        "nll_gaussian": -float(torch.distributions.Normal(mean, variance.sqrt()).log_prob(targets).mean()),
        "rmse": float(((mean - targets) ** 2).mean().sqrt()),
        "mae": float((mean - targets).abs().mean()),
        "coverage": float(((targets >= low) & (targets <= high)).double().mean()),
    }
    assert actual.metrics == pytest.approx(expected, rel=1e-9)
    assert 0.95 < actual.metrics["coverage"] < 1
    # in dozens: the probability of a count has no unit
    dozens = tb.evaluate(predictive, targets, target_scale=1 / 12).metrics
    assert dozens["nll"] == actual.metrics["nll"]
    assert dozens["rmse"] == pytest.approx(expected["rmse"] / 12)


def custom(function: Any) -> tb.Predictive:
    return tb.Predictive(normal(4, 30, 1), tb.likelihoods.Custom(function))


@pytest.mark.parametrize("target_scale", [1.0, 3.0])
def test_any_distribution_of_numbers_is_judged_alike(target_scale: float) -> None:
    targets = normal(30, 1, seed=1)
    expected = tb.evaluate(custom(lambda f: torch.distributions.Normal(f, 0.5)), targets, target_scale=target_scale)
    assert set(expected.metrics) == {"nll", "nll_gaussian", "rmse", "mae", "coverage", "crps"}
    squeezed = custom(lambda f: torch.distributions.Normal(f.squeeze(-1), 0.5))
    actual = tb.evaluate(squeezed, targets.squeeze(-1), target_scale=target_scale).metrics
    assert actual == pytest.approx(expected.metrics)
    # Gumbel of the same mean and variance: its own density, and the same Gaussian
    scale = 0.5 * math.sqrt(6) / math.pi
    gumbel = tb.evaluate(
        custom(lambda f: torch.distributions.Gumbel(f - np.euler_gamma * scale, scale)),
        targets,
        target_scale=target_scale,
    ).metrics
    assert gumbel["rmse"] == pytest.approx(expected.metrics["rmse"])
    assert gumbel["nll_gaussian"] == pytest.approx(expected.metrics["nll_gaussian"])
    own = torch.distributions.Gumbel(normal(4, 30, 1) - np.euler_gamma * scale, scale).log_prob(targets)
    by_hand = -float(own.exp().mean(0).log().mean()) + math.log(target_scale)
    assert gumbel["nll"] == pytest.approx(by_hand)


def test_distributions_without_a_mean_or_of_whole_rows_are_scored_by_nll_alone() -> None:
    targets = normal(30, 1, seed=1)
    for likelihood in (
        tb.likelihoods.StudentT(df=0.9),
        tb.likelihoods.Custom(lambda f: torch.distributions.Cauchy(f, 1.0)),
    ):
        actual = tb.evaluate(tb.Predictive(normal(4, 30, 1), likelihood), targets).metrics
        assert set(actual) == {"nll"}
    rows = custom(
        lambda f: torch.distributions.Independent(torch.distributions.Normal(f.expand(*f.shape[:-1], 2), 1.0), 1)
    )
    assert set(tb.evaluate(rows, normal(30, 2, seed=1)).metrics) == {"nll"}


def test_sampled_intervals_take_many_outputs_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    predictive = tb.Predictive(torch.zeros(1, 101, 2, dtype=torch.float64), tb.likelihoods.StudentT(df=4.0))
    monkeypatch.setattr(intervals, "_AT_ONCE", 2000 * 2 * 20)  # five pieces, and a row
    actual = number_columns(predictive, predictive.mean)
    for name, sign in (("low", -1), ("high", 1)):
        torch.testing.assert_close(actual[name], sign * torch.full_like(actual[name], 2.776), atol=0.6, rtol=0)
        assert not torch.equal(actual[name][:20], actual[name][20:40])  # each piece has samples of its own


@pytest.mark.parametrize(
    ("targets", "error", "message"),
    [
        (torch.full((24,), 3), ValueError, "must lie in 0..2"),
        (torch.zeros(24), TypeError, "must be int64"),
        (torch.zeros(5, dtype=torch.int64), ValueError, "equally many rows; got 24, 5"),
    ],
)
def test_targets_that_do_not_fit_are_refused(targets: Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        tb.evaluate(POSTERIORS["point"](model_of(), 2), (INPUTS, targets))


@pytest.mark.parametrize("data", [(INPUTS[:0], TARGETS[:0]), [], TensorDataset(INPUTS[:0], TARGETS[:0])])
def test_no_rows_are_refused(data: Any) -> None:
    with pytest.raises(ValueError, match="the data are empty: there are no rows to evaluate"):
        tb.evaluate(POSTERIORS["point"](model_of(), 2), data)


def test_evaluate_does_not_average_outputs_over_members() -> None:
    """The average of an ensemble is no worse than its mean member: Jensen's inequality on the log."""
    model = model_of()
    posterior = POSTERIORS["point"](model, 4)
    assert isinstance(posterior, tb.Point)
    average = tb.evaluate(posterior, (INPUTS, TARGETS)).metrics["nll"]
    each = [
        tb.evaluate(tb.Point(model, w.unsqueeze(0)), (INPUTS, TARGETS)).metrics["nll"] for w in posterior.weights_MD
    ]
    assert average < np.mean(each)
    assert average > min(each) - math.log(4)


# --- batches whose rows differ in length


class Tagger(nn.Module):
    """Logits of every token separately, so that padding changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table(tokens)


def sentences(lengths: tuple[int, ...]) -> list[tuple[Tensor, Tensor]]:
    """Batches of four rows, of these lengths, where the last row is padded by one more."""
    actual = []
    for length in lengths:
        tokens = torch.arange(4 * length).view(4, length) % 9
        labels = (tokens * 7 + length) % 3
        labels[-1, -1] = -100
        actual.append((tokens, labels))
    return actual


@pytest.mark.parametrize("weighted", [False, True])
def test_batches_of_other_lengths_are_scored_as_if_all_were_padded(weighted: bool) -> None:
    likelihood = tb.likelihoods.Categorical(ignore_index=-100)
    model = tb.Model(Tagger().double(), tb.likelihoods.Weighted(likelihood) if weighted else likelihood)
    posterior, batches = tb.Point(model, normal(2, 27)), sentences((3, 6, 5))
    whole = [torch.cat([nn.functional.pad(t, (0, 6 - t.shape[1]), value=v) for t in parts]) for parts, v in zip(
        zip(*batches, strict=True), (0, -100), strict=True)]  # fmt: skip
    shares = torch.arange(12) % 3 + 1.0
    if weighted:
        batches = [(x, (y, shares[4 * i : 4 * i + 4])) for i, (x, y) in enumerate(batches)]
    actual = tb.evaluate(posterior, batches)
    expected = tb.evaluate(posterior, (whole[0], (whole[1], shares) if weighted else whole[1]))
    assert actual.metrics.keys() == expected.metrics.keys()
    for name, value in expected.metrics.items():
        assert actual.metrics[name] == pytest.approx(value, rel=1e-12), name
    torch.testing.assert_close(actual.targets, whole[1])


def test_other_lengths_are_refused_at_the_second_batch_where_nothing_can_pad() -> None:
    asked = []

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for tokens, labels in sentences((3, 6, 5)):
            asked.append(tokens)
            yield tokens, labels.clamp_min(0)

    posterior = tb.Point(tb.Model(Tagger().double(), tb.likelihoods.Categorical()), normal(2, 27))
    with pytest.raises(
        ValueError, match=r"`?targets`? of all batches must have one shape a row; got \(6,\) after \(3,\)"
    ):
        tb.evaluate(posterior, batches())
    assert len(asked) == 2
    loader = DataLoader(sentences((3, 6, 5)), batch_size=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"outputs of all batches .* got \(6, 3\) after \(3, 3\)\. Pad .*`stream`"):
        tb.predict(posterior, loader)


# --- uncertainty, detection, fidelity


def test_uncertainty_is_that_of_the_predictive() -> None:
    posterior = POSTERIORS["gaussian_diagonal"](model_of(), 2)
    actual, predictive = (
        tb.uncertainty(posterior, INPUTS, draws=8, seed=3),
        tb.predict(posterior, INPUTS, draws=8, seed=3),
    )
    torch.testing.assert_close(actual.entropy, predictive.entropy)
    torch.testing.assert_close(actual.mutual_information, predictive.mutual_information)
    torch.testing.assert_close(actual.confidence, predictive.probs.amax(-1))


def scores(entropy: list[float], information: list[float], confidence: list[float]) -> Scores:
    return Scores(*(torch.tensor(v, dtype=torch.float64) for v in (entropy, information, confidence)))


def test_detection_by_hand() -> None:
    """One inlier of four is more uncertain than one outlier of two: 7 of 8 pairs are in order."""
    inside = scores([0.1, 0.2, 0.3, 0.6], [0.0, 0.0, 0.0, 0.0], [0.9, 0.8, 0.7, 0.4])
    outside = scores([0.5, 0.9], [0.0, 0.0], [0.5, 0.1])
    actual = tb.detection(inside, outside)
    assert set(actual) == {f"{m}_{s}" for m in ("auroc", "aupr", "fpr95") for s in ("entropy", "confidence")}
    for name in ("entropy", "confidence"):
        assert actual[f"auroc_{name}"] == pytest.approx(7 / 8)
        # the outliers rank first and third: precision 1 at recall ½, ⅔ at recall 1
        assert actual[f"aupr_{name}"] == pytest.approx((1 + 2 / 3) / 2)
        assert actual[f"fpr95_{name}"] == pytest.approx(1 / 2)


def test_the_false_positives_at_95_per_cent_are_outliers_taken_for_inliers() -> None:
    """As in Liang et al. (2018): inliers are positive. With outliers positive it would be 1 of 20, not 3 of 4."""
    inside = scores([*(0.01 * n for n in range(19)), 0.9], [0.0] * 20, [0.5] * 20)
    outside = scores([0.05, 0.1, 0.15, 0.5], [0.0] * 4, [0.5] * 4)
    threshold = 0.18  # 19 of 20 inliers are at most as uncertain
    assert (
        tb.detection(inside, outside)["fpr95_entropy"] == float((outside.entropy <= threshold).double().mean()) == 0.75
    )


def test_detection_of_equal_data_tells_nothing() -> None:
    posterior = POSTERIORS["gaussian_diagonal"](model_of(), 2)
    actual = tb.uncertainty(posterior, INPUTS, draws=4)
    assert tb.detection(actual, actual)["auroc_mutual_information"] == pytest.approx(0.5)
    assert tb.detection(actual, actual)["auroc_entropy"] == pytest.approx(0.5)


def test_fidelity_by_hand() -> None:
    p = torch.tensor([[0.6, 0.4], [0.1, 0.9]], dtype=torch.float64)
    q = torch.tensor([[0.4, 0.6], [0.3, 0.7]], dtype=torch.float64)
    assert tb.fidelity(p, q) == pytest.approx({"agreement": 0.5, "total_variation": 0.2})
    assert tb.fidelity(p, p) == pytest.approx({"agreement": 1.0, "total_variation": 0.0})


def test_memory_does_not_grow_with_the_rows() -> None:
    """A loader of many batches is never held at once: only per-row results stay."""
    model = tb.Model(nn.Linear(4, 2).double(), tb.likelihoods.Categorical())
    posterior = tb.Gaussian(model, normal(1, 10), Diagonal(torch.ones(1, 10, dtype=torch.float64)))
    alive: list[int] = []

    def many() -> Any:
        import weakref

        seen: list[weakref.ref[Tensor]] = []
        for number in range(40):
            inputs = normal(512, 4, seed=number)
            seen.append(weakref.ref(inputs))
            yield inputs, inputs.argmax(1) // 2
            alive.append(sum(ref() is not None for ref in seen))

    actual = tb.evaluate(posterior, many(), draws=3)
    assert len(actual.targets) == 40 * 512
    assert max(alive) <= 2
