import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal

from tests.evidence.helpers import linear_problem
from tests.oracles import LinearGaussian, assert_close, normal
from torchbayes.evidence import linear_gaussian_evidence
from torchbayes.model import Model, likelihoods, priors


@pytest.mark.parametrize(("rows", "size", "form"), [(30, 4, "weights"), (5, 20, "rows"), (4, 3, "weights")])
def test_both_forms_are_the_oracles(rows: int, size: int, form: str):
    inputs, targets = normal(rows, size), normal(rows, seed=1)
    model = Model(nn.Linear(size, 1).double(), likelihoods.Gaussian(0.4), priors.Normal(1.3))
    actual = linear_gaussian_evidence(model, (inputs, targets))
    assert_close(actual.log_evidence, LinearGaussian(inputs, targets, 1.3, 0.4).log_evidence())
    assert actual.details["form"] == form
    assert actual.error == 0


def test_several_outputs_with_noise_and_priors_of_their_own():
    inputs, targets = normal(6, 2), normal(6, 3, seed=1)
    model = Model(
        nn.Linear(2, 3).double(),
        likelihoods.Gaussian((0.3, 0.6, 1.1)),
        {"weight": priors.Normal(0.7, loc=0.2), "bias": priors.Normal(2.0, loc=-1.0)},
    )
    total = 0.0
    for k, noise in enumerate((0.3, 0.6, 1.1)):  # the outputs share no weights
        covariance = 0.49 * inputs @ inputs.T + 4.0 + noise**2 * torch.eye(6).double()
        total += MultivariateNormal(0.2 * inputs.sum(1) - 1.0, covariance).log_prob(targets[:, k])
    assert_close(linear_gaussian_evidence(model, (inputs, targets)).log_evidence, total)


def test_a_small_noise_does_not_cancel():
    """Σ(y − Φw)²/σ² is 1e10 times what is left of it."""
    inputs = normal(40, 3)
    targets = inputs @ torch.tensor([1.0, 2.0, -1.0]).double() + 1e-5 * normal(40, seed=1)
    model = Model(nn.Linear(3, 1).double(), likelihoods.Gaussian(1e-5), priors.Normal(1.0))
    actual = linear_gaussian_evidence(model, (inputs, targets)).log_evidence
    exact = LinearGaussian(inputs, targets, 1.0, 1e-5).log_evidence()  # N × N, with a condition of 1e12
    assert_close(actual, exact, rtol=1e-5)


def test_float32_network_is_computed_in_float64():
    inputs, targets = normal(30, 2).float(), normal(30, seed=1).float()
    first = nn.Linear(2, 3)
    network = nn.Sequential(first, nn.Linear(3, 1))
    model = Model(network, likelihoods.Gaussian(0.2), priors.Normal(1.0), random="1.*")
    features = inputs.double() @ first.weight.double().T + first.bias.double()
    exact = LinearGaussian(features.detach(), targets.double(), 1.0, 0.2).log_evidence()
    assert_close(linear_gaussian_evidence(model, (inputs, targets)).log_evidence, exact)


def test_last_layer_of_a_nonlinear_network():
    inputs, targets = normal(9, 2), normal(9, seed=1)
    network = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    model = Model(network, likelihoods.Gaussian(0.3), priors.Normal(1.0), random="2.*")
    exact = LinearGaussian(network[:2](inputs).detach(), targets, 1.0, 0.3).log_evidence()
    assert_close(linear_gaussian_evidence(model, (inputs, targets)).log_evidence, exact)
    before = [p.clone() for p in network.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))


@pytest.mark.parametrize("layer", [nn.Tanh(), nn.ReLU()])
def test_networks_that_are_not_linear(layer: nn.Module):
    network = nn.Sequential(nn.Linear(2, 3), layer, nn.Linear(3, 1)).double()
    model = Model(network, likelihoods.Gaussian(0.3))
    with pytest.raises(ValueError, match="must be linear in its random weights"):
        linear_gaussian_evidence(model, (normal(5, 2), normal(5)))


def test_bilinear_networks_are_not_linear():
    network = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(1, 1, bias=False)).double()
    with pytest.raises(ValueError, match="must be linear"):
        linear_gaussian_evidence(Model(network, likelihoods.Gaussian(0.3)), (normal(5, 2), normal(5)))


def test_what_has_no_closed_form():
    model, data, _ = linear_problem()
    network = model.network.module.requires_grad_(True)
    for likelihood in (likelihoods.Gaussian("learned"), likelihoods.StudentT()):
        with pytest.raises(ValueError, match="Gaussian with a fixed scale"):
            linear_gaussian_evidence(Model(network, likelihood), data)
    with pytest.raises(ValueError, match="every prior must be Normal"):
        linear_gaussian_evidence(Model(network, likelihoods.Gaussian(), priors.Laplace()), data)
    with pytest.raises(ValueError, match="flat prior is improper"):
        linear_gaussian_evidence(Model(network, likelihoods.Gaussian(), priors.Flat()), data)
    with pytest.raises(ValueError, match=r"temperature is 0\.5"):
        linear_gaussian_evidence(Model(network, likelihoods.Gaussian(), temperature=0.5), data)
    with pytest.raises(TypeError, match="got Linear"):
        linear_gaussian_evidence(nn.Linear(2, 1), data)  # type: ignore[arg-type]
