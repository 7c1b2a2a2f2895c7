r"""Covariances of the outputs of a linearised network between new rows and those of a fit.

Of a Laplace posterior with prior precision P₀ and curvature Λ = L Lᵀ of the likelihood in the outputs of the rows X,

    Cov(f(x), f(x')) = k(x, x') − k(x, X) L A⁻¹ Lᵀ k(X, x'),    k = J P₀⁻¹ J'ᵀ,    A = I + Lᵀ k(X, X) L

is that of the dense Gauss-Newton matrix, whatever the structure that was fitted (Khan et al. 2019). It takes a matrix
of the rows instead of one of the weights, so that it is for few rows; for others it is J Σ J'ᵀ with the posterior's Σ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from torchbayes.curvature.features import Leaf, covariance, cross_covariance
from torchbayes.curvature.parts import Part
from torchbayes.curvature.tangent import Tangent
from torchbayes.linalg import Diagonal
from torchbayes.linalg.matrices import checked_cholesky
from torchbayes.posteriors.laplace import LaplacePosterior
from torchbayes.predictive.linearised import Linearised

LARGEST = 4096  # rows of the matrix of the exact form: it takes seconds


class AtInputs(NamedTuple):
    """Outputs at B inputs, float64."""

    mean_MBK: Tensor
    variance_MBK: Tensor
    cross_MBKNK: Tensor  # covariance with the outputs at the rows of the fit


class Outputs(Protocol):
    """Covariances of outputs under a posterior."""

    def rows(self) -> Tensor:
        """Return the covariance of the outputs of each row of the fit, (M, N, K, K), float64."""
        ...

    def at(self, inputs: Any) -> AtInputs:
        """Return outputs at inputs, as the model places them."""
        ...


@dataclass(frozen=True)
class OfStructure:
    """By the posterior's own covariance."""

    linearised: Linearised
    inputs: Any

    def rows(self) -> Tensor:
        """Return J Σ Jᵀ of each row."""
        return self.linearised.functions(self.inputs).covariance_MBKK.double()

    def at(self, inputs: Any) -> AtInputs:
        """Return outputs by J Σ J'ᵀ."""
        mean_MBK, variance_MBK = self.linearised.functions(inputs, diagonal=True)
        cross = self.linearised.cross(inputs, self.inputs)
        return AtInputs(mean_MBK.double(), variance_MBK.double(), cross.double())


@dataclass(frozen=True, eq=False)
class _Member:
    """The exact form at one mode."""

    tangent: Tangent
    prior: list[Leaf]
    train: list[Part]
    root_NKR: Tensor  # L, row by row
    cholesky: Tensor  # of A
    whitened: Tensor  # A^-½ Lᵀ k(X, X), (N R, N K)
    kernel: Tensor  # k(X, X), (N K, N K)

    def at(self, inputs: Any) -> AtInputs:
        """Return outputs at inputs, without the axis of members."""
        outputs_BK, parts = self.tangent.linear(inputs)
        doubled = [part.double() for part in parts]
        prior_BK = covariance(self.prior, doubled, diagonal=True)
        cross = cross_covariance(self.prior, (self.train, doubled), limit=self.tangent.chunk)
        projected = torch.linalg.solve_triangular(self.cholesky, _projected(self.root_NKR, cross), upper=False)
        variance_BK = prior_BK - projected.square().sum(0).view_as(prior_BK)
        left = cross.T - projected.T @ self.whitened
        shape = (*outputs_BK.shape, *self.root_NKR.shape[:2])
        return AtInputs(outputs_BK.detach().double(), variance_BK.clamp_min(0), left.view(shape))


@dataclass(frozen=True, eq=False)
class OfKernel:
    """Exact, from the prior."""

    members: list[_Member]

    def rows(self) -> Tensor:
        """Return the covariance of each row."""
        diagonals = []
        for member in self.members:
            rows, outputs = member.root_NKR.shape[:2]
            left = (member.kernel - member.whitened.T @ member.whitened).view(rows, outputs, rows, outputs)
            diagonals.append(left.diagonal(dim1=0, dim2=2).movedim(-1, 0))
        return torch.stack(diagonals)

    def at(self, inputs: Any) -> AtInputs:
        """Return outputs of each member."""
        return AtInputs(*map(torch.stack, zip(*[member.at(inputs) for member in self.members], strict=True)))


def outputs_of(posterior: LaplacePosterior, inputs: Any, root_MNKR: Tensor) -> Outputs:
    """Return covariances by the exact form where rows are few and each weight has a prior precision, else by Σ."""
    size = posterior.model.network.layout.size
    precision_MD = (posterior.reference_MD * posterior.strength_D)[:, :size].double()
    count = root_MNKR[0, ..., 0, :].numel()
    if count > LARGEST or not bool((precision_MD > 0).all()):
        return OfStructure(Linearised(posterior), inputs)
    learned = posterior.mean_MD.shape[1] - size
    still_MD = torch.zeros(len(precision_MD), learned, dtype=torch.float64, device=precision_MD.device)
    prior = Diagonal(torch.cat([1 / precision_MD, still_MD], dim=1))
    members = []
    for number, root_NKR in enumerate(root_MNKR):
        buffers = {name: each[number] for name, each in (posterior.buffers_M or {}).items()} or None
        structure = prior.member(number)
        tangent = Tangent.at(
            posterior.model, posterior.mean_MD[number], inputs, buffers=buffers, structure=structure, chunk=2**24
        )
        train = [jacobian.double() for jacobian in tangent.linear(inputs).parts]
        kernel = cross_covariance(tangent.over, (train, train), limit=tangent.chunk)
        half = _projected(root_NKR, kernel)
        matrix = _projected(root_NKR, half.T)
        matrix.diagonal().add_(1.0)
        cholesky = checked_cholesky(matrix)
        whitened = torch.linalg.solve_triangular(cholesky, half, upper=False)
        members.append(_Member(tangent, tangent.over, train, root_NKR, cholesky, whitened, kernel))
    return OfKernel(members)


def _projected(root_NKR: Tensor, columns: Tensor) -> Tensor:
    """Return Lᵀ times columns (N K, Q), (N R, Q)."""
    blocks = columns.unflatten(0, root_NKR.shape[:2])
    return torch.einsum("nkr,nkq->nrq", root_NKR, blocks).flatten(0, 1)
