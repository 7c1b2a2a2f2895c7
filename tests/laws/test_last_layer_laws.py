"""Laws of methods on those whose networks must have a last layer: every network of the registry has one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import torchbayes as tb
from tests.laws import test_method_laws
from tests.laws.cases import NETWORKS, model_of, rows_of, unjudged
from tests.laws.test_layer_laws import LAWS, obey, runs
from tests.oracles import assert_close
from torchbayes.randomness.seeds import member_seeds

TOGETHER = test_method_laws.test_members_together_equal_members_alone  # whose tensors must all have an axis of members


def vbll(plan: str = "loop", **settings: Any) -> tb.VBLL:
    """A small fit; members are run one after the other, whatever the plan."""
    del plan
    return tb.VBLL(**{"optimizer": tb.Adam(lr=0.05), "kl_weight": 1.0, **settings})


def low_rank(plan: str = "loop", **settings: Any) -> tb.VBLL:
    """Another covariance and bound."""
    return vbll(plan, **{"covariance": "low_rank", "rank": 2, "bound": "knowles_minka", **settings})


OWN = [law for law in LAWS if law is not TOGETHER]
# the other covariance and bound are other tensors of a state
OTHER = [test_method_laws.test_interrupted_and_resumed_equals_uninterrupted]


@pytest.mark.parametrize(
    ("make", "law", "network"),
    [*runs({"vbll": vbll}, OWN, NETWORKS), *runs({"low_rank": low_rank}, OTHER, tuple(NETWORKS)[:2])],
)
def test_law_of_methods(
    make: Callable[..., Any], law: Callable[..., None], network: str, request: pytest.FixtureRequest
) -> None:
    obey(law, make, network, request)


# the features below the last layer are those of any other network
@pytest.mark.parametrize(
    "network", [pytest.param(n, marks=pytest.mark.study if n in {"mlp", "tied", "frozen"} else ()) for n in NETWORKS]
)
def test_members_together_equal_members_alone(network: str) -> None:
    model, data = model_of(network), rows_of(network)
    settings: dict[str, Any] = {"epochs": 3, "batch_size": 6}
    with unjudged():
        together = tb.fit(model, data, vbll(members=2, **settings), seed=7, callbacks=())
        alone = tb.fit(model, data, vbll(**settings), seed=member_seeds(7, 2)[1], callbacks=())
    assert isinstance(together, tb.Gaussian)
    assert isinstance(alone, tb.Gaussian)
    assert_close(together.mean_MD[1], alone.mean_MD[0], rtol=1e-8, atol=1e-11)
    assert_close(together.covariance.dense()[1], alone.covariance.dense()[0], rtol=1e-8, atol=1e-11)
