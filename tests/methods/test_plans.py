"""A plan that is set is the one that runs; where it cannot, every method refuses."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tests.covering import some_of
from tests.oracles import normal
from torch import nn

import torchbayes as tb
from torchbayes.checks import SettingError
from torchbayes.density.layers import passes
from torchbayes.density.plans import BACKENDS
from torchbayes.methods.particles import functions

X = normal(12, 3).float()
Y = (X[:, 0] > 0).long()
VI = {"epochs": 1, "kl_weight": 1.0}
METHODS = {
    "MAP": tb.MAP(epochs=1),
    "SWAG": tb.SWAG(epochs=4, burn_in=0.0),
    "VI by layers": tb.VI(**VI),
    "VI by layers, alpha": tb.VI(**VI, alpha=0.5),
    "VI by weights": tb.VI(**VI, estimator="weights"),
    "IVON": tb.IVON(epochs=1),
    "BSAM": tb.BSAM(epochs=1),
    "MNF": tb.MNF(**VI),
    "NormalizingFlow": tb.NormalizingFlow(**VI),
    "SVGD": tb.SVGD(members=2, epochs=1),
    "RepulsiveEnsemble": tb.RepulsiveEnsemble(members=2, epochs=1),
    "OnlineLaplace": tb.OnlineLaplace(epochs_of_descent=2, every=1, factor=1.0),
    "HMC": tb.HMC(steps=2, burn_in=1),
    "NUTS": tb.NUTS(steps=2, burn_in=1),
    "SGLD": tb.SGLD(steps=3, burn_in=1, thin=1, step_size=1e-4),
    "EllipticalSlice": tb.EllipticalSlice(steps=3, burn_in=1),
    "MCDropout": tb.MCDropout(epochs=1),
}


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the names of the backends that run."""
    names = set[str]()

    def noted(place: Any, attribute: str, name: Any) -> None:
        before = getattr(place, attribute)

        def call(*args: Any, **kwargs: Any) -> Any:
            names.add(str(name(*args) if callable(name) else name))
            return before(*args, **kwargs)

        monkeypatch.setattr(place, attribute, call)

    for backend in BACKENDS:
        noted(backend, "evaluate", backend.name)
    noted(passes, "_by_autograd", "loop")
    noted(passes, "by_kernel", "native")
    noted(functions, "_run", lambda density, *_: density.plan.backend)
    return names


def network(dropout: bool, kernel: bool = True) -> nn.Module:
    bend = nn.Tanh() if kernel else nn.Hardswish()
    return nn.Sequential(nn.Linear(3, 4), bend, nn.Dropout(0.5) if dropout else nn.Identity(), nn.Linear(4, 2))


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # of runs of one epoch
@pytest.mark.usefixtures("unjudged_fits")
@pytest.mark.parametrize(
    ("name", "how"),
    some_of(METHODS, [("native", True), ("native", False), ("vmap", False), ("loop", True)], one_in=2),
)
def test_what_was_set_runs_or_is_refused(name: str, how: tuple[str, bool], ran: set[str]) -> None:
    plan, kernels = how
    model = tb.Model(lambda: network(name == "MCDropout", kernels), tb.likelihoods.Categorical(), tb.priors.Normal())
    method = METHODS[name]
    no_kernel = not kernels or name in {"VI by layers, alpha", "MCDropout"}
    other = {"native": no_kernel, "loop": False, "vmap": "by layers" in name or name == "MCDropout"}[plan]
    if refuses_itself(name, plan):
        with pytest.raises(ValueError, match=r"`plan` of particles in the space of functions.*got 'native'"):
            dataclasses.replace(method, plan=plan)
    elif other:
        with pytest.raises(SettingError, match=f"plan '{plan}' cannot run this model: .* Set another plan"):
            tb.fit(model, (X, Y), dataclasses.replace(method, plan=plan), callbacks=())
    else:
        tb.fit(model, (X, Y), dataclasses.replace(method, plan=plan), callbacks=())
        assert ran == {plan}


def refuses_itself(name: str, plan: str) -> bool:
    return name == "RepulsiveEnsemble" and plan == "native"


def test_a_network_that_draws_numbers_is_refused_by_plans_that_cannot_seed_members() -> None:
    model = tb.Model(lambda: network(True), tb.likelihoods.Categorical())
    for plan in ("vmap", "compiled", "native"):
        with pytest.raises(SettingError, match=f"plan '{plan}' cannot run this model"):
            tb.fit(model, (X, Y), tb.MAP(members=2, epochs=1, plan=plan), callbacks=())
