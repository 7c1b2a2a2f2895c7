"""BLoB: its objective by the formula, its divergence in the layer, and a conjugate case."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.laws.cases import assert_same_tensors, everything
from tests.laws.test_method_laws import break_after, keep_every
from tests.methods.adapters.adapted import Adapted
from tests.oracles import assert_close, normal
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.checks import SettingError
from torchbayes.density import LogDensity
from torchbayes.methods.adapters.blob import BLoB
from torchbayes.methods.adapters.factors import factors_of
from torchbayes.methods.noise import normals
from torchbayes.model import Batch, Model, likelihoods, priors
from torchbayes.randomness.seeds import Purpose

pytestmark = pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")
ROWS, SCALE = 30, 0.2
PRIOR: dict[str, Any] = {"*lora_A*": priors.Normal(SCALE), "*": priors.Flat()}


def model_of(network: nn.Module, likelihood: Any, prior: Any = None) -> Model:
    return Model(network, likelihood, PRIOR if prior is None else prior, random="*lora*")


def rows(network: nn.Module) -> tuple[Tensor, Tensor]:
    inputs = normal(ROWS, 5, seed=1)
    return inputs, torch.distributions.Categorical(logits=network(inputs)).sample()


def test_a_step_is_the_formula():
    """Loss and gradient by autograd of mean NLL at μ + σ ε, and Σ [log s/σ + (σ² + μ²)/2s² − ½]/N over A alone."""
    network = Adapted()
    inputs, labels = rows(network)
    model, method = model_of(network, likelihoods.Categorical()), BLoB(initial_scale=0.05)
    (adapter,), size = factors_of(model.layout), model.layout.size
    density, batch = LogDensity(model, ROWS), Batch(inputs.unsqueeze(0), labels.unsqueeze(0))
    state = method.init(density, model.given_weights().unsqueeze(0), seeds=[7], steps_per_epoch=1)
    terms, gradient_MP, _ = method.objective(density, state.trajectory, batch, kl_weight=1.0)

    noise_D = normals([7], Purpose.VARIATIONAL, 0, like=model.given_weights().unsqueeze(0))[0]
    mean_D = model.given_weights().clone().requires_grad_()
    log_scale_A = torch.full_like(mean_D[adapter.first], 0.05).log().requires_grad_()
    weights_D = mean_D.clone()
    weights_D[adapter.first] = mean_D[adapter.first] + log_scale_A.exp() * noise_D[adapter.first]
    nll = nn.functional.cross_entropy(model.network(weights_D, inputs), labels)
    scale_A, mean_A = log_scale_A.exp(), mean_D[adapter.first]
    kl = (torch.log(SCALE / scale_A) + (scale_A**2 + mean_A**2) / (2 * SCALE**2) - 0.5).sum()
    loss = nll + kl / ROWS
    by_mean_D, by_log_scale_A = torch.autograd.grad(loss, [mean_D, log_scale_A])
    assert_close(terms.loss_M, loss.reshape(1))
    assert_close(terms.kl_M, kl.reshape(1))
    assert_close(gradient_MP[0, :size], by_mean_D)
    assert_close(gradient_MP[0, size:][adapter.first], by_log_scale_A)
    assert not gradient_MP[0, size:][adapter.second].any()


def test_the_divergence_is_that_of_the_layer():
    """KL of N(W₀ + B μ, (I ⊗ B) diag(σ²) (I ⊗ B)ᵀ) from N(W₀, s² I ⊗ B Bᵀ), in coordinates of the space of B."""
    model = model_of(Adapted(), likelihoods.Gaussian(1.0))
    (adapter,) = factors_of(model.layout)
    first_RI, second_OR = adapter.split(model.given_weights())
    scale_RI = 0.05 * normal(*first_RI.shape, seed=3).exp()
    basis_OR = torch.linalg.qr(second_OR).Q
    total = 0.0
    for mean_R, scale_R in zip(first_RI.mT, scale_RI.mT, strict=True):
        into_RR = basis_OR.mT @ second_OR
        q = torch.distributions.MultivariateNormal(into_RR @ mean_R, into_RR @ torch.diag(scale_R**2) @ into_RR.mT)
        p = torch.distributions.MultivariateNormal(torch.zeros_like(mean_R), SCALE**2 * into_RR @ into_RR.mT)
        total += torch.distributions.kl_divergence(q, p)
    ours = (torch.log(SCALE / scale_RI) + (scale_RI**2 + first_RI**2) / (2 * SCALE**2) - 0.5).sum()
    assert_close(total, ours)


def test_given_its_factor_it_finds_the_best_independent_weights_of_a_linear_model():
    """With B held by its prior, A has a normal posterior N(m, P⁻¹): the means are m, the variances 1/P_dd."""
    network = Adapted(inputs=3, outputs=1, rank=1)
    inputs = normal(ROWS, 3, seed=1)
    targets = network(inputs).detach() + 0.5 * normal(ROWS, 1, seed=2)
    second = network.lora_B.weight.item()
    model = model_of(
        network, likelihoods.Gaussian(0.5), {"*lora_A*": priors.Normal(1.0), "*": priors.Normal(1e-3, loc=second)}
    )
    method = BLoB(epochs=2000, batch_size=ROWS, optimizer=tb.Adam(0.02), draws=8, antithetic=True, initial_scale=0.1)
    posterior: Any = tb.fit(model, (inputs, targets), method, start=network)
    (adapter,), variance_D = factors_of(model.layout), posterior.covariance.variance_MD[0]
    design = network.scaling * second * inputs / 0.5
    precision = design.mT @ design + torch.eye(3).double()
    residual = (targets - network.base(inputs)).detach()[:, 0] / 0.5
    assert_close(posterior.mean_MD[0][adapter.first], torch.linalg.solve(precision, design.mT @ residual), rtol=1e-2)
    assert_close(variance_D[adapter.first], 1 / precision.diagonal(), rtol=0.06)  # the noise of 8 draws
    assert not variance_D[adapter.second].any()


def test_draws_and_files_and_interrupted_runs(tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    network = Adapted()
    data, model = rows(network), model_of(network, likelihoods.Categorical())
    method = BLoB(members=2, epochs=3, batch_size=10, draws=2, antithetic=True)
    expected = tb.fit(model, data, method)
    (adapter,) = factors_of(model.layout)
    drawn_SD = expected.sample(4)
    assert torch.equal(drawn_SD[:2, adapter.second], expected.mean_MD[:, adapter.second])
    assert (drawn_SD[:2, adapter.first] != expected.mean_MD[:, adapter.first]).all()
    loaded = tb.load(expected.save(tmp_path / "blob.safetensors"), model)
    assert torch.equal(tb.predict(loaded, data[0]).probs, tb.predict(expected, data[0]).probs)
    keep_every(monkeypatch, 10)
    with monkeypatch.context() as inside:
        break_after(inside, BLoB, 5)
        with pytest.raises(KeyboardInterrupt):
            tb.fit(model, data, method, directory=tmp_path / "run")
    resumed = tb.fit(model, data, method, directory=tmp_path / "run", resume=True)
    assert_same_tensors(everything(resumed), everything(expected))


def test_what_is_no_adapter_is_refused():
    with pytest.raises(SettingError, match="no random weights are a pair of factors"):
        tb.fit(Model(nn.Linear(2, 1), likelihoods.Gaussian(1.0)), (torch.ones(3, 2), torch.ones(3)), BLoB())
    with pytest.raises(ValueError, match="come in pairs"):
        BLoB(draws=3, antithetic=True)
