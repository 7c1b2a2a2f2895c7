"""What `acquire` chooses: the same rows in any order, none twice, and words for what cannot be scored."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torchbayes as tb
from tests.oracles import assert_close, normal
from torchbayes.acquisition import acquire
from torchbayes.distillation.heads import OutputsHead
from torchbayes.distillation.student import Build, Student
from torchbayes.linalg import Dense, Diagonal

POOL = normal(60, 4)


@cache
def ensemble(members: int = 6) -> tb.Point:
    model = tb.Model(nn.Linear(4, 3).double(), tb.likelihoods.Categorical())
    return tb.Point(model, 0.25 * normal(members, model.layout.size, seed=1))


def linear(noise: Any = 0.4, outputs: int = 1) -> tb.Model:
    return tb.Model(nn.Linear(4, outputs, bias=False).double(), tb.likelihoods.Gaussian(noise))


def gaussian() -> tb.Gaussian:
    root = normal(4, 4, seed=5)
    return tb.Gaussian(linear(), normal(1, 4, seed=6), Dense.of_precision((root @ root.T + 0.5 * torch.eye(4))[None]))


def propagated() -> tb.Propagated:
    return tb.Propagated(tb.Gaussian(linear(), normal(1, 4, seed=6), Diagonal(normal(1, 4).square())))


@pytest.mark.parametrize("score", ["bald", "batchbald", "epig", "entropy", "margin"])
def test_the_order_of_the_pool_plays_no_part(score: str):
    shuffled = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    actual, other = (acquire(ensemble(), pool, 5, score=score, seed=3) for pool in (POOL, POOL[shuffled]))
    assert torch.equal(shuffled[other.indices], actual.indices)
    assert torch.equal(other.scores, actual.scores[shuffled])
    assert actual.gain == other.gain
    loader = DataLoader(TensorDataset(POOL, torch.zeros(60)), batch_size=7, shuffle=True)
    assert torch.equal(acquire(ensemble(), loader, 5, score=score, seed=3).indices, actual.indices)
    assert torch.equal(acquire(ensemble(), loader.dataset, 5, score=score, seed=3).indices, actual.indices)
    small = acquire(ensemble(), POOL.numpy(), 5, score=score, seed=3, chunk_size=3)
    assert torch.equal(small.indices, actual.indices)


def student(outputs: int, likelihood: Any) -> Student:
    build = Build(outputs)
    head = OutputsHead(classes=outputs > 1)
    model = tb.Model(nn.Linear(4, 2 * outputs).double(), likelihood)
    return Student(tb.Point(model, normal(1, model.layout.size, seed=2)), head, build)


def test_a_student_has_scores_of_each_row_alone_and_no_functions():
    known = student(3, tb.likelihoods.Categorical())
    for score in ("bald", "entropy", "margin"):
        actual = acquire(known, POOL, 4, score=score)
        assert actual.gain is None
    assert_close(acquire(known, POOL).scores, tb.predict(known, POOL).mutual_information)
    counts = student(1, tb.likelihoods.Poisson())
    mixed = tb.predict(counts, POOL)
    assert_close(acquire(counts, POOL).scores, 0.5 * (1 + mixed.epistemic / mixed.aleatoric).log()[:, 0])
    for score in ("batchbald", "epig", "variance"):
        with pytest.raises(TypeError, match=r"a student speaks of each row alone\. Give its teacher"):
            acquire(known, POOL, 4, score=score)


def test_scores_are_those_of_the_predictive():
    predictive = tb.predict(ensemble(), POOL)
    actual = acquire(ensemble(), POOL, 4)
    assert_close(actual.scores, predictive.mutual_information * 6 / 5)
    assert actual.indices.tolist() == predictive.mutual_information.argsort(descending=True)[:4].tolist()
    assert_close(acquire(ensemble(), POOL, score="entropy").scores, predictive.entropy)
    by_hand = acquire(ensemble(), POOL, 4, score=lambda each: each.mutual_information)
    assert torch.equal(by_hand.indices, actual.indices)
    assert by_hand.score == "<lambda>"
    assert by_hand.gain is None


def test_no_batch_has_two_equal_rows():
    twice = torch.cat([POOL, POOL])
    for score in ("bald", "batchbald"):
        once, actual = acquire(ensemble(), POOL, 6, score=score), acquire(ensemble(), twice, 6, score=score)
        assert torch.equal(actual.indices, once.indices)
        assert torch.equal(actual.scores, once.scores.repeat(2))
        assert actual.duplicates == 60
    assert "duplicates=60" in repr(actual)
    with pytest.raises(ValueError, match="rows of the pool, 120, of which 60 are different; got 61"):
        acquire(ensemble(), twice, 61)


def test_equal_scores_are_ordered_by_the_seed():
    def score(each: tb.Predictive) -> torch.Tensor:
        return torch.zeros(each.outputs_SBK.shape[1])

    actual = [acquire(ensemble(), POOL, 5, score=score, seed=seed).indices.tolist() for seed in (0, 0, 1)]
    assert actual[0] == actual[1] != actual[2]
    assert actual[0] != [0, 1, 2, 3, 4]


def test_a_linear_model_has_its_closed_form():
    posterior = gaussian()
    covariance = posterior.covariance.dense()[0]
    variance_N = torch.einsum("nd,de,ne->n", POOL, covariance, POOL)
    actual = acquire(posterior, POOL, 5, draws=20_000)
    assert_close(actual.scores, 0.5 * torch.log1p(variance_N / 0.16), rtol=0.03)
    batch = acquire(posterior, POOL, 3, score="batchbald", draws=20_000)
    rows = POOL[batch.indices]
    exact = 0.5 * torch.logdet(torch.eye(3).double() + rows @ covariance @ rows.T / 0.16)
    assert_close(batch.gain, exact, rtol=0.03)
    assert batch.gain is not None
    assert batch.gain <= float(actual.scores[batch.indices].sum())


def test_laplace_draws_functions_of_the_linearised_network():
    model, start = linear(), torch.zeros(4, dtype=torch.float64)
    method = tb.Laplace(structure="dense", prior="model", check_mode=False)
    posterior = tb.fit(model, (POOL[:20], POOL[:20, :1]), method, start=start, callbacks=())
    exact = tb.Linearised(posterior).functions(POOL).covariance_MBKK.flatten()
    actual = acquire(posterior, POOL, 3, draws=3000)
    assert actual.draws == 3000
    assert_close(actual.scores, 0.5 * torch.log1p(exact / 0.16), rtol=0.08)
    assert acquire(posterior, POOL, 3).draws == 100
    closed = acquire(tb.Linearised(posterior), POOL, 3)
    assert_close(closed.scores, 0.5 * torch.log1p(exact / 0.16))
    assert closed.gain is None
    given = acquire(tb.Linearised(posterior, samples=50), POOL, 3, score="variance", target_inputs=POOL[:9])
    assert given.draws == 50


def test_several_outputs_and_noises():
    outputs = linear(outputs=2)
    posterior = tb.Point(outputs, normal(12, outputs.layout.size, seed=2))
    for score in ("bald", "batchbald", "epig", "variance", "entropy"):
        assert acquire(posterior, POOL, 3, score=score).scores.isfinite().all()
    network = nn.Linear(4, 2).double()
    for likelihood in (tb.likelihoods.HeteroscedasticGaussian(), tb.likelihoods.Gaussian("learned")):
        model = tb.Model(network, likelihood)
        drawn = tb.Draws(model, 0.3 * normal(2, 15, model.layout.size, seed=2))
        assert acquire(drawn, POOL, 3, score="batchbald").draws == 30
    counts = tb.Model(nn.Linear(4, 1).double(), tb.likelihoods.Poisson())
    members = tb.Point(counts, 0.3 * normal(5, counts.layout.size, seed=3))
    mean, epistemic = (getattr(tb.predict(members, POOL), name).flatten() for name in ("mean", "epistemic"))
    assert_close(acquire(members, POOL).scores, 0.5 * torch.log1p(epistemic * 5 / 4 / mean))


def test_labels_of_several_classes_in_a_row_are_summed():
    model = tb.Model(nn.Linear(4, 3).double(), tb.likelihoods.Bernoulli())
    members = tb.Point(model, normal(5, model.layout.size))
    assert_close(acquire(members, POOL).scores, tb.predict(members, POOL).mutual_information.sum(-1) * 5 / 4)
    with pytest.raises(TypeError, match="one label in each row; here each has 3"):
        acquire(members, POOL, score="batchbald")


@pytest.mark.parametrize(
    ("posterior", "score", "said"),
    [
        (ensemble(1), "bald", "there is one"),
        (ensemble(1), "batchbald", "there is one"),
        (ensemble(), "variance", "these targets are classes"),
        (tb.Point(linear(), normal(3, 4)), "margin", "is for classes"),
        (tb.Point(linear(), normal(2, 4)), "epig", "at least 3 draws"),
        (propagated(), "batchbald", "each row alone"),
        (ensemble(), lambda each: each.entropy[:3], "must return 60 numbers"),
        (ensemble(), lambda each: each.entropy * torch.nan, "finite numbers; 60 of 60"),
    ],
)
def test_what_has_no_score_is_said(posterior: Any, score: Any, said: str):
    with pytest.raises((TypeError, ValueError), match=said):
        acquire(posterior, POOL, 2, score=score)


def test_a_student_without_variance_has_no_score():
    model = tb.Model(nn.Linear(4, 1).double(), tb.likelihoods.StudentT(df=1.5))
    with pytest.raises(ValueError, match="not all finite"):
        acquire(tb.Point(model, normal(3, model.layout.size)), POOL)


def test_one_network_has_entropy_and_a_closed_form_has_bald():
    assert acquire(ensemble(1), POOL, 2, score="entropy").gain is None
    exact = propagated()
    predictive = tb.predict(exact, POOL)
    assert_close(acquire(exact, POOL, 2).scores, 0.5 * torch.log1p(predictive.epistemic / 0.16).flatten())


def test_rows_that_are_not_finite_are_named():
    wrong = POOL.clone()
    wrong[[7, 30], 1] = torch.nan
    for pool in (wrong, DataLoader(TensorDataset(wrong), batch_size=20)):
        with pytest.raises(ValueError, match=r"of the pool hold NaN or infinite values, the first of them row 7\."):
            acquire(ensemble(), pool)


def test_few_draws_say_that_they_cannot_tell_rows_apart():
    sharp = tb.Point(ensemble().model, 20 * normal(6, 15, seed=1))
    with pytest.warns(UserWarning, match=r"near log S = 1\.79, the most that 6 draws can tell"):
        actual = acquire(sharp, POOL, 10, score="batchbald")
    assert len({*actual.indices.tolist()}) == 10
    assert actual.problems
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        acquire(sharp, POOL, 10)


def test_estimators_take_rows_as_they_are():
    pd = pytest.importorskip("pandas")
    from torchbayes.sklearn import BayesianClassifier

    source = np.random.default_rng(0)
    frame = pd.DataFrame({"a": source.normal(size=80), "b": source.choice(["x", "y"], size=80)})
    target = np.where(frame["a"] + (frame["b"] == "x") > 0.3, "yes", "no")
    method = tb.MAP(members=4, epochs=20)
    estimator = BayesianClassifier(network="mlp", method=method, random_state=0).fit(frame[:40], target[:40])
    actual = acquire(estimator, frame[40:], 5, score="epig", target_inputs=frame[:10])
    by_hand = acquire(
        *estimator.posterior_at(frame[40:]), 5, score="epig", target_inputs=estimator.posterior_at(frame[:10])[1]
    )
    assert torch.equal(actual.indices, by_hand.indices)
    assert len(actual.scores) == 40


def test_copies_that_differ_by_rounding_are_one_row() -> None:
    source = torch.Generator().manual_seed(149)
    model = tb.Model(tb.networks.mlp((16,), 3, hidden=(64,)), tb.likelihoods.Categorical())
    ensemble = tb.Point(model, 0.05 * torch.randn(6, model.layout.size, generator=source))
    near = torch.randn(1, 16, generator=source) + 1e-6 * torch.randn(12, 16, generator=source)
    pool = near[torch.randint(12, (61,), generator=source)]
    for score in ("bald", "batchbald", "entropy"):
        chosen = tb.acquire(ensemble, DataLoader(TensorDataset(pool), batch_size=5), 3, score=score)
        assert len(pool[chosen.indices].unique(dim=0)) == 3


def test_a_margin_needs_two_classes() -> None:
    model = tb.Model(nn.Linear(3, 1), tb.likelihoods.Categorical())
    with pytest.raises(ValueError, match="'margin' is a difference of two classes"):
        tb.acquire(tb.Point(model, normal(3, model.layout.size).float()), normal(9, 3).float(), 2, score="margin")
