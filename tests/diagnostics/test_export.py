import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.diagnostics.helpers import ar1, arviz
from torchbayes.diagnostics import ess_bulk, rhat, to_arviz


def test_groups_arrive_in_arviz_with_their_values():
    draws = ar1(3, 200, 6, 0.5)
    energy, diverging = draws[..., 0], draws[..., 0] > 1
    log_likelihood, targets = -0.01 * draws[..., :4].square(), torch.arange(4)
    data = to_arviz(
        draws.clone().requires_grad_(),
        sample_stats={"energy": energy, "diverging": diverging},
        log_likelihood=log_likelihood,
        observed_data=targets,
    )
    assert sorted(data.groups()) == ["log_likelihood", "observed_data", "posterior", "sample_stats"]
    np.testing.assert_array_equal(data.posterior["weights"].values, draws.numpy())
    np.testing.assert_array_equal(data.sample_stats["energy"].values, energy.numpy())
    assert data.sample_stats["diverging"].dtype == bool
    np.testing.assert_array_equal(data.log_likelihood["targets"].values, log_likelihood.numpy())
    np.testing.assert_array_equal(data.observed_data["targets"].values, targets.numpy())
    for own, theirs in ((rhat, arviz.rhat), (ess_bulk, arviz.ess)):
        expected = theirs(data)["weights"].values  # pyright: ignore[reportIndexIssue]
        np.testing.assert_allclose(own(draws).numpy(), expected, rtol=1e-8)
    assert arviz.loo(data).n_data_points == 4  # pyright: ignore[reportAttributeAccessIssue]


def test_named_draws_are_copies_in_a_dtype_arrays_have():
    weights = torch.randn(2, 10, 3).bfloat16()
    scale = torch.rand(2, 10)
    data = to_arviz({"weights": weights, "scale": scale})
    assert list(data.groups()) == ["posterior"]
    np.testing.assert_array_equal(data.posterior["weights"].values, weights.float().numpy())
    expected = scale.clone()
    scale.zero_()
    np.testing.assert_array_equal(data.posterior["scale"].values, expected.numpy())


def test_version_one_takes_the_groups_as_one_mapping(monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz", SimpleNamespace(from_dict=lambda groups: groups))
    draws = torch.randn(2, 10, 3)
    groups = to_arviz(draws, observed_data={"y": torch.arange(3)})
    assert {group: list(named) for group, named in groups.items()} == {"posterior": ["weights"], "observed_data": ["y"]}
    np.testing.assert_array_equal(groups["posterior"]["weights"], draws.numpy())


def test_without_arviz_the_message_says_what_to_run(monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(ImportError, match=r"needs arviz, which is not installed\. Run: pip install arviz"):
        to_arviz(torch.randn(2, 10, 3))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: to_arviz({}), ValueError, "at least one quantity; got an empty mapping"),
        (lambda: to_arviz(torch.zeros(10)), ValueError, r"shape \(M, S, ...\); got shape \(10,\)"),
        (lambda: to_arviz({"w": np.zeros((2, 3))}), TypeError, "'w' must be a torch tensor; got ndarray"),  # pyright: ignore
        (
            lambda: to_arviz({"a": torch.zeros(2, 5), "b": torch.zeros(2, 4)}),
            ValueError,
            r"`draws` must have 2 chains of 5 draws, like the first of the draws; got shape \(2, 4\) for 'b'",
        ),
        (
            lambda: to_arviz(torch.zeros(2, 5), sample_stats={"energy": torch.zeros(5)}),
            ValueError,
            r"`sample_stats` must have 2 chains of 5 draws.* got shape \(5,\) for 'energy'",
        ),
        (
            lambda: to_arviz(torch.zeros(2, 5), log_likelihood=torch.zeros(5, 2, 7)),
            ValueError,
            r"`log_likelihood` must have .* got shape \(5, 2, 7\) for 'targets'",
        ),
    ],
)
def test_wrong_calls_say_what_was_wrong(call, error, message):
    with pytest.raises(error, match=message):
        call()
