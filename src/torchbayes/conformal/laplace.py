r"""Jackknife+ of a Laplace posterior: predictions that leave a row out, in closed form and without another fit.

Under the posterior the outputs of row i are f_i ~ N(f̂_i, V_i) in the linearised network. With the gradient γ and the
curvature Λ = r rᵀ of log p(y_i | f) there, leaving the row out divides its Gaussian factor out:

    f₋ᵢ(x) = f̂(x) − C a,            a = γ + B V_i γ,    B = r (1 − rᵀ V_i r)⁻¹ rᵀ,    C = Cov(f(x), f_i)
    V₋ᵢ(x) = V(x) + C B Cᵀ

At the row itself, with one output, it is the residual over 1 − V_i Λ. This is exact for models that are linear in their
weights with normal noise of fixed scale; for others it is an approximation, and so is the bound of the theorem. The
eigenvalues of rᵀ V_i r, the leverages of the row, are below 1 in the exact covariance, which is used where rows are few
(`torchbayes.conformal.outputs`). Simplified structures can exceed it, and are then set just below 1, which makes the
score of the row large.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchbayes.calls import explained
from torchbayes.checks import check_choice, check_kind, holds
from torchbayes.conformal.jackknife import KINDS, Kind, LeftOut, ends_of
from torchbayes.conformal.outputs import Outputs, outputs_of
from torchbayes.conformal.ranks import check_coverage, fewest_rows
from torchbayes.display import Overview, shown
from torchbayes.linalg.matrices import eigh
from torchbayes.model.batches.batch import batch_size, rows_of
from torchbayes.model.layout import broadcasting
from torchbayes.model.likelihoods.shapes import Regression, like
from torchbayes.model.sources.sources import as_source
from torchbayes.native.process import undisturbed, undisturbed_methods
from torchbayes.posteriors.laplace import LaplacePosterior
from torchbayes.posteriors.problems import warn_of
from torchbayes.predictive.linearised import Linearised, checked

_SCORES = ("normalised", "absolute")
_NUMBERS = 2**22  # predictions held at once
_ROWS = 1024  # of a pass


class Sites(NamedTuple):
    """What the likelihood says of the outputs of each row of a fit, at each member."""

    gradient_MNK: Tensor  # γ
    root_MNKR: Tensor  # r


class Factors(NamedTuple):
    """The factors of the rows of a fit, at each member."""

    change_MNK: Tensor  # a
    block_MNKK: Tensor  # B


def _overview(jackknife: Jackknife) -> Overview:
    facts = {
        "rows": len(jackknife.scores_N),
        "score": jackknife.score,
        "kind": jackknife.kind,
        "coverage": jackknife.coverage,
    }
    return Overview("Jackknife", facts | {"bound": jackknife.bound}, problems=jackknife.problems)


@undisturbed_methods
@shown(_overview)
@dataclass(frozen=True)
class Jackknife:
    """Intervals of a Laplace posterior from its training rows, without another fit.

    Attributes:
        posterior: the posterior.
        outputs: covariances of the outputs between new rows and the N training rows.
        factors: of the training rows.
        means_N: μ₋ᵢ(x_i), (N, K'), float64.
        scales_N: σ₋ᵢ(x_i), predictive standard deviations without the row, (N, K'); 1 for the score "absolute".
        scores_N: R_i, (N, K').
        coverage: c.
        score: "normalised" or "absolute".
        kind: "plus" or "minmax".
        problems: what is known to be wrong, one clause each.
    """

    posterior: LaplacePosterior
    outputs: Outputs
    factors: Factors
    means_N: Tensor
    scales_N: Tensor
    scores_N: Tensor
    coverage: float
    score: str
    kind: Kind
    problems: tuple[str, ...] = ()

    @property
    def bound(self) -> float:
        """Coverage that the theorem gives if leaving out is exact: 1 − 2 (1 − c) for "plus", c for "minmax"."""
        return self.coverage if self.kind == "minmax" else max(0.0, 1 - 2 * (1 - self.coverage))

    def intervals(self, inputs: Any) -> tuple[Tensor, Tensor]:
        """Return the ends of the intervals of new rows.

        Args:
            inputs: (B, ...), or a tuple or mapping of such.

        Returns:
            Low and high ends, (B, K') each, in the units and the dtype of the outputs; ±∞ where rows are too few.

        Raises:
            ValueError: if the network cannot take the inputs, or there are no rows.
        """
        placed = checked(self.posterior.model, inputs)
        members, rows, outputs = self.factors.change_MNK.shape
        step = max(1, _NUMBERS // (members * rows * outputs**2))
        pieces = []
        for start in range(0, batch_size(placed), step):
            means_NB, scales_NB = self._left_out(rows_of(placed, slice(start, start + step)))
            pieces.append(ends_of(LeftOut(self.scores_N, means_NB, scales_NB), self.coverage, self.kind))
        dtype = self.posterior.mean_MD.dtype
        low, high = (torch.cat(ends).to(dtype) for ends in zip(*pieces, strict=True))
        return low, high

    def _left_out(self, inputs: Any) -> tuple[Tensor, Tensor]:
        """Return μ₋ᵢ(x) and σ₋ᵢ(x), (N, B, K')."""
        mean_MBK, variance_MBK, cross = self.outputs.at(inputs)
        outputs = mean_MBK.unsqueeze(1) - torch.einsum("mbknl,mnl->mnbk", cross, self.factors.change_MNK)
        if self.score == "absolute":
            return _moments(self.posterior, outputs, None)
        grown = torch.einsum("mbknl,mnlj,mbknj->mnbk", cross, self.factors.block_MNKK, cross)
        return _moments(self.posterior, outputs, variance_MBK.unsqueeze(1) + grown)


@undisturbed
@explained()
def jackknife(
    posterior: LaplacePosterior,
    data: Any,
    *,
    coverage: float = 0.9,
    score: str = "normalised",
    kind: Kind = "plus",
) -> Jackknife:
    """Return intervals of a Laplace posterior of a regression from the rows that it was fitted to.

    All rows serve the fit and the intervals. With M members it is the average of theirs.

    Args:
        posterior: a Laplace posterior. With up to 4,096 targets and a prior precision for each weight, the covariance
            is that of structure "dense" whatever its structure. A network that is far from linear, and settings that
            were tuned to the rows, make it an approximation.
        data: the training rows, as for `fit`.
        coverage: c, in (0, 1). The bound of "plus" is 1 − 2 (1 − c); usually it covers about c.
        score: "normalised", |y − μ₋ᵢ| / σ₋ᵢ with the predictive standard deviation, or "absolute", |y − μ₋ᵢ|.
        kind: "plus", or "minmax", which is wider and covers at least c.

    Returns:
        The intervals of any inputs.

    Raises:
        TypeError: if the posterior is another, or the likelihood is none of a regression whose rows count once.
        ValueError: if a setting is wrong, or the data are not as many rows as the posterior was fitted to.
    """
    check_kind(LaplacePosterior, "a Laplace posterior", posterior=posterior)
    check_coverage(coverage=coverage)
    check_choice(_SCORES, score=score)
    check_choice(KINDS, kind=kind)
    likelihood: Any = posterior.model.likelihood
    if not isinstance(likelihood, Regression) or not holds(likelihood, "curvature_root"):
        raise TypeError(
            f"the jackknife takes a regression by Gaussian, HeteroscedasticGaussian or StudentT whose rows count once; "
            f"got {likelihood!r}. Use `calibrate` with rows that were held out."
        )
    source = as_source(posterior.model, data, _ROWS)
    source.check()
    rows = source.rows()
    if rows.size != posterior.num_data:
        raise ValueError(
            f"`data` must be the {posterior.num_data} rows that the posterior was fitted to; got {rows.size}."
        )
    mean_MNK = Linearised(posterior).functions(rows.inputs, diagonal=True).mean_MBK.double()
    if mean_MNK.ndim != 3:
        raise TypeError(f"the jackknife takes outputs (N, K); the network gives {tuple(mean_MNK.shape[1:])}.")
    sites = _sites(posterior, rows.targets, mean_MNK)
    outputs = outputs_of(posterior, rows.inputs, sites.root_MNKR)
    covariance_MNKK = outputs.rows()
    factors, excessive = _factors(sites, covariance_MNKK, eps=torch.finfo(posterior.mean_MD.dtype).eps)
    blocks = covariance_MNKK @ factors.block_MNKK @ covariance_MNKK
    without = mean_MNK - (covariance_MNKK @ factors.change_MNK.unsqueeze(-1)).squeeze(-1)
    variance = (covariance_MNKK + blocks).diagonal(dim1=-2, dim2=-1)
    means_N, scales_N = _moments(posterior, without, None if score == "absolute" else variance)
    targets_N = like(rows.targets, means_N.shape[-1]).to(means_N)
    problems = _problems(rows.size, excessive, coverage)
    warn_of(problems, "this jackknife")
    scores_N = (targets_N - means_N).abs() / scales_N
    return Jackknife(posterior, outputs, factors, means_N, scales_N, scores_N, coverage, score, kind, problems)


def _problems(rows: int, excessive: int, coverage: float) -> tuple[str, ...]:
    problems = []
    if rows < (needed := fewest_rows(coverage)):
        problems.append(
            f"{rows} rows are too few for coverage {coverage:g} (at least {needed} are needed), so that "
            f"intervals hold every target"
        )
    if excessive:
        problems.append(
            f"the leverage of {excessive} of {rows} rows is 1 or more, which the exact posterior does not have "
            f"(fit with structure='dense', or hold rows out and use `calibrate`)"
        )
    return tuple(problems)


def _sites(posterior: LaplacePosterior, targets: Tensor, mean_MNK: Tensor) -> Sites:
    """Return gradients and roots of the curvature of the log probability at the outputs of the rows."""
    likelihood: Any = posterior.model.likelihood
    share, targets = posterior.model.scales(1, 1).likelihood, targets.double()
    gradients, roots = [], []
    for member, weights_D in enumerate(posterior.mean_MD):
        parameters = {name: value.double() for name, value in posterior.model.split(weights_D)[1].items()}
        outputs_NK = mean_MNK[member].detach().clone().requires_grad_(True)
        with torch.enable_grad():
            total = likelihood.log_prob(outputs_NK, targets, parameters).sum()
            gradients.append(share * torch.autograd.grad(total, outputs_NK)[0])
        with torch.no_grad():
            root_RNK = likelihood.curvature_root(mean_MNK[member], targets, parameters)
            roots.append(math.sqrt(share) * root_RNK.movedim(0, -1))
    return Sites(torch.stack(gradients), torch.stack(roots))


def _factors(sites: Sites, covariance_MNKK: Tensor, *, eps: float) -> tuple[Factors, int]:
    """Return the factors of the rows, and how many rows have a leverage of 1 or more at some member."""
    root = sites.root_MNKR
    leverage_MNR, vectors = eigh(root.mT @ covariance_MNKK @ root)
    turned = root @ vectors
    least = 1 - leverage_MNR.clamp_max(1 - math.sqrt(eps))
    block_MNKK = (turned / least.unsqueeze(-2)) @ turned.mT
    through = (covariance_MNKK @ sites.gradient_MNK.unsqueeze(-1)).squeeze(-1)
    change_MNK = sites.gradient_MNK + (block_MNKK @ through.unsqueeze(-1)).squeeze(-1)
    return Factors(change_MNK, block_MNKK), int((leverage_MNR >= 1).any(-1).any(0).sum())


def _moments(posterior: LaplacePosterior, outputs: Tensor, variance: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of targets over the members, from outputs (M, ..., K) and their variance.

    The deviation is 1 without a variance.
    """
    parameters = broadcasting(posterior.model.split(posterior.mean_MD)[1], outputs)
    kind = posterior.model.likelihood.distribution(outputs, {name: p.double() for name, p in parameters.items()})
    mean = kind.mean.mean(0)
    if variance is None:
        return mean, torch.ones_like(mean)
    width = kind.mean.shape[-1]  # the first outputs are the means
    spread = kind.mean.var(0, correction=0) + (kind.variance + variance[..., :width]).mean(0)
    if not spread.isfinite().all():
        raise ValueError("the predictive standard deviation is infinite. Use score='absolute'.")
    return mean, spread.sqrt()
