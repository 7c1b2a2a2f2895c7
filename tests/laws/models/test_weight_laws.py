"""A row of weight w is w rows, and what is ignored is not there: in geometry and in estimates of the evidence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import torchbayes as tb
from tests.covering import with_studies
from tests.laws.models.test_likelihood_laws import models
from tests.oracles import assert_close, normal
from torchbayes import evidence, geometry
from torchbayes.geometry import learning
from torchbayes.geometry.networks import num_observations, place_of

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
SHORT = tb.HMC(chains=2, steps=6, burn_in=0, thin=1, mass="unit", step_size=0.02, trajectory=0.1)


def numbers(actual: Any) -> Tensor:
    """All numbers of a result in one vector."""
    leaves = actual if isinstance(actual, list | tuple) else [actual]
    return torch.cat([torch.as_tensor(leaf, dtype=torch.float64).flatten() for leaf in leaves])


def _basin(model: tb.Model, data: Any, at_D: Tensor) -> list[Any]:
    actual = geometry.basin(model, data, at_D, directions=6, threshold=0.3)
    return [actual.loss, actual.radii_K, actual.log_volume]


def _coefficient(model: tb.Model, data: Any, at_D: Tensor) -> list[Any]:
    actual = geometry.learning_coefficient(model, data, at_D, method=SHORT)
    return [actual.value, actual.chains_C, actual.loss, actual.inverse_temperature, actual.num_data]


def _barrier(model: tb.Model, data: Any, at_D: Tensor) -> list[Any]:
    actual = geometry.barrier(model, data, at_D, second=-at_D, points=4)
    return [*actual.nll, *(actual.error or ())]


def _interior(model: tb.Model, data: Any, at_D: Tensor) -> list[Any]:
    actual = geometry.interior(model, data, torch.stack([at_D, -at_D, at_D.flip(0)]), points=3)
    return [actual.nll_P, actual.vertices_V, *([] if actual.error_P is None else [actual.error_P])]


def _surface(model: tb.Model, data: Any, at_D: Tensor) -> list[Any]:
    plane = geometry.Plane.through(model, torch.stack([at_D, -at_D, at_D.flip(0)]))
    actual = geometry.surface(model, data, plane, points=3)
    return [actual.nll_QP, *([] if actual.error_QP is None else [actual.error_QP])]


def _rays(model: tb.Model, data: Any, at_D: Tensor) -> list[Any]:
    actual = geometry.rays(model, data, at_D, directions=2, points=4)
    return [actual.log_density_KP, actual.log_likelihood_KP]


def _spectrum(model: tb.Model, data: Any, at_D: Tensor) -> list[Any]:
    actual = geometry.spectrum(model, data, at_D, steps=40, probes=2)
    return [actual.trace.value, actual.effective_dimension(1.0).value, actual.num_data]


def _leading(model: tb.Model, data: Any, at_D: Tensor) -> list[Any]:
    return [geometry.curved_directions(model, data, at_D, rank=2, matrix="hessian").values_R]


def _stiffness(model: tb.Model, data: Any, at_D: Tensor) -> list[Any]:
    return [learning._stiffness(place_of(model, data, at_D), 4, 0)]


OF_PLACES: dict[str, Callable[[tb.Model, Any, Tensor], Any]] = {
    "observations": lambda model, data, at_D: num_observations(place_of(model, data, at_D), 4),
    "basin": _basin,
    "learning coefficient": _coefficient,
    "barrier": _barrier,
    "interior": _interior,
    "surface": _surface,
    "rays": _rays,
    "spectrum": _spectrum,
    "trace": lambda model, data, at_D: geometry.trace(model, data, at_D, products=9).value,
    "leading directions": _leading,
    "stiffness": _stiffness,
}
EVIDENCES: dict[str, Callable[[tb.Model, Any], evidence.Evidence]] = {
    "annealed importance sampling": lambda model, data: evidence.annealed_importance_sampling(
        model, data, particles=2, temperatures=3, leapfrogs=1, seed=1
    ),
    "thermodynamic integration": lambda model, data: evidence.thermodynamic_integration(
        model, data, chains=2, steps=30, temperatures=3, leapfrogs=1, seed=1
    ),
    "prior monte carlo": lambda model, data: evidence.prior_monte_carlo(model, data, draws=40, seed=1),
}


# the thermodynamic integral asks the same target as annealing does
IN_RUN = [pytest.param(n, marks=pytest.mark.study if n.startswith("thermo") else ()) for n in EVIDENCES]


@pytest.mark.parametrize("estimate", IN_RUN)
def test_the_evidence_is_that_of_repeated_rows(estimate: str) -> None:
    one, other = (EVIDENCES[estimate](model, data).log_evidence for model, data in models("both weights"))
    assert one == pytest.approx(other, rel=1e-6)


SAID = ["both weights", "classes", "gaussian, learned", "ignored rows", "binary shares"]
# each function with one way to say it, or two: it sees rows and their weights, not how these were said
IN_TURN = [(function, SAID[p]) for n, function in enumerate(OF_PLACES) for p in ((0,) if n % 3 else (0, 1 + n % 4))]


@pytest.mark.parametrize(("function", "name"), with_studies(IN_TURN, OF_PLACES, SAID))
def test_rows_count_by_their_weights(function: str, name: str) -> None:
    actual = []
    for model, data in models(name):
        at_D = model.given_weights() + 0.2 * normal(model.layout.size, seed=1)
        actual.append(numbers(OF_PLACES[function](model, data, at_D)))
    assert_close(*actual, rtol=1e-6, atol=1e-9)
    assert actual[0].isfinite().all()
