"""Scores of rows against sums over all labels, closed forms, scikit-activeml and a refit."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.oracles import assert_close, normal
from torchbayes import metrics
from torchbayes.acquisition import classes, numbers
from torchbayes.acquisition.classes import ClassRows
from torchbayes.acquisition.greedy import Best
from torchbayes.acquisition.numbers import NumberRows

entr = torch.special.entr


def probs(draws: int, rows: int, count: int, *, seed: int = 0, scale: float = 2.0) -> Tensor:
    return (scale * normal(draws, rows, count, seed=seed)).softmax(-1)


def class_rows(probs_SBC: Tensor) -> ClassRows:
    return ClassRows(probs_SBC.unsqueeze(2))


def joint_information(probs_SBC: Tensor) -> float:
    """The mutual information of all labels together and the draw, by a sum over all labels."""
    draws, rows, count = probs_SBC.shape
    total = 0.0
    for labels in itertools.product(range(count), repeat=rows):
        given_S = torch.stack([probs_SBC[:, row, label] for row, label in enumerate(labels)]).prod(0)
        total += float(entr(given_S.mean()))
    return total - float(entr(probs_SBC).sum() / draws)


def test_bald_is_mutual_information_without_its_bias():
    rows = probs(7, 5, 3)
    assert_close(classes.bald(class_rows(rows)), metrics.mutual_information(rows) * 7 / 6)
    concentration = torch.tensor([2.0, 1.0, 0.5], dtype=torch.float64)
    total = concentration.sum()
    mean = concentration / total
    digamma = torch.digamma
    true = float(entr(mean).sum() + (mean * (digamma(concentration + 1) - digamma(total + 1))).sum())
    with torch.random.fork_rng():
        torch.manual_seed(0)
        drawn_SBC = torch.distributions.Dirichlet(concentration).sample((5, 20_000))
    estimates_B = classes.bald(class_rows(drawn_SBC))
    error = float(estimates_B.std()) / math.sqrt(20_000)
    assert abs(float(estimates_B.mean()) - true) < 0.01 * true + 4 * error  # 0.2201; the plain mean is 0.175
    assert float(metrics.mutual_information(drawn_SBC).mean()) < 0.85 * true


def test_entropy_and_margin_of_several_labels_are_sums():
    several = probs(4, 6, 3).unflatten(1, (2, 3))  # two rows of three labels
    mean = several.mean(0)
    assert_close(classes.entropy(ClassRows(several)), entr(mean).sum((-1, -2)))
    first, second, _ = mean.sort(descending=True).values.unbind(-1)
    assert_close(classes.margin(ClassRows(several)), (second - first).sum(-1))
    with pytest.raises(TypeError, match="one label in each row; here each has 3"):
        classes.epig(ClassRows(several), ClassRows(several))


@pytest.mark.parametrize("count", [2, 4])
def test_a_batch_is_a_sum_over_all_labels(count: int):
    probs_SBC = probs(6, 5, count, seed=count)
    state = class_rows(probs_SBC[:, :3]).batch(seed=0)
    for row in range(3):
        expected = [joint_information(probs_SBC[:, [*range(row), other]]) for other in range(5)]
        assert_close(
            state.information + state.gains(class_rows(probs_SBC)), torch.tensor(expected, dtype=torch.float64)
        )
        state.add(class_rows(probs_SBC[:, row : row + 1]))
        assert_close(state.information, expected[row])


def test_batches_are_those_of_scikit_activeml():
    pool = pytest.importorskip("skactiveml.pool")
    probs_SBC = probs(8, 30, 3, scale=4.0)
    utilities = pool.batch_bald(probs_SBC.numpy().copy(), 4, n_MC_samples=10_000, random_state=0)
    best = best_of(class_rows(probs_SBC), room=30)
    batch = best.greedy(4, seed=0)
    assert batch.places.tolist() == np.nanargmax(utilities, axis=1).tolist()
    assert_close(batch.information, float(np.nanmax(utilities[-1])), rtol=1e-4)
    assert batch.exact


def test_scores_and_batches_are_those_of_baal():
    """Its BALD has the bias of few draws, and its BatchBALD draws labels; a batch of it has a row more than it says."""
    baal = pytest.importorskip("baal.active.heuristics")
    probs_SBC = probs(8, 30, 3, scale=4.0)
    predictions_BCS, rows = probs_SBC.permute(1, 2, 0).numpy(), class_rows(probs_SBC)
    scores = {"bald": classes.bald(rows) * 7 / 8, "entropy": classes.entropy(rows), "margin": -classes.margin(rows)}
    for heuristic in (baal.BALD(), baal.Entropy(), baal.Margin()):
        name = type(heuristic).__name__.lower()
        inputs = predictions_BCS if name == "bald" else predictions_BCS.mean(-1)
        assert_close(scores[name], torch.from_numpy(heuristic.compute_score(inputs)), rtol=1e-4, atol=1e-5)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        scores_B = baal.BatchBALD(num_samples=1, num_draw=20_000).compute_score(predictions_BCS.copy())
    batch = best_of(rows, room=30).greedy(2, seed=0)
    first, second = batch.places.tolist()
    assert sorted([first, second]) == np.flatnonzero(scores_B).tolist()
    expected_entropy = float(entr(probs_SBC[:, first]).sum(-1).mean())  # which it does not take off
    assert_close(batch.information, scores_B[second] - expected_entropy, rtol=0.02)


def best_of(rows: ClassRows | NumberRows, *, room: int) -> Best:
    best, places = Best(room), np.arange(rows.rows)
    values = rows.information().numpy()
    for part in np.array_split(places, 3):  # as a pool is read
        keys = part.astype(np.uint64)
        best.add(rows.some(torch.from_numpy(part)), values[part], keys_B=keys, places_B=part)
    return best


def test_a_greedy_choice_looks_at_few_rows_and_misses_none():
    probs_SBC = probs(20, 300, 3, scale=3.0)
    batch = best_of(class_rows(probs_SBC), room=300).greedy(4, seed=0)
    chosen: list[int] = []
    for _ in range(4):
        left = [row for row in range(300) if row not in chosen]
        chosen.append(max(left, key=lambda row: joint_fast(probs_SBC[:, [*chosen, row]])))
    assert batch.places.tolist() == chosen
    narrow = best_of(class_rows(probs_SBC), room=5).greedy(4, seed=0)
    assert not narrow.exact  # says that rows which were not kept might have added more
    assert best_of(class_rows(probs_SBC), room=299).greedy(1, seed=0).exact


def joint_fast(probs_SBC: Tensor) -> float:
    joint_SN = probs_SBC[:, 0]
    for row in range(1, probs_SBC.shape[1]):
        joint_SN = (joint_SN.unsqueeze(-1) * probs_SBC[:, row].unsqueeze(1)).flatten(1)
    return float(entr(joint_SN.mean(0)).sum() - entr(probs_SBC).sum() / len(probs_SBC))


def test_drawn_labels_agree_with_all_labels(monkeypatch: pytest.MonkeyPatch):
    probs_SBC, actual = probs(10, 6, 3, scale=4.0), []
    monkeypatch.setattr(classes, "_ALL", 1)
    for seed in range(20):
        state = class_rows(probs_SBC).batch(seed=seed)
        for row in range(6):
            state.add(class_rows(probs_SBC[:, row : row + 1]))
        actual.append(state.information)
    expected, error = joint_information(probs_SBC), np.std(actual, ddof=1) / math.sqrt(len(actual))
    assert abs(np.mean(actual) - expected) < 4 * error < 0.02 * expected


def test_a_batch_never_tells_more_than_which_draw_it_is():
    probs_SBC = probs(10, 40, 2, scale=40.0)
    state, alone = class_rows(probs_SBC).batch(seed=0), 0.0
    for row in range(40):
        state.add(class_rows(probs_SBC[:, row : row + 1]))
        alone += float(class_rows(probs_SBC[:, row : row + 1]).information())
    assert alone > 2 * math.log(10) > 2 * state.information > 1.95 * math.log(10)


def test_epig_is_the_information_of_two_labels():
    rows, aims = probs(6, 4, 3), probs(6, 5, 3, seed=1)
    expected_B = torch.zeros(4, dtype=torch.float64)
    for row, aim in itertools.product(range(4), range(5)):
        joint = torch.einsum("sc,sd->cd", rows[:, row], aims[:, aim]) / 6
        apart = rows[:, row].mean(0).outer(aims[:, aim].mean(0))
        bias = chi_squared(rows[:, row]) * chi_squared(aims[:, aim]) / 12
        expected_B[row] += ((joint * (joint / apart).log()).sum() - bias) / 5
    assert_close(classes.epig(class_rows(rows), class_rows(aims)), expected_B)


def chi_squared(probs_SC: Tensor) -> Tensor:
    return (probs_SC.var(0) / probs_SC.mean(0)).sum()


def test_epig_of_unrelated_rows_is_zero():
    # 4,000 pools of draws that share nothing with the aims; without the correction the mean is 0.006 to 0.007
    rows, aims = probs(10, 4000, 3, scale=1.0), probs(10, 4000, 3, seed=1, scale=1.0)
    estimates = torch.cat([
        classes.epig(class_rows(rows[:, k : k + 40]), class_rows(aims[:, k : k + 1])) for k in range(0, 4000, 40)
    ])
    plain = float((chi(rows).mean() * chi(aims).mean()) / 20)
    assert abs(float(estimates.mean())) < 0.15 * plain


def chi(probs_SBC: Tensor) -> Tensor:
    return (probs_SBC.var(0) / probs_SBC.mean(0)).sum(-1)


def number_rows(mean_SBK: Tensor, noise: float = 0.3) -> NumberRows:
    return NumberRows(mean_SBK, torch.full(mean_SBK.shape[1:], noise, dtype=torch.float64))


def test_numbers_are_scored_by_the_log_determinant():
    mean_SBK = normal(9, 6, 2)
    rows = number_rows(mean_SBK)
    for row in range(6):
        covariance = torch.cov(mean_SBK[:, row].T)
        expected = 0.5 * torch.logdet(torch.eye(2).double() + covariance / 0.3)
        assert_close(numbers.bald(rows)[row], expected)
    expected_B = 0.5 * (2 * math.pi * math.e * (mean_SBK.var(0) + 0.3)).log().sum(-1)
    assert_close(numbers.entropy(rows), expected_B)
    state = rows.batch(seed=0)
    for row in range(4):
        together = torch.cov(mean_SBK[:, : row + 1].flatten(1).T) / 0.3
        state.add(rows.some(slice(row, row + 1)))
        identity = torch.eye(len(together)).double()
        assert_close(state.information, 0.5 * float(torch.logdet(identity + together)))


def test_squared_covariances_are_unbiased():
    source = torch.Generator().manual_seed(0)
    root = torch.tensor([[1.0, 0.0], [0.6, 0.9]], dtype=torch.float64)
    drawn_SBK = torch.randn(6, 40_000, 2, dtype=torch.float64, generator=source) @ root.T
    actual = torch.stack([
        numbers.squared_covariances(number_rows(drawn_SBK[:, k : k + 1, :1]), number_rows(drawn_SBK[:, k : k + 1, 1:]))
        for k in range(4000)
    ])
    assert abs(float(actual.mean()) - 0.36) < 4 * float(actual.std()) / math.sqrt(len(actual))


def test_variance_is_what_a_label_takes_away():
    """The posterior of a linear model, and its variances once a row is added, by conjugacy; and scikit-activeml."""
    pool = pytest.importorskip("skactiveml.pool")
    from skactiveml.regressor import SklearnNormalRegressor
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import DotProduct, WhiteKernel

    inputs, aims, known = normal(6, 3), normal(7, 3, seed=1), normal(4, 3, seed=2)
    noise, prior = 0.3, torch.eye(3).double()
    precision = prior + known.T @ known / noise
    root = torch.linalg.cholesky(torch.linalg.inv(precision))
    weights_SD = normal(40_000, 3, seed=3) @ root.T
    rows, theirs = (number_rows((weights_SD @ x.T).unsqueeze(-1), noise) for x in (inputs, aims))
    found_B = numbers.variance(rows, theirs)
    before = torch.einsum("td,de,te->t", aims, torch.linalg.inv(precision), aims)
    expected = []
    for x in inputs:
        after = torch.linalg.inv(precision + x.outer(x) / noise)
        expected.append((before - torch.einsum("td,de,te->t", aims, after, aims)).mean())
    assert_close(found_B, torch.stack(expected), rtol=0.03)
    kernel = DotProduct(sigma_0=0, sigma_0_bounds="fixed") + WhiteKernel(noise, noise_level_bounds="fixed")
    regressor = SklearnNormalRegressor(
        GaussianProcessRegressor(kernel, optimizer=None)  # type: ignore[arg-type]
    )
    labelled = np.concatenate([known.numpy(), inputs.numpy()])
    targets = np.concatenate([np.zeros(4), np.full(6, np.nan)])
    _, utilities = pool.ExpectedModelVarianceReduction(random_state=0).query(
        labelled, targets, reg=regressor, X_eval=aims.numpy(), return_utilities=True
    )
    assert_close(found_B, torch.from_numpy(utilities[0, 4:]), rtol=0.03)
    # EPIG is −½ log(1 − ρ²)
    spread = torch.einsum("bd,de,te->bt", inputs, torch.linalg.inv(precision), aims)
    both = torch.einsum("bd,de,be->b", inputs, torch.linalg.inv(precision), inputs).unsqueeze(1) + noise
    correlation = spread.square() / (both * (before + noise))
    assert_close(numbers.epig(rows, theirs), -0.5 * torch.log1p(-correlation).mean(1), rtol=0.03)


def test_an_unrelated_row_has_no_score():
    rows, aims = number_rows(normal(10, 500, 1)), number_rows(normal(10, 300, 1, seed=1))
    plain = float(((rows.apart_SBK.transpose(0, 1).squeeze(-1) @ aims.apart_SBK.squeeze(-1)) ** 2).mean())
    actual = float(numbers.squared_covariances(rows, aims).mean())
    assert abs(actual) < 0.1 * plain
