"""Ensembles of networks that were trained elsewhere, against the networks themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from tests.laws.cases import NETWORKS, made, model_of, normal, rows_of


def trained(name: str, seed: int) -> nn.Module:
    """A network with weights and statistics of its own; the frozen part is that of the registry."""
    net = made(name)
    for i, p in enumerate(p for p in net.parameters() if p.requires_grad):
        p.data.add_(0.3 * normal(*p.shape, seed=10 * seed + i))
    if name == "conv_batch_norm":
        net.train()(normal(20, 1, 4, 4, seed=seed))
    return net.eval()


@pytest.mark.parametrize("name", NETWORKS)
def test_members_are_the_networks(name: str, tmp_path: Path) -> None:
    model, (inputs, _) = model_of(name), rows_of(name)
    nets = [trained(name, seed) for seed in (1, 2, 3)]
    torch.save(nets[2].state_dict(), tmp_path / "net.pt")
    posterior = tb.Point.of(model, [nets[0], nets[1].state_dict(), tmp_path / "net.pt"])
    with torch.no_grad():
        expected = torch.stack([net(inputs) for net in nets])
    torch.testing.assert_close(posterior.functions()(inputs), expected, rtol=1e-12, atol=1e-12)
    probs = tb.predict(posterior, inputs).probs
    torch.testing.assert_close(probs, expected.softmax(-1).mean(0).to(probs), rtol=1e-6, atol=1e-9)
    loaded = tb.load(posterior.save(tmp_path / "posterior.safetensors"), model)
    torch.testing.assert_close(loaded.functions()(inputs), expected, rtol=1e-12, atol=1e-12)
    alone = tb.Point.of(model, nets[1])
    torch.testing.assert_close(alone.functions()(inputs), expected[1:2], rtol=1e-12, atol=1e-12)


def test_laplace_starts_at_each() -> None:
    model, nets = model_of(), [trained("mlp", seed) for seed in (1, 2)]
    ensemble = tb.Point.of(model, nets)
    actual = tb.fit(model, rows_of(), tb.Laplace(structure="diagonal", check_mode=False, prior="model"), start=ensemble)
    assert isinstance(actual, tb.LaplacePosterior)
    torch.testing.assert_close(actual.gaussian.mean_MD, ensemble.weights_MD, rtol=0, atol=0)


def test_learned_noise_must_be_given() -> None:
    net = nn.Linear(2, 1).double()
    model = tb.Model(net, tb.likelihoods.Gaussian("learned"))
    with pytest.raises(ValueError, match=r"`likelihood\.log_scale` is learned.*SWA\(members=2\)\.collector\(model\)"):
        tb.Point.of(model, [net, net])
    held: dict[str, Tensor] = {**net.state_dict(), "likelihood.log_scale": torch.tensor([0.7])}
    scale = tb.Point.of(model, [held, held]).functions().parameters["log_scale"]
    torch.testing.assert_close(scale, torch.full((2, 1), 0.7, dtype=torch.float64), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("networks", "kind", "words"),
    [
        ([], ValueError, "`networks` is an empty list"),
        ([made("mlp"), made("tied")], ValueError, r"`networks\[1\]` does not fit.*4 random parameters are missing"),
        (made("tied"), ValueError, "`networks` does not fit"),
        ([made("mlp"), None], TypeError, r"`networks\[1\]` must be a module, a state dict or the path"),
        (3, TypeError, "`networks` must be a module"),
    ],
)
def test_what_does_not_fit_is_refused(networks: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        tb.Point.of(model_of(), networks)
