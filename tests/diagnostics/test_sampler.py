import math

import numpy as np
import pytest
import torch

from tests.diagnostics.helpers import ar1, arviz
from torchbayes.diagnostics import acceptance, divergences, ebfmi, efficiency


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_ebfmi_matches_arviz_far_from_zero(rho, dtype):
    energy_MS = (1e4 + ar1(5, 300, 1, rho).squeeze(-1)).to(dtype)
    np.testing.assert_allclose(ebfmi(energy_MS).numpy(), arviz.bfmi(energy_MS.double().numpy()), rtol=1e-8)


def test_ebfmi_by_hand_and_of_ar1():
    assert ebfmi(torch.tensor([[0.0, 1.0, 0.0, 1.0]])).item() == 3.0
    # E (e_s - e_{s-1})² / Var e = 2 (1 - rho).
    torch.testing.assert_close(
        ebfmi(ar1(4, 10_000, 1, 0.8).squeeze(-1)).mean(), torch.tensor(0.4).double(), rtol=0.05, atol=0
    )
    assert ebfmi(torch.full((1, 9), 0.1)).isnan().all()


def test_acceptance_by_hand():
    error_MS = torch.tensor([[0.0, -3.0, math.log(2.0), math.log(4.0)], [math.nan, math.inf, -math.inf, 1e9]])
    torch.testing.assert_close(acceptance(error_MS), torch.tensor([2.75 / 4, 0.25]).double(), rtol=1e-7, atol=0)


def test_divergences_by_hand():
    error_MS = torch.tensor([[0.0, 999.0, 1001.0, -5000.0], [math.nan, math.inf, -math.inf, 11.0]])
    assert divergences(error_MS).tolist() == [1, 2]
    assert divergences(error_MS, threshold=10.0).tolist() == [2, 3]


def test_efficiency():
    assert efficiency(torch.tensor([100.0, 50.0]), 400).tolist() == [0.25, 0.125]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: ebfmi(torch.zeros(5)),
            ValueError,
            r"shape \(M, S\), at least one chain and 2 draws; got shape \(5,\)",
        ),
        (lambda: ebfmi(torch.zeros(2, 1)), ValueError, r"got shape \(2, 1\)"),
        (
            lambda: ebfmi(torch.tensor([[0.0, math.nan]])),
            ValueError,
            "`energy_MS` holds NaN or infinite values: 1 of 2",
        ),
        (lambda: ebfmi(torch.zeros(2, 9, dtype=torch.long)), TypeError, "floating dtype; got torch.int64"),
        (lambda: acceptance(torch.zeros(0, 3)), ValueError, r"`energy_error_MS` .* got shape \(0, 3\)"),
        (lambda: divergences(torch.zeros(2, 3), threshold=0.0), ValueError, "`threshold` must be above 0; got 0.0"),
        (lambda: efficiency(torch.ones(2), 0), ValueError, "`gradients` must be a whole number of at least 1; got 0"),
    ],
)
def test_wrong_calls_say_what_was_wrong(call, error, message):
    with pytest.raises(error, match=message):
        call()
