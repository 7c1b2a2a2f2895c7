"""Scales of the rows of an adapter: the same function, and a distribution over the scales alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.methods.adapters.adapted import Adapted
from tests.oracles import assert_close, normal
from torch import nn

import torchbayes as tb
from torchbayes import networks
from torchbayes.checks import SettingError
from torchbayes.density import LogDensity
from torchbayes.methods.adapters.blob import BLoB
from torchbayes.methods.adapters.tfb import TFB
from torchbayes.methods.noise import normals
from torchbayes.model import Batch, Model, likelihoods, priors
from torchbayes.randomness.seeds import Purpose

pytestmark = [
    pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning"),
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:FutureWarning"),  # calls of PEFT
]
ROWS = 30
PRIOR: dict[str, Any] = {"*lora_scales": priors.Normal(1.0), "*": priors.Flat()}


def model_of(network: nn.Module) -> Model:
    return Model(network, likelihoods.Categorical(), PRIOR, random="*lora*")


def rows(network: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = normal(ROWS, 5, seed=1)
    return inputs, torch.distributions.Categorical(logits=network(inputs)).sample()


def test_the_function_and_the_product_stay():
    network, scaled = Adapted(), Adapted()
    networks.scale_rows(scaled)
    inputs = normal(7, 5)
    assert_close(scaled(inputs), network(inputs))
    assert_close(scaled.lora_B.weight @ scaled.lora_A.weight, network.lora_B.weight @ network.lora_A.weight)
    assert_close(scaled.lora_A.get_parameter("lora_scales"), torch.linalg.svdvals(network.lora_A.weight))


def test_a_step_is_the_formula():
    """Mean NLL at s + τ ε, and Σ KL(N(s, τ²) ‖ N(0, 1)) = Σ [−log τ + (τ² + s²)/2 − ½] over the scales alone."""
    network = networks.scale_rows(Adapted())
    inputs, labels = rows(network)
    model, method = model_of(network), BLoB()
    (where,), size = [model.layout.slices[n] for n in model.layout.names if "scales" in n], model.layout.size
    density, batch = LogDensity(model, ROWS), Batch(inputs.unsqueeze(0), labels.unsqueeze(0))
    state = method.init(density, model.given_weights().unsqueeze(0), seeds=[7], steps_per_epoch=1)
    terms, gradient_MP, _ = method.objective(density, state.trajectory, batch, kl_weight=1.0)
    mean_D = model.given_weights().clone().requires_grad_()
    log_tau = torch.full_like(mean_D[where], 0.05).log().requires_grad_()
    noise_D = normals([7], Purpose.VARIATIONAL, 0, like=model.given_weights().unsqueeze(0))[0]
    weights_D = mean_D.clone()
    weights_D[where] = mean_D[where] + log_tau.exp() * noise_D[where]
    kl = (-log_tau + (log_tau.exp() ** 2 + mean_D[where] ** 2) / 2 - 0.5).sum()
    loss = nn.functional.cross_entropy(model.network(weights_D, inputs), labels) + kl / ROWS
    by_mean_D, by_log_tau = torch.autograd.grad(loss, [mean_D, log_tau])
    assert_close(terms.kl_M, kl.reshape(1))
    assert_close(terms.loss_M, loss.reshape(1))
    assert_close(gradient_MP[0, :size], by_mean_D)
    assert_close(gradient_MP[0, size:][where], by_log_tau)
    assert gradient_MP[0, size:].count_nonzero() == len(by_log_tau)


def test_only_scales_are_random_and_members_are_drawn_anew():
    network = networks.scale_rows(Adapted())
    posterior: Any = tb.fit(model_of(network), rows(network), BLoB(members=2, epochs=2, batch_size=10))
    assert (posterior.covariance.variance_MD > 0).sum(1).tolist() == [3, 3]
    assert not torch.equal(*posterior.mean_MD)
    members = model_of(network).network.fresh([1, 2])[0]
    assert not torch.equal(*members)


def test_adapters_of_peft_have_scales():
    peft = pytest.importorskip("peft")
    from tests.architectures.test_transformers import network, rows_of

    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, target_modules=["query", "value"], init_lora_weights=False)
    adapted = peft.get_peft_model(network("bert"), config).eval()
    inputs = {key: value for key, value in rows_of("bert").items() if key != "labels"}
    before = adapted(**inputs).logits.detach()
    model = model_of(networks.scale_rows(adapted))
    assert_close(adapted(**inputs).logits, before, rtol=1e-4, atol=1e-5)
    posterior: Any = tb.fit(model, rows_of("bert"), BLoB(epochs=2, batch_size=4))
    layers = sum("lora_scales" in name for name in model.layout.names)
    assert (posterior.covariance.variance_MD > 0).sum() == 2 * layers > 0


def test_what_has_no_adapters_is_refused_unchanged():
    with pytest.raises(ValueError, match="no linear layers in places named `lora_A`"):
        networks.scale_rows(nn.Linear(2, 1))
    with pytest.raises(TypeError, match="`network` must be a module with adapters"):
        networks.scale_rows(3)  # type: ignore[arg-type]
    wide = nn.ModuleList([Adapted(), Adapted(inputs=2, rank=3)])
    with pytest.raises(ValueError, match="rank 3, more than its layer's 2 inputs"):
        networks.scale_rows(wide)
    assert isinstance(wide[0].lora_A, nn.Linear)
    network = networks.scale_rows(Adapted())
    with pytest.raises(SettingError, match="have scales of their own"):
        tb.fit(model_of(network), rows(network), TFB(), start=network)
