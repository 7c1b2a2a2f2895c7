"""Health and cost of a sampler: energies, energy errors, and effective samples per gradient."""

import torch
from torch import Tensor

from torchbayes.checks import check_counts, check_positive
from torchbayes.diagnostics._blocks import check_finite, check_floating


def ebfmi(energy_MS: Tensor) -> Tensor:
    r"""Return the estimated Bayesian fraction of missing information of each chain, float64 (M,).

    It is $\sum_s (E_s - E_{s-1})^2 / \sum_s (E_s - \bar E)^2$ and says how well new momenta explore the energies of
    the target (Betancourt, 2016, "Diagnosing suboptimal cotangent disintegrations in Hamiltonian Monte Carlo").
    Near one is good, below 0.3 slow; NaN for a chain whose energy never changes.

    Args:
        energy_MS: Hamiltonian at the start of each trajectory, after the momentum was drawn; shape (M, S) with S ≥
            2.

    Raises:
        TypeError: If the energies are not a floating tensor.
        ValueError: If they have another shape or are not finite.
    """
    _check_chains("energy_MS", energy_MS, least=2)
    check_finite("energy_MS", energy_MS)
    energy_MS = energy_MS.detach().double()
    # Relative to its first energy, a chain that never moves is exactly zero.
    energy_MS = energy_MS - energy_MS[:, :1]
    spread_M = (energy_MS - energy_MS.mean(-1, keepdim=True)).square().sum(-1)
    return energy_MS.diff(dim=-1).square().sum(-1) / spread_M


def acceptance(energy_error_MS: Tensor) -> Tensor:
    r"""Return the mean Metropolis acceptance probability of each chain, float64 (M,), in [0, 1].

    It is $\frac1S \sum_s \min(1, e^{-\Delta_s})$.

    Args:
        energy_error_MS: Energy at the end of each trajectory less that at its start. NaN or infinity marks a
            trajectory that broke, which is never accepted; minus infinity is always accepted.

    Raises:
        TypeError: If the errors are not a floating tensor.
        ValueError: If they have another shape.
    """
    _check_chains("energy_error_MS", energy_error_MS, least=1)
    probs_MS = (-energy_error_MS.detach().double()).clamp_max(0.0).exp()
    return torch.where(probs_MS.isnan(), 0.0, probs_MS).mean(-1)


def divergences(energy_error_MS: Tensor, *, threshold: float = 1000.0) -> Tensor:
    r"""Return the number of divergent trajectories of each chain, int64 (M,): $\Delta_s$ above a threshold, or NaN.

    No trajectory that follows the Hamiltonian errs by a thousand, the bound of Stan (Betancourt, 2017, "A
    conceptual introduction to Hamiltonian Monte Carlo").

    Args:
        energy_error_MS: Energy at the end of each trajectory less that at its start.
        threshold: Largest error, in nats, that is not a divergence.

    Raises:
        TypeError: If the errors are not a floating tensor.
        ValueError: If they have another shape, or the threshold is not positive.
    """
    _check_chains("energy_error_MS", energy_error_MS, least=1)
    check_positive(threshold=threshold)
    return (~(energy_error_MS.detach() <= threshold)).sum(-1)


def efficiency(ess: Tensor, gradients: int) -> Tensor:
    """Return effective samples per gradient evaluation, float64, in the shape of ``ess``.

    It compares samplers of different cost.

    Args:
        ess: Effective sample sizes over all chains, any shape.
        gradients: Gradient evaluations of all chains together, warm-up included where it counts.

    Raises:
        TypeError: If ``ess`` is not a floating tensor.
        ValueError: If ``gradients`` is not positive.
    """
    check_floating("ess", ess)
    check_counts(gradients=gradients)
    return ess.detach().double() / gradients


def _check_chains(name: str, values_MS: Tensor, *, least: int) -> None:
    check_floating(name, values_MS)
    shape = tuple(values_MS.shape)
    if values_MS.ndim != 2 or shape[0] == 0 or shape[1] < least:
        raise ValueError(
            f"`{name}` must have the shape (M, S), at least one chain and {least} draws; got shape {shape}. "
            "Pass values.unsqueeze(0) for a single chain."
        )
