"""What every architecture must do: fits by every method, predictions, metrics, and files."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import torchbayes as tb
from tests.oracles import assert_close

METHODS: dict[str, Any] = {
    "map": tb.MAP(members=2, epochs=2, batch_size=4),
    "swag": tb.SWAG(members=2, epochs=4, batch_size=4, rank=2),
    "sghmc": tb.SGHMC(chains=2, steps=6, burn_in=2, batch_size=4, thin=1),
    "hmc": tb.HMC(chains=2, steps=4, burn_in=2, step_size=1e-2, trajectory=0.03),
    "diagonal": tb.Laplace(structure="diagonal", check_mode=False, prior="model"),
    "kronecker": tb.Laplace(structure="kronecker", check_mode=False, prior="model"),
    "vi": tb.VI(members=2, epochs=2, batch_size=4, kl_weight=1.0),
    "vi_by_layers": tb.VI(members=2, epochs=2, batch_size=4, kl_weight=1.0, estimator="auto"),
    "ivon": tb.IVON(members=2, epochs=2, batch_size=4),
    "flow": tb.NormalizingFlow("radial", members=2, epochs=2, batch_size=4, kl_weight=1.0),
    "online": tb.OnlineLaplace(structure="diagonal", epochs_of_descent=4, every=2, batch_size=4),
}

# of networks whose last layer is linear, and that have dense or convolutional layers
PARTICULAR: dict[str, Any] = {
    "vbll": tb.VBLL(members=2, epochs=2, batch_size=4),
    "mnf": tb.MNF(members=2, epochs=2, batch_size=4, kl_weight=1.0),
}


def methods(run: Collection[str], every: Collection[str] = METHODS) -> list[Any]:
    """Methods for `parametrize`: those named run, the others are studies, which other networks of these files meet."""
    assert set(run) <= set(every), "a method that is none"
    return [pytest.param(name, marks=() if name in run else pytest.mark.study) for name in every]


def start_of(model: tb.Model, name: str) -> Tensor | None:
    """Where a method starts: Laplace at the weights that the network holds."""
    return model.given_weights() if isinstance(METHODS.get(name), tb.Laplace) else None


def check(model: tb.Model, name: str, rows: Mapping[str, Any], path: Path) -> None:
    """Fit, predict, evaluate, save and load: metrics are those of the probabilities, and a file gives the same ones."""
    posterior = tb.fit(model, rows, {**METHODS, **PARTICULAR}[name], start=start_of(model, name))
    inputs = {key: value for key, value in rows.items() if key != "labels"}
    labels = torch.as_tensor(rows["labels"])
    loaded = tb.load(posterior.save(path / "posterior.safetensors"), model)
    for source, same in _sources(posterior, loaded):
        probs = tb.predict(source, inputs).probs
        assert_close(probs.sum(-1), torch.ones(probs.shape[:-1]), rtol=1e-5)
        expected = -probs.gather(-1, labels.unsqueeze(-1)).log().double().mean()
        assert_close(tb.evaluate(source, rows).metrics["nll"], expected, rtol=1e-4)
        assert_close(tb.predict(same, inputs).probs, probs, rtol=1e-4, atol=1e-6)


def _sources(posterior: Any, loaded: Any) -> list[tuple[Any, Any]]:
    if isinstance(posterior, tb.LaplacePosterior):
        return [(posterior, loaded), (tb.Linearised(posterior), tb.Linearised(loaded))]
    return [(posterior, loaded)]


def ggn(model: tb.Model, inputs: Any, outputs: int) -> Tensor:
    """Σ_n J_nᵀ (diag(p) − p pᵀ) J_n by autograd, of the whole network, (D, D); `outputs` numbers for a row."""
    weights_D = model.given_weights()
    jacobian = torch.autograd.functional.jacobian(lambda w: model.network(w, inputs), weights_D)
    rows_NKD = torch.as_tensor(jacobian).reshape(-1, outputs, len(weights_D))
    probs = model.network(weights_D, inputs).softmax(-1).view(-1, outputs)
    curved = torch.diag_embed(probs) - probs.unsqueeze(-1) * probs.unsqueeze(-2)
    return torch.einsum("nkd,nkl,nle->de", rows_NKD, curved, rows_NKD)


def precision(posterior: Any) -> Tensor:
    """The posterior precision of the first member, (D, D)."""
    covariance, size = posterior.gaussian.covariance, posterior.model.layout.size
    units = torch.eye(size, dtype=torch.float64)
    return torch.linalg.inv(torch.stack([covariance.matvec(unit.unsqueeze(0))[0] for unit in units]))
