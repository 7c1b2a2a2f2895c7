import math

import pytest
import torch
from torch import Tensor

from tests.metrics.helpers import labels_drawn_from, random_classes, random_normal
from torchbayes.metrics import fit_temperature


def scaled_nll(outputs_BK: Tensor, targets_B: Tensor, temperature: float) -> float:
    return torch.nn.functional.cross_entropy(outputs_BK.double() / temperature, targets_B).item()


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_recovers_the_temperature_that_made_the_labels_and_lowers_the_nll(temperature: float):
    outputs_BK = 3 * random_normal(5000, 5)
    targets_B = labels_drawn_from((outputs_BK / temperature).softmax(-1))
    fitted = fit_temperature(outputs_BK, targets_B)
    # The Fisher information of 1 / T is B times the mean variance of the outputs under the scaled probabilities.
    probs_BK = (outputs_BK / temperature).softmax(-1)
    variance_B = (probs_BK * outputs_BK.square()).sum(-1) - (probs_BK * outputs_BK).sum(-1).square()
    standard_error = 1 / math.sqrt(variance_B.sum().item())
    assert 1 / fitted == pytest.approx(1 / temperature, abs=4 * standard_error)
    assert scaled_nll(outputs_BK, targets_B, fitted) <= scaled_nll(outputs_BK, targets_B, temperature)
    assert scaled_nll(outputs_BK, targets_B, fitted) <= scaled_nll(outputs_BK, targets_B, 1.0)


@pytest.mark.parametrize("scale", [0.1, 1.0, 100.0])
def test_meets_a_bounded_scalar_search(scale: float):
    from scipy.optimize import minimize_scalar

    outputs_BK = scale * random_normal(200, 3)
    targets_B = labels_drawn_from((0.8 * random_normal(200, 3)).softmax(-1))
    search = minimize_scalar(
        lambda log_t: scaled_nll(outputs_BK, targets_B, math.exp(log_t)),
        bounds=(math.log(0.01), math.log(1000)),
        method="bounded",
        options={"xatol": 1e-9},
    )
    fitted = fit_temperature(outputs_BK, targets_B, (0.01, 1000.0))
    assert fitted == pytest.approx(math.exp(search.x), rel=1e-5)  # pyright: ignore[reportAttributeAccessIssue]


def test_two_classes_with_one_gap_have_a_closed_form():
    outputs_BK = torch.tensor([[3.0, 0.0]]).expand(10, 2)
    targets_B = torch.tensor([0] * 8 + [1] * 2)
    assert fit_temperature(outputs_BK, targets_B) == pytest.approx(3 / math.log(4), rel=1e-9)


def test_almost_separable_data_converge_along_their_exponential_tail():
    # One right gap g and one wrong gap h: g / (1 + e^{g b}) = h / (1 + e^{-h b}), solved here by bisection.
    # Newton alone would need a step for each unit of log(right / wrong).
    right, wrong = 10.0, 1e-120
    outputs_BK = torch.tensor([[right, 0.0], [wrong, 0.0]], dtype=torch.float64)
    low, high = 1e-3, 90.0
    for _ in range(200):
        middle = (low + high) / 2
        slope = wrong / (1 + math.exp(-wrong * middle)) - right / (1 + math.exp(right * middle))
        low, high = (low, middle) if slope > 0 else (middle, high)
    assert fit_temperature(outputs_BK, torch.tensor([0, 1])) == pytest.approx(1 / low, rel=1e-9)


def test_logits_and_their_log_probabilities_agree_and_float32_is_enough():
    outputs_BK, targets_B = random_normal(300, 4), random_classes(300, 4) % 3
    expected = fit_temperature(outputs_BK, targets_B, (0.01, 1000.0))
    assert fit_temperature(outputs_BK.log_softmax(-1), targets_B, (0.01, 1000.0)) == pytest.approx(expected, rel=1e-8)
    assert fit_temperature(outputs_BK.float(), targets_B, (0.01, 1000.0)) == pytest.approx(expected, rel=1e-4)


def test_data_without_an_optimum_end_at_the_bounds_and_without_a_preference_at_one():
    outputs_BK = 10 * torch.eye(3)
    assert fit_temperature(outputs_BK, torch.tensor([0, 1, 2])) == 0.01
    assert fit_temperature(0.01 * outputs_BK, torch.tensor([0, 1, 2])) == 0.01
    assert fit_temperature(outputs_BK, torch.tensor([1, 2, 0])) == 100.0
    assert fit_temperature(torch.ones(3, 3), torch.tensor([1, 2, 0])) == 1.0
    assert fit_temperature(torch.ones(3, 3), torch.tensor([1, 2, 0]), (2.0, 3.0)) == 2.0


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: fit_temperature(torch.tensor([[0.0, math.inf]]), torch.tensor([0])), ValueError, "values: 1 of 2"),
        (lambda: fit_temperature(torch.tensor([[0.0, -math.inf]]), torch.tensor([1])), ValueError, "1 of 1 targets"),
        (lambda: fit_temperature(torch.tensor([[0.0, math.nan]]), torch.tensor([0])), ValueError, "outputs_BK` holds"),
        (lambda: fit_temperature(torch.zeros(2), torch.tensor([0, 0])), ValueError, "2 axes"),
        (lambda: fit_temperature(torch.zeros(2, 2), torch.tensor([0, 4])), ValueError, r"0\.\.1; got 4"),
        (lambda: fit_temperature(torch.zeros(1, 2), torch.tensor([0]), (2.0, 1.0)), ValueError, r"got \(2.0, 1.0\)"),
        (lambda: fit_temperature(torch.zeros(1, 2).long(), torch.tensor([0])), TypeError, "got torch.int64"),
    ],
)  # fmt: skip
def test_wrong_calls_say_what_was_wrong(call, error, message):
    with pytest.raises(error, match=message):
        call()
