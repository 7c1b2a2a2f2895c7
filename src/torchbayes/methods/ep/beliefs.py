"""A normal distribution of weights with sites: prior N(m₀, S₀), sites exp(−½ gᵀT g + νᵀg), g = A w.

    q:  precision P = S₀⁻¹ + Σ_n c_n A_nᵀ T_n A_n,   shift h = S₀⁻¹ m₀ + Σ_n c_n A_nᵀ ν_n

The cavity of a site is the marginal of g under q without a part a of the site. With S = G Gᵀ the covariance of g and
M = I − a Gᵀ T G, the cavity has the covariance G M⁻¹ Gᵀ and the mean μ + a G M⁻¹ Gᵀ (T μ − ν). In units of the cavity,
g = m + L x, a tilted distribution of mean u and covariance W asks for the site with the precision (W⁻¹ − I)/a and the
shift W⁻¹u/a.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchbayes.linalg.stored import double
from torchbayes.methods.ep.tilted import Tilted
from torchbayes.methods.variational.target import is_normal
from torchbayes.model.model import Model

_LEAST = 1e-20  # variance of outputs that no weight moves
_PROPER = 1e-9  # smallest share of a precision that a cavity may keep
_HALVINGS = 12


class Sites(NamedTuple):
    """Sites of N factors of R numbers."""

    precision_NRR: Tensor  # T
    shift_NR: Tensor  # ν
    log_scale_N: Tensor  # log of the constant by which the site stands for its factor, in nats

    @classmethod
    def flat(cls, like_NR: Tensor) -> Sites:
        """Return sites without any effect: precision, shift and log scale 0."""
        precision_NRR = like_NR.new_zeros(*like_NR.shape, like_NR.shape[1])
        return cls(precision_NRR, torch.zeros_like(like_NR), like_NR.new_zeros(len(like_NR)))

    def at(self, where: slice) -> Sites:
        """Return the sites of a slice."""
        return Sites(*(tensor[where] for tensor in self))

    def towards(self, others: Sites, share: float, good_N: Tensor) -> Sites:
        """Return sites moved by a share of the way to others, where these are good."""
        step_N = share * good_N.to(self.log_scale_N)
        parts = zip(self, others, strict=True)
        return Sites(*(old + step_N.view(-1, *[1] * (old.ndim - 1)) * (new - old) for old, new in parts))


class Belief(NamedTuple):
    """q, by its natural parameters and what follows from them."""

    precision_DD: Tensor  # P
    shift_D: Tensor  # h
    root_DD: Tensor  # R with R Rᵀ = P⁻¹
    mean_D: Tensor  # P⁻¹ h

    @property
    def log_norm(self) -> Tensor:
        """½ (D log 2π − log|P| + hᵀ P⁻¹ h), in nats."""
        logdet = 2 * self.root_DD.diagonal().log().sum()
        return 0.5 * (len(self.shift_D) * math.log(2 * math.pi) + logdet + self.shift_D @ self.mean_D)


def belief(precision_DD: Tensor, shift_D: Tensor) -> Belief | None:
    """Return q with these natural parameters; None if its precision is not positive definite."""
    factor_DD, failed = torch.linalg.cholesky_ex(precision_DD)
    if bool(failed) or not bool(torch.isfinite(factor_DD).all()):
        return None
    identity = torch.eye(len(shift_D), dtype=shift_D.dtype, device=shift_D.device)
    root_DD = torch.linalg.solve_triangular(factor_DD, identity, upper=False).T
    return Belief(precision_DD, shift_D, root_DD, root_DD @ (root_DD.T @ shift_D))


def prior_of(model: Model) -> tuple[Tensor, Tensor]:
    """Return precision (D, D) and shift (D,) of the model's prior, tempered as the model says, float64.

    Raises ValueError if the prior is not normal.
    """
    prior, device = model.prior, model.network.device
    joint = prior.joint
    if joint is not None and not joint.is_independent:
        covariance, loc_D = joint.covariance.mapped(double), joint.loc_D.double()
        precision_DD = covariance.solve(torch.eye(len(loc_D), dtype=torch.float64, device=loc_D.device)[:, None])[:, 0]
        precision_DD = 0.5 * (precision_DD + precision_DD.T)
    else:
        for segment in prior.segments:
            if not is_normal(segment):
                raise ValueError(
                    f"EP begins at a prior that is normal; got {segment.prior!r}. Use priors.Normal() or "
                    f"priors.FanInNormal(), or VI, which takes any prior."
                )
        loc_D, precision_DD = prior.locs(), torch.diag_embed(prior.stds().pow(-2))
    precision_DD = model.scales(1, 1).prior * precision_DD.to(device)
    return precision_DD, precision_DD @ loc_D.to(device)


class Cavity(NamedTuple):
    """Marginals without a part of their sites."""

    mean_NR: Tensor  # m
    root_NRR: Tensor  # L
    proper_N: Tensor  # where cavities are distributions; elsewhere the covariance and mean are those of the marginals


def cavity(mean_NR: Tensor, covariance_NRR: Tensor, sites: Sites, *, power: float) -> Cavity:
    """Return the cavities of marginals N(μ, S)."""
    identity = torch.eye(mean_NR.shape[1], dtype=mean_NR.dtype, device=mean_NR.device)
    marginal_NRR = torch.linalg.cholesky_ex(covariance_NRR + _LEAST * identity).L
    left_NRR = identity - power * marginal_NRR.mT @ sites.precision_NRR @ marginal_NRR
    factor_NRR, failed_N = torch.linalg.cholesky_ex(left_NRR)
    proper_N = (failed_N == 0) & (factor_NRR.diagonal(dim1=1, dim2=2).square().amin(1) > _PROPER)
    factor_NRR = torch.where(proper_N[:, None, None], factor_NRR, identity)
    root_NRR = torch.linalg.solve_triangular(factor_NRR, marginal_NRR.mT, upper=False).mT
    pull_NR = torch.einsum("nrs,ns->nr", sites.precision_NRR, mean_NR) - sites.shift_NR
    moved_NR = mean_NR + power * torch.einsum("nrs,nts,nt->nr", root_NRR, root_NRR, pull_NR)
    return Cavity(torch.where(proper_N[:, None], moved_NR, mean_NR), root_NRR, proper_N)


def asked(around: Cavity, seen: Tilted, power: float) -> tuple[Sites, Tensor]:
    """Return the sites that give q the moments of tilted distributions, and where these exist, (N,)."""
    precision_NRR, failed_N = torch.linalg.inv_ex(seen.covariance_NRR)
    identity = torch.eye(precision_NRR.shape[-1], dtype=precision_NRR.dtype, device=precision_NRR.device)
    unit_NRR = 0.5 * (precision_NRR + precision_NRR.mT) - identity
    unit_NR = torch.einsum("nrs,ns->nr", precision_NRR, seen.mean_NR)
    inverse_NRR = torch.linalg.inv_ex(around.root_NRR).inverse
    site_NRR = inverse_NRR.mT @ unit_NRR @ inverse_NRR / power
    pulled_NR = torch.einsum("nrs,ns->nr", site_NRR, around.mean_NR)
    shift_NR = torch.einsum("nsr,ns->nr", inverse_NRR, unit_NR) / power + pulled_NR
    half_N = 0.5 * (torch.linalg.slogdet(seen.covariance_NRR).logabsdet + (unit_NR * seen.mean_NR).sum(-1))
    constant_N = (around.mean_NR * (shift_NR - 0.5 * pulled_NR)).sum(-1)
    sites = Sites(site_NRR, shift_NR, (seen.log_norm_N - half_N) / power - constant_N)
    finite_N = torch.stack([
        values.flatten(1).isfinite().all(1) if values.ndim > 1 else values.isfinite() for values in sites
    ])
    return sites, finite_N.all(0) & (failed_N == 0) & around.proper_N


def added(before: Belief, slopes_NRD: Tensor, old: Sites, *, new: Sites, counts_N: Tensor) -> Belief | None:
    """Return q with sites changed; None if it would not be a distribution."""
    precision_NRR = counts_N[:, None, None] * (new.precision_NRR - old.precision_NRR)
    shift_NR = counts_N[:, None] * (new.shift_NR - old.shift_NR)
    flat = slopes_NRD.flatten(0, 1)
    moved_DD = flat.T @ torch.einsum("nrs,nsd->nrd", precision_NRR, slopes_NRD).flatten(0, 1)
    total_DD = before.precision_DD + 0.5 * (moved_DD + moved_DD.T)
    return belief(total_DD, before.shift_D + flat.T @ shift_NR.flatten())


def together(
    before: Belief, slopes_NRD: Tensor, old: Sites, *, to: Sites, good_N: Tensor, counts_N: Tensor, share: float
) -> tuple[Belief, Sites, bool]:
    """Return q and sites after all sites moved at once, and whether they moved.

    Where q would not be a distribution the step is halved, again and again.
    """
    for _ in range(_HALVINGS):
        new = old.towards(to, share, good_N)
        moved = added(before, slopes_NRD, old, new=new, counts_N=counts_N)
        if moved is not None:
            return moved, new, True
        share = 0.5 * share
    return before, old, False
