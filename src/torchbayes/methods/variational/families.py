"""Families of distributions over the weights, all but one normal: a flat vector of parameters (M, P) for each member.

    diagonal     w = μ + σ ∘ ε                     P = 2D         parameters: μ, log σ
    low_rank     w = μ + d ∘ ε₁ + Fᵀ ε₂            P = (2 + R) D   μ, log d, F
    dense        w = μ + R ε, R upper triangular    P = 2D + D(D − 1)/2   μ, log of the diagonal of R, R above it
    radial       w = μ + σ ∘ ε |r|/‖ε‖            P = 2D         μ, log σ; not normal, see `RadialPosterior`

A family turns noise into weights, and slopes of the objective by the weights into its gradient by the parameters. With
g_s the gradient by the weights of draw s, a_i = ∂/∂μ_i and b_i = ∂/∂v_i of a function of the marginal means and
variances v_i = Σ_ii, and an entropy H(q) with the factor h,

    ∂/∂μ = Σ_s g_s + a,    ∂/∂θ = Σ_s g_sᵀ ∂w_s/∂θ + bᵀ ∂v/∂θ + h ∂H/∂θ    (θ the other parameters)

The parameter of a scale is its logarithm: scales stay positive whatever the step, and ∂H/∂log σ = 1. The softplus of
Blundell et al. (2015) is the same for small scales, and linear for large ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from torchbayes.linalg import Dense, Diagonal, LowRankPlusDiagonal, Structure
from torchbayes.native.process import differentiable
from torchbayes.posteriors.layers.radial import directions, entropy, lengths, parameter_of

_POINT = -1e4  # log σ of a point: finite, and its exponential is 0 in every dtype


class Slopes(NamedTuple):
    """Slopes of the objective, from which a family computes the gradient by its parameters."""

    weights_MSD: Tensor  # g, by the weights of each draw; their sum counts, not their mean
    mean_MD: Tensor  # a, by the marginal means
    variance_MD: Tensor  # b, by the marginal variances
    entropy: float  # h, factor on the entropy


class Family(Protocol):
    """A family of distributions over D weights."""

    correlated: ClassVar[bool]  # whether weights are correlated with each other

    def noise_size(self, size: int) -> int:
        """Return E, the number of standard normals that make one draw of D weights."""
        ...

    def start(self, mean_MD: Tensor, scale_MD: Tensor, normals: Callable[[Tensor], Tensor]) -> Tensor:
        """Return parameters (M, P) of these means and standard deviations, with next to no correlation.

        `normals` gives standard normals in the shape of a tensor (M, ...).
        """
        ...

    def draw(self, parameters_MP: Tensor, noise_MSE: Tensor) -> Tensor:
        """Return weights (M, S, D)."""
        ...

    def variance(self, parameters_MP: Tensor) -> Tensor:
        """Return the marginal variances, (M, D)."""
        ...

    def entropy(self, parameters_MP: Tensor) -> Tensor:
        """Return H(q) of each member, float64 (M,), in nats."""
        ...

    def pull(self, parameters_MP: Tensor, noise_MSE: Tensor, slopes: Slopes, *, out: Tensor) -> None:
        """Write the gradient by the parameters, (M, P)."""
        ...

    def covariance(self, parameters_MP: Tensor) -> Structure:
        """Return Σ."""
        ...


@dataclass(frozen=True)
class DiagonalFamily:
    """Independent weights: mean field.

    Where only some weights have a scale the others are points: trained, not random.
    """

    spread: tuple[slice, ...] = ()  # where the weights are that have a scale; all have one if there are no slices

    correlated: ClassVar[bool] = False

    def noise_size(self, size: int) -> int:
        """Return D."""
        return size

    def start(self, mean_MD: Tensor, scale_MD: Tensor, normals: Callable[[Tensor], Tensor]) -> Tensor:
        """Return parameters (M, 2D)."""
        log_scale_MD = torch.full_like(mean_MD, _POINT) if self.spread else scale_MD.log()
        for where in self.spread:
            log_scale_MD[:, where] = scale_MD[:, where].log()
        return torch.cat([mean_MD, log_scale_MD], dim=1)

    def draw(self, parameters_MP: Tensor, noise_MSE: Tensor) -> Tensor:
        """Return weights μ + σ ∘ ε, (M, S, D)."""
        mean_MD, log_scale_MD = parameters_MP.chunk(2, dim=1)
        return torch.addcmul(mean_MD.unsqueeze(1), log_scale_MD.exp().unsqueeze(1), noise_MSE)

    def variance(self, parameters_MP: Tensor) -> Tensor:
        """Return σ², (M, D)."""
        return parameters_MP.chunk(2, dim=1)[1].mul(2).exp_()

    def entropy(self, parameters_MP: Tensor) -> Tensor:
        """Return Σ log σ + D/2 log 2πe, of the weights that have a scale."""
        log_scale_MD = parameters_MP.chunk(2, dim=1)[1]
        if self.spread:
            log_scale_MD = torch.cat([log_scale_MD[:, where] for where in self.spread], dim=1)
        return _scales_entropy(log_scale_MD)

    def pull(self, parameters_MP: Tensor, noise_MSE: Tensor, slopes: Slopes, *, out: Tensor) -> None:
        """Write the gradient: ∂/∂log σ = σ ∘ (Σ_s g_s ∘ ε_s + 2σ ∘ b) + h.

        In closed form because every step does this: autograd takes about twice as many passes over the weights.
        """
        scale_MD = parameters_MP.chunk(2, dim=1)[1].exp()
        by_mean_MD, by_log_scale_MD = out.chunk(2, dim=1)
        if slopes.weights_MSD.shape[1] == 1:
            torch.add(slopes.weights_MSD[:, 0], slopes.mean_MD, out=by_mean_MD)
            torch.mul(slopes.weights_MSD[:, 0], noise_MSE[:, 0], out=by_log_scale_MD)
        else:
            torch.sum(slopes.weights_MSD, dim=1, out=by_mean_MD).add_(slopes.mean_MD)
            by_log_scale_MD.copy_(torch.einsum("msd,msd->md", slopes.weights_MSD, noise_MSE))
        by_log_scale_MD.addcmul_(slopes.variance_MD, scale_MD, value=2).mul_(scale_MD).add_(slopes.entropy)
        if self.spread:
            by_log_scale_MD.masked_fill_(scale_MD == 0, 0.0)

    def covariance(self, parameters_MP: Tensor) -> Diagonal:
        """Return diag(σ²)."""
        return Diagonal(self.variance(parameters_MP))


@dataclass(frozen=True)
class LowRankFamily:
    """A diagonal and R directions in which weights vary together."""

    rank: int

    correlated: ClassVar[bool] = True

    def noise_size(self, size: int) -> int:
        """Return D + R."""
        return size + self.rank

    def start(self, mean_MD: Tensor, scale_MD: Tensor, normals: Callable[[Tensor], Tensor]) -> Tensor:
        """Return parameters (M, (2 + R) D); directions are random and small, because the slope at zero is zero."""
        members, size = mean_MD.shape
        noise_MRD = normals(mean_MD.new_empty(members, self.rank, size))
        factor_MRD = noise_MRD * (0.1 / math.sqrt(self.rank)) * scale_MD.unsqueeze(1)
        return torch.cat([mean_MD, scale_MD.log(), factor_MRD.flatten(1)], dim=1)

    def draw(self, parameters_MP: Tensor, noise_MSE: Tensor) -> Tensor:
        """Return weights μ + d ∘ ε₁ + Fᵀ ε₂, (M, S, D)."""
        mean_MD, log_scale_MD, factor_MRD = self._parts(parameters_MP)
        size = mean_MD.shape[1]
        independent_MSD = torch.addcmul(mean_MD.unsqueeze(1), log_scale_MD.exp().unsqueeze(1), noise_MSE[..., :size])
        return independent_MSD + noise_MSE[..., size:] @ factor_MRD

    def variance(self, parameters_MP: Tensor) -> Tensor:
        """Return d² + Σ_r F_r², (M, D)."""
        _, log_scale_MD, factor_MRD = self._parts(parameters_MP)
        return log_scale_MD.mul(2).exp() + factor_MRD.square().sum(1)

    def entropy(self, parameters_MP: Tensor) -> Tensor:
        """Return Σ log d + ½ log det(I + F diag(d⁻²) Fᵀ) + D/2 log 2πe."""
        _, log_scale_MD, factor_MRD = self._parts(parameters_MP)
        scaled_MRD = (factor_MRD * torch.exp(-log_scale_MD).unsqueeze(1)).double()
        inner_MRR = scaled_MRD @ scaled_MRD.mT + torch.eye(self.rank, dtype=torch.float64, device=scaled_MRD.device)
        # cholesky_ex does not wait for a GPU, and cannot fail here, because the identity is part of the sum
        root_MRR = torch.linalg.cholesky_ex(inner_MRR).L
        return _scales_entropy(log_scale_MD) + root_MRR.diagonal(dim1=1, dim2=2).log().sum(-1)

    def pull(self, parameters_MP: Tensor, noise_MSE: Tensor, slopes: Slopes, *, out: Tensor) -> None:
        """Write the gradient, by autograd."""
        _differentiate(self, parameters_MP, noise_MSE, slopes, out)

    def covariance(self, parameters_MP: Tensor) -> LowRankPlusDiagonal:
        """Return diag(d²) + Fᵀ F."""
        _, log_scale_MD, factor_MRD = self._parts(parameters_MP)
        return LowRankPlusDiagonal(log_scale_MD.mul(2).exp(), factor_MRD.clone())

    def _parts(self, parameters_MP: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        size = parameters_MP.shape[1] // (2 + self.rank)
        mean_MD, log_scale_MD, factor = parameters_MP.split([size, size, self.rank * size], dim=1)
        return mean_MD, log_scale_MD, factor.unflatten(1, (self.rank, size))


@dataclass(frozen=True)
class DenseFamily:
    """Any covariance, by its triangular root; for few weights, as it holds D² numbers."""

    correlated: ClassVar[bool] = True

    def noise_size(self, size: int) -> int:
        """Return D."""
        return size

    def start(self, mean_MD: Tensor, scale_MD: Tensor, normals: Callable[[Tensor], Tensor]) -> Tensor:
        """Return parameters (M, 2D + D(D − 1)/2), of independent weights."""
        members, size = mean_MD.shape
        return torch.cat([mean_MD, scale_MD.log(), mean_MD.new_zeros(members, size * (size - 1) // 2)], dim=1)

    def draw(self, parameters_MP: Tensor, noise_MSE: Tensor) -> Tensor:
        """Return weights μ + R ε, (M, S, D)."""
        mean_MD, root_MDD = self._parts(parameters_MP)
        return mean_MD.unsqueeze(1) + noise_MSE @ root_MDD.mT

    def variance(self, parameters_MP: Tensor) -> Tensor:
        """Return the diagonal of R Rᵀ, (M, D)."""
        return self._parts(parameters_MP)[1].square().sum(-1)

    def entropy(self, parameters_MP: Tensor) -> Tensor:
        """Return Σ log R_ii + D/2 log 2πe."""
        size = _size_of_dense(parameters_MP.shape[1])
        return _scales_entropy(parameters_MP[:, size : 2 * size])

    def pull(self, parameters_MP: Tensor, noise_MSE: Tensor, slopes: Slopes, *, out: Tensor) -> None:
        """Write the gradient, by autograd."""
        _differentiate(self, parameters_MP, noise_MSE, slopes, out)

    def covariance(self, parameters_MP: Tensor) -> Dense:
        """Return R Rᵀ."""
        return Dense(self._parts(parameters_MP)[1].clone())

    def _parts(self, parameters_MP: Tensor) -> tuple[Tensor, Tensor]:
        size = _size_of_dense(parameters_MP.shape[1])
        mean_MD, log_scale_MD, above = parameters_MP.split([size, size, size * (size - 1) // 2], dim=1)
        root_MDD = torch.diag_embed(log_scale_MD.exp())
        rows, columns = torch.triu_indices(size, size, offset=1, device=parameters_MP.device)
        root_MDD[:, rows, columns] = above
        return mean_MD, root_MDD


@dataclass(frozen=True)
class RadialFamily:
    """A direction and a radius for each parameter: not a normal distribution (Farquhar, Osborne and Gal 2020)."""

    sizes: tuple[int, ...]  # number of weights of each parameter

    correlated: ClassVar[bool] = False

    def noise_size(self, size: int) -> int:
        """Return D plus one for each parameter."""
        return size + len(self.sizes)

    def start(self, mean_MD: Tensor, scale_MD: Tensor, normals: Callable[[Tensor], Tensor]) -> Tensor:
        """Return parameters (M, 2D); σ is √n times the standard deviation of a weight."""
        return torch.cat([mean_MD, scale_MD.log() + 0.5 * self._log_sizes(mean_MD)], dim=1)

    def draw(self, parameters_MP: Tensor, noise_MSE: Tensor) -> Tensor:
        """Return weights (M, S, D)."""
        mean_MD, log_scale_MD = parameters_MP.chunk(2, dim=1)
        offset_MSD = directions(noise_MSE, self.sizes)
        return torch.addcmul(mean_MD.unsqueeze(1), log_scale_MD.exp().unsqueeze(1), offset_MSD)

    def variance(self, parameters_MP: Tensor) -> Tensor:
        """Return σ²/n, (M, D)."""
        log_scale_MD = parameters_MP.chunk(2, dim=1)[1]
        return (2 * log_scale_MD - self._log_sizes(log_scale_MD)).exp()

    def entropy(self, parameters_MP: Tensor) -> Tensor:
        """Return Σ log σ and the entropy of directions and radii."""
        log_scale_MD = parameters_MP.chunk(2, dim=1)[1]
        return log_scale_MD.sum(-1, dtype=torch.float64) + entropy(self.sizes)

    def pull(self, parameters_MP: Tensor, noise_MSE: Tensor, slopes: Slopes, *, out: Tensor) -> None:
        """Write the gradient as for independent weights, with directions instead of ε and variances σ²/n."""
        scale_MD = parameters_MP.chunk(2, dim=1)[1].exp()
        by_mean_MD, by_log_scale_MD = out.chunk(2, dim=1)
        torch.sum(slopes.weights_MSD, dim=1, out=by_mean_MD).add_(slopes.mean_MD)
        offset_MSD = directions(noise_MSE, self.sizes)
        by_log_scale_MD.copy_(torch.einsum("msd,msd->md", slopes.weights_MSD, offset_MSD)).mul_(scale_MD)
        by_log_scale_MD.addcmul_(slopes.variance_MD, self.variance(parameters_MP), value=2).add_(slopes.entropy)

    def covariance(self, parameters_MP: Tensor) -> Diagonal:
        """Return diag(σ²/n): weights of a parameter are uncorrelated but not independent."""
        return Diagonal(self.variance(parameters_MP))

    def _log_sizes(self, like_MD: Tensor) -> Tensor:
        """Return log n of each weight's parameter, (D,)."""
        numbers_D = parameter_of(self.sizes, like_MD.device)
        roots_G = lengths(torch.ones_like(like_MD[0], dtype=torch.float64), self.sizes)
        return (2 * roots_G.log()).to(like_MD)[numbers_D]


def _size_of_dense(count: int) -> int:
    """Return D, where 2D + D(D − 1)/2 is a count."""
    return (math.isqrt(9 + 8 * count) - 3) // 2


def _scales_entropy(log_scale_MD: Tensor) -> Tensor:
    """Return the entropy of independent normals, float64 (M,)."""
    constant = 0.5 * math.log(2 * math.pi * math.e) * log_scale_MD.shape[1]
    return log_scale_MD.sum(-1, dtype=torch.float64) + constant


def _differentiate(family: Family, parameters_MP: Tensor, noise_MSE: Tensor, slopes: Slopes, out: Tensor) -> None:
    """Write the gradient by autograd, for families without a closed form."""
    size = slopes.mean_MD.shape[1]
    with differentiable():
        leaf_MP = parameters_MP.detach().requires_grad_()
        total = (family.draw(leaf_MP, noise_MSE) * slopes.weights_MSD).sum()
        total = total + (leaf_MP[:, :size] * slopes.mean_MD).sum()
        total = total + (family.variance(leaf_MP) * slopes.variance_MD).sum()
        total = total + slopes.entropy * family.entropy(leaf_MP).sum()
        (gradient_MP,) = torch.autograd.grad(total, leaf_MP)
    out.copy_(gradient_MP)
