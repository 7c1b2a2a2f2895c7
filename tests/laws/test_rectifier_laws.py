"""Laws of methods on those that are for regressions by fully connected ReLU networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from tests.laws import test_method_laws
from tests.laws.cases import Net, normal, unjudged
from tests.laws.test_layer_laws import LAWS, obey, runs
from tests.oracles import assert_close
from torchbayes.randomness.seeds import Purpose, member_seeds, seeded

TOGETHER = test_method_laws.test_members_together_equal_members_alone  # whose tensors must all have an axis of members
SOME = test_method_laws.test_only_random_weights_move  # which keeps weights that are not random
NETWORKS = {
    "mlp": Net(lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1))),
    "deep": Net(lambda: nn.Sequential(nn.Flatten(), *_stack(), nn.Dropout(0.2), nn.Linear(5, 2)), (2, 2)),
    "linear": Net(lambda: nn.Linear(4, 1)),
}


def _stack() -> tuple[nn.Module, ...]:
    return nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5, bias=False), nn.ReLU()


def made(name: str = "mlp", dtype: torch.dtype = torch.float64) -> nn.Module:
    """A network of the registry, always with the same weights; the deep one in the place of convolutions."""
    with seeded(Purpose.FACTORY, 1):
        return NETWORKS[name if name in NETWORKS else "deep"].make().to(dtype)


def model_of(name: str = "mlp", dtype: torch.dtype = torch.float64, **settings: Any) -> tb.Model:
    """A regression by a network of the registry, with what `fit` would see of the targets."""
    likelihood = tb.likelihoods.Gaussian("learned", spread=0.6)
    return tb.Model(made(name, dtype), likelihood, tb.priors.Normal(0.7), **settings)


def rows_of(name: str = "mlp", dtype: torch.dtype = torch.float64, rows: int = 24) -> tuple[Tensor, Tensor]:
    """Inputs and values that a network of the registry can take."""
    net = NETWORKS[name if name in NETWORKS else "deep"]
    inputs = normal(rows, *net.shape, seed=2, dtype=dtype)
    outputs = 2 if net is NETWORKS["deep"] else 1
    return inputs, inputs.flatten(1)[:, :outputs].sin() + 0.1 * normal(rows, outputs, seed=3, dtype=dtype)


def pbp(plan: str = "loop", **settings: Any) -> tb.PBP:
    """A small fit; members are run by the kernel, whatever the plan."""
    del plan
    return tb.PBP(**settings)


def known(plan: str = "loop", **settings: Any) -> tb.PBP:
    """Under the prior as it is."""
    return pbp(plan, prior="model", shape=3.0, **settings)


OWN = [law for law in LAWS if law not in {TOGETHER, SOME}]
OTHER = [test_method_laws.test_interrupted_and_resumed_equals_uninterrupted]  # a state without the prior's parameters


@pytest.fixture(autouse=True)
def regressions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the laws be about these models and rows."""
    own: dict[str, Any] = {"model_of": model_of, "rows_of": rows_of, "made": made}
    for name, function in own.items():
        monkeypatch.setattr(test_method_laws, name, function)
    monkeypatch.setattr(tb.likelihoods, "Categorical", lambda: tb.likelihoods.Gaussian("learned", spread=0.6))


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # a few rows, a few passes
@pytest.mark.parametrize(
    ("make", "law", "network"), [*runs({"pbp": pbp}, OWN, NETWORKS), *runs({"known": known}, OTHER, ["mlp"])]
)
def test_law_of_methods(
    make: Callable[..., Any], law: Callable[..., None], network: str, request: pytest.FixtureRequest
) -> None:
    obey(law, make, network, request)


@pytest.mark.parametrize("network", NETWORKS)
def test_members_together_equal_members_alone(network: str) -> None:
    model, data = model_of(network), rows_of(network)
    settings: dict[str, Any] = {"epochs": 3, "batch_size": 6}
    with unjudged():
        together = tb.fit(model, data, tb.PBP(members=2, **settings), seed=7, callbacks=())
        alone = tb.fit(model, data, tb.PBP(**settings), seed=member_seeds(7, 2)[1], callbacks=())
    assert isinstance(together, tb.Gaussian)
    assert isinstance(alone, tb.Gaussian)
    assert_close(together.mean_MD[1], alone.mean_MD[0], rtol=1e-12, atol=1e-14)
    assert_close(together.covariance.diagonal()[1], alone.covariance.diagonal()[0], rtol=1e-12, atol=0)


def test_the_size_of_batches_changes_the_order_of_rows_alone() -> None:
    """Of a linear model with known noise and one pass, nearly nothing; with one batch an epoch, rows are the same."""
    model, data = model_of("linear"), rows_of("linear")
    first, second = (tb.fit(model, data, tb.PBP(epochs=1, batch_size=b), callbacks=()) for b in (1, 24))
    assert isinstance(first, tb.Gaussian)
    assert isinstance(second, tb.Gaussian)
    assert (first.mean_MD - second.mean_MD).abs().max() < 0.1
