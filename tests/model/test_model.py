import math
from collections import UserDict
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.model.helpers import ConvNorm, Tied, Tokens, mlp, tokens
from tests.oracles import LinearGaussian, assert_close, classes, finite_differences, mlp_log_joint, normal
from torchbayes.density import LogDensity
from torchbayes.model import Batch, Model, likelihoods, priors

WIDTHS = (3, 5, 2)
INPUTS, TARGETS = normal(12, 3), classes(12, 2)
DATA = Batch(INPUTS, TARGETS)


def classifier(**settings: Any) -> Model:
    return Model(mlp(WIDTHS), likelihoods.Categorical(), priors.Normal(0.8), **settings)


# --- the log joint density ---


@pytest.mark.parametrize("num_data", [12, 100])
def test_log_joint_is_the_brute_force_sum(num_data: int):
    model = classifier()
    weights = normal(model.layout.size)
    expected = mlp_log_joint(weights, WIDTHS, (INPUTS, TARGETS), prior_scale=0.8, num_data=num_data)
    assert_close(model.log_joint(weights, DATA, num_data), expected)
    leaf, other = weights.clone().requires_grad_(), weights.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model.log_joint(leaf, DATA, num_data), leaf)
    by_hand = mlp_log_joint(other, WIDTHS, (INPUTS, TARGETS), prior_scale=0.8, num_data=num_data)
    assert_close(gradient, torch.autograd.grad(by_hand, other)[0])
    assert_close(gradient, finite_differences(lambda w: model.log_joint(w, DATA, num_data), weights), rtol=1e-6)


def test_log_joint_of_linear_regression_is_the_closed_form():
    exact = LinearGaussian(INPUTS, normal(12, seed=1), prior_scale=1.5, noise_scale=0.4, temperature=0.3)
    model = Model(nn.Linear(3, 1).double(), likelihoods.Gaussian(0.4), priors.Normal(1.5), temperature=0.3)
    batch, weights = Batch(INPUTS, exact.targets_N), normal(4)
    assert_close(model.log_joint(weights, batch, 12), exact.log_joint(weights))
    mean, covariance = exact.posterior()
    gap = model.log_joint(mean, batch, 12) - model.log_joint(weights, batch, 12)
    assert_close(gap, 0.5 * (weights - mean) @ torch.linalg.inv(covariance) @ (weights - mean))
    untempered = Model(nn.Linear(3, 1).double(), likelihoods.Gaussian(0.4), priors.Normal(1.5))
    mean, covariance = LinearGaussian(INPUTS, exact.targets_N, 1.5, 0.4).posterior()
    log_posterior = -0.5 * torch.logdet(2 * math.pi * covariance)  # at the mean
    evidence = untempered.log_joint(mean, batch, 12) - log_posterior  # Bayes' rule
    assert_close(evidence, LinearGaussian(INPUTS, exact.targets_N, 1.5, 0.4).log_evidence())


@pytest.mark.parametrize("tempering", ["joint", "likelihood"])
@pytest.mark.parametrize("temperature", [1.0, 0.1, 3.0])
def test_temperature_divides_what_it_says(temperature: float, tempering: Literal["joint", "likelihood"]):
    model = classifier(temperature=temperature, tempering=tempering)
    weights = normal(model.layout.size)
    likelihood = 100 / 12 * classifier().log_likelihood(weights, DATA).sum()
    prior = classifier().log_prior(weights)
    expected = (likelihood + prior) / temperature if tempering == "joint" else likelihood / temperature + prior
    assert_close(model.log_joint(weights, DATA, 100), expected)
    assert_close(model.log_prior(weights), prior)  # these two are never tempered
    assert_close(model.log_likelihood(weights, DATA), classifier().log_likelihood(weights, DATA))


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 6, 12])
def test_the_average_over_the_minibatches_of_a_partition_is_the_full_data_value(rows: int):
    model = classifier(temperature=0.5)
    weights = normal(model.layout.size).requires_grad_()
    parts = [DATA.map(lambda t, i=i: t[i : i + rows]) for i in range(0, 12, rows)]
    average = torch.stack([model.log_joint(weights, part, 12) for part in parts]).mean()
    full = model.log_joint(weights, DATA, 12)
    assert_close(average, full)
    assert_close(*(torch.autograd.grad(value, weights)[0] for value in (average, full)))


@pytest.mark.parametrize("make", [mlp, Tied, ConvNorm])
def test_log_joint_at_the_modules_own_weights(make: Any):
    module = make().eval()
    inputs = normal(6, 1, 4, 4) if make is ConvNorm else normal(6, 3)
    model, outputs = Model(module, likelihoods.Categorical()), module(inputs).detach()
    targets = classes(6, outputs.shape[1])
    expected = -nn.functional.cross_entropy(outputs, targets, reduction="sum")
    expected += sum(torch.distributions.Normal(0.0, 1.0).log_prob(p.detach()).sum() for p in module.parameters())
    assert_close(model.log_joint(model.given_weights(), Batch(inputs, targets), 6), expected, rtol=1e-8)


def test_constants_have_no_prior_and_random_weights_do():
    module = mlp(WIDTHS)
    model = Model(module, likelihoods.Categorical(), priors.Normal(0.8), random="2.*")
    weights, body = normal(12), torch.cat([p.detach().flatten() for p in module[0].parameters()])
    everything = mlp_log_joint(torch.cat([body, weights]), WIDTHS, DATA, prior_scale=0.8, num_data=50)
    of_body = -0.5 * (body / 0.8).square().sum() - len(body) * math.log(0.8 * math.sqrt(2 * math.pi))
    assert_close(model.log_joint(weights, DATA, 50), everything - of_body)


# --- where members start ---


def test_starting_weights_are_the_networks_and_given_weights_the_modules():
    module = mlp(WIDTHS)
    model = Model(module, likelihoods.Gaussian("learned", outputs=2, initial=0.2))
    weights, buffers = model.starting_weights([5, 6])
    assert torch.equal(weights[:, :-2], model.network.fresh([5, 6])[0])
    assert_close(weights[:, -2:], np.full((2, 2), math.log(0.2)))
    assert buffers == {}
    held = torch.cat([p.detach().flatten() for p in module.parameters()])
    assert_close(model.given_weights(), torch.cat([held, torch.full((2,), math.log(0.2), dtype=torch.float64)]))


def test_split_gives_the_network_its_views_and_the_likelihood_its_own():
    model = Model(mlp(WIDTHS), likelihoods.Gaussian("learned", outputs=2))
    weights = normal(4, model.layout.size)
    views, learned = model.split(weights)
    assert set(views) == set(model.network.layout.names)
    assert torch.equal(learned["log_scale"], weights[:, -2:])
    assert torch.equal(views["2.bias"], weights[:, -4:-2])


# --- batches ---


class HuggingFaceBatch(UserDict):
    """What a tokenizer's collator yields: no dict, but with keys."""


@pytest.mark.parametrize(
    "batch",
    [
        (INPUTS, TARGETS),
        [INPUTS, TARGETS],
        {"inputs": INPUTS, "labels": TARGETS},
        {"x": INPUTS, "target": TARGETS},
        {"inputs": INPUTS, "label": TARGETS},
        HuggingFaceBatch({"inputs": INPUTS, "targets": TARGETS}),
        (INPUTS.numpy(), TARGETS.numpy()),
        Batch(INPUTS, TARGETS),
    ],
)
def test_batches_as_they_come(batch: Any):
    model = classifier()
    unpacked = model.unpack(batch)
    assert torch.equal(unpacked.inputs, INPUTS)
    assert torch.equal(unpacked.targets, TARGETS)
    assert unpacked.size == 12


@pytest.mark.parametrize("kind", [dict, HuggingFaceBatch])
def test_a_batch_of_tokens_reaches_the_network_by_keywords(kind: type):
    module = Tokens()
    model = Model(module, likelihoods.Categorical(), priors.Flat())
    batch = model.unpack(kind({**tokens(4), "labels": torch.tensor([0, 1, 2, 0])}))
    model.check(batch)
    assert batch.size == 4
    expected = module(**tokens(4)).logits.log_softmax(1)[range(4), [0, 1, 2, 0]]
    assert_close(model.log_likelihood(model.given_weights(), batch), expected)


def test_floating_inputs_take_the_networks_dtype_and_integers_stay():
    batch = classifier().unpack({"inputs": INPUTS.float(), "labels": TARGETS})
    assert_close(batch.inputs, INPUTS, rtol=1e-6)
    assert batch.inputs.dtype == torch.float64
    assert batch.targets.dtype == torch.int64
    assert Model(nn.Linear(3, 1), likelihoods.Gaussian()).unpack((INPUTS, INPUTS[:, 0])).targets.dtype == torch.float32


def test_a_hook_takes_any_batch():
    model = classifier(batch=lambda b: (b["features"], b["meta"]["y"]))
    unpacked = model.unpack({"features": INPUTS, "meta": {"y": TARGETS}})
    assert_close(model.log_joint(normal(32), unpacked, 12), classifier().log_joint(normal(32), DATA, 12))


@pytest.mark.parametrize("batch", [INPUTS, (INPUTS,), (INPUTS, TARGETS, TARGETS), {"inputs": INPUTS}, "text"])
def test_batches_without_targets_are_an_error(batch: Any):
    with pytest.raises(TypeError, match=f"batch of type {type(batch).__name__}. Give Model `batch=`"):
        classifier().unpack(batch)


def test_map_reaches_every_tensor():
    both = Batch((INPUTS, {"more": INPUTS + 1}), TARGETS).map(lambda t: t[:5])
    assert_close(both.inputs[1]["more"], INPUTS[:5] + 1)
    assert both.size == len(both.targets) == 5


# --- messages ---

BAD = INPUTS.clone()
BAD[3, 1], BAD[7, 0] = math.nan, math.inf


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (Batch(INPUTS[:0], TARGETS[:0]), "the data are empty: a batch has no rows"),
        (Batch(INPUTS, TARGETS[:7]), r"equally many rows; got 12, 7\."),
        (Batch(BAD, TARGETS), r"inputs must be finite; 2 of 36 values are NaN or infinite\. Remove or impute"),
        (Batch(normal(12, 4), TARGETS), r"the network cannot take inputs of shape \(12, 4\): .*mat1 and mat2"),
        (Batch((INPUTS, INPUTS), TARGETS), r"cannot take inputs of shape \(\(12, 3\), \(12, 3\)\): .*positional arg"),
        (Batch((INPUTS, INPUTS), TARGETS), "taken for 2 arguments of its forward; give inputs without targets"),
        (
            Batch((10 * INPUTS).long(), TARGETS),
            "Some are torch.int64: if they are quantities and no indices, give `.flo",
        ),
        (Batch({"wrong": INPUTS}, TARGETS), r"cannot take inputs of shape \{'wrong': \(12, 3\)\}: .*'wrong'"),
        (Batch(INPUTS, TARGETS + 1), r"class labels must lie in 0\.\.1, .* got 2\. Relabel"),
        (Batch(INPUTS, INPUTS[:, 0]), r"class labels must be int64"),
    ],
)
def test_check_says_what_does_not_fit(batch: Batch, message: str):
    with pytest.raises((ValueError, TypeError), match=message):
        classifier().check(batch)


def test_a_tuple_is_a_batch_wherever_one_is_taken():
    model, batch = classifier(), Batch(INPUTS, TARGETS)
    weights = model.given_weights()
    for call in (
        model.check,
        lambda rows: model.log_likelihood(weights, rows),
        lambda rows: model.log_joint(weights, rows, 24),
    ):
        assert torch.equal(call((INPUTS, TARGETS)), call(batch))
    minibatches = LogDensity(model, len(INPUTS), None)
    with pytest.raises(TypeError, match=r"`batch` must be a Batch\(inputs, targets\) of rows \(M, B, ...\); got"):
        minibatches.value(weights[None], (INPUTS[None], TARGETS[None]))  # type: ignore[arg-type]


def test_check_passes_what_fits_and_moves_no_buffer():
    model = Model(ConvNorm(), likelihoods.Categorical())
    before = {n: b.clone() for n, b in model.network.buffers.items()}
    model.check(Batch(normal(6, 1, 4, 4), classes(6, 3)))
    for name, buffer in before.items():
        assert torch.equal(model.network.buffers[name], buffer)


def test_check_refuses_outputs_with_other_rows():
    class Mean(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input).mean(0, keepdim=True)

    with pytest.raises(ValueError, match=r"one output row per input row; got 1 for 12\."):
        Model(Mean(3, 2).double(), likelihoods.Categorical()).check(DATA)


@pytest.mark.parametrize("rows", [2, 5])
def test_check_tells_rows_from_positions_that_are_as_many(rows: int):
    class TimeFirst(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input).transpose(0, 1)

    class OfThese(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            if len(input) != rows:
                raise ValueError("another number of rows")
            return super().forward(input)

    batch = Batch(normal(rows, rows, 3), normal(rows, rows, 2))
    with pytest.raises(ValueError, match=rf"one output row per input row; got {rows} for {2 if rows != 2 else 3}\."):
        Model(TimeFirst(3, 2).double(), likelihoods.Gaussian()).check(batch)
    for network in (nn.Linear(3, 2), OfThese(3, 2)):
        assert Model(network.double(), likelihoods.Gaussian()).check(batch).shape == (rows, rows, 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0.0}, r"`temperature` must be above 0; got 0\.0"),
        ({"temperature": math.nan}, "`temperature` must be above 0; got nan"),
        ({"tempering": "prior"}, "`tempering` must be one of joint, likelihood; got 'prior'"),
    ],
)
def test_settings_outside_their_range(settings: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        classifier(**settings)


def test_a_likelihood_class_is_not_a_likelihood():
    with pytest.raises(TypeError, match=r"got the class Categorical\. Write Categorical\(\)"):
        Model(mlp(), likelihoods.Categorical)  # type: ignore[arg-type]
    poisson = Model(nn.Linear(3, 1).double(), torch.distributions.Poisson)  # a function from outputs to a Distribution
    assert isinstance(poisson.likelihood, likelihoods.Custom)
