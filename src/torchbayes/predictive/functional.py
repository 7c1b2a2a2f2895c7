"""Laplace in the space of functions: a Gaussian process whose kernel is the network's own, for small data.

The network linearised at a mode w*, with prior covariance S and Jacobians J of all N rows, is a Gaussian process
with kernel k(x, x') = J(x) S J(x')ᵀ. With Λ = L Lᵀ the curvature of the likelihood in the outputs and A = I + Lᵀ K
L,

    Cov f(x) = k(x, x) − k(x, X) L A⁻¹ Lᵀ k(X, x),    log det P − log det S⁻¹ = log det A,

the same predictive and evidence as Laplace with a dense matrix, from a matrix of size N K instead of D (Khan et al.
2019; Immer et al. 2021). No D × D matrix is formed. Kernels are in double precision, whatever the network's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from torchbayes.calls import explained
from torchbayes.checks import check_counts, check_kind
from torchbayes.curvature.features import Part, covariance, cross_covariance
from torchbayes.curvature.roots import check_curved, root
from torchbayes.curvature.tangent import Centre, Linear, Tangent
from torchbayes.display import shown_by
from torchbayes.linalg import Diagonal
from torchbayes.linalg.matrices import checked_cholesky
from torchbayes.model.model import Model
from torchbayes.model.priors.bound import correlated
from torchbayes.model.sources.sources import as_source
from torchbayes.native.process import undisturbed, undisturbed_methods
from torchbayes.posteriors.point import Point
from torchbayes.posteriors.start import start_of
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.linearised import Functions, checked, linked
from torchbayes.predictive.links import Link, centre_of, link_of


@undisturbed_methods
@shown_by("link", "model")
@dataclass(frozen=True, eq=False)
class FunctionalLaplace:
    """A posterior over functions; takes the place of a posterior in `predict`, `stream` and `evaluate`.

    Attributes:
        model: the model.
        tangent: the network linearised at the mode.
        prior: S.
        train: J of the training rows, in factors.
        root_NRK: Lᵀ, columns of Λ of every row.
        cholesky: of A, (N R, N R).
        log_likelihood: Σ log p(y|f) at the mode, float64, in nats.
        link: as for `Linearised`.
        samples: functions drawn by "samples".
        seed: seed of these functions.
    """

    model: Model
    tangent: Tangent
    prior: Diagonal
    train: list[Part]
    root_NRK: Tensor
    cholesky: Tensor
    log_likelihood: Tensor
    link: Link = "auto"
    samples: int = field(default=100, kw_only=True)
    seed: int = field(default=0, kw_only=True)

    def log_evidence(self) -> Tensor:
        """Return log p(D|w*) + log p(w*) + (D/2) log 2π + ½ log det S − ½ log det A, float64, in nats."""
        prior = self.prior.variance_MD[0]
        logdet = 2 * self.cholesky.diagonal().double().log().sum() - prior.log().sum()
        log_prior = self.model.log_prior(self.tangent.weights_D)
        return self.log_likelihood + log_prior + len(prior) / 2 * math.log(2 * math.pi) - 0.5 * logdet

    def functions(self, inputs: Any, *, diagonal: bool = False) -> Functions:
        """Return mean (1, B, K) and covariance (1, B, K, K) of the outputs, or only variances (1, B, K).

        Args:
            inputs: tensor (B, ...), or a tuple or mapping of such.
            diagonal: return variances alone.

        Raises:
            ValueError: if the network cannot take the inputs.
        """
        return self._functions(inputs, diagonal=diagonal)

    def _functions(self, inputs: Any, *, diagonal: bool, centre: Centre | None = None) -> Functions:
        outputs_BK, parts = _doubled(self.tangent.linear(inputs, centre=centre))
        leaves = self.tangent.leaves(self.prior)
        prior = covariance(leaves, parts, diagonal=diagonal)
        cross = cross_covariance(leaves, (self.train, parts), limit=self.tangent.chunk)
        rows, outputs = outputs_BK.shape
        projected = torch.einsum("nrk,nkq->nrq", self.root_NRK, cross.view(len(self.root_NRK), outputs, -1)).flatten(
            0, 1
        )
        whitened = torch.linalg.solve_triangular(self.cholesky, projected, upper=False).T.view(rows, outputs, -1)
        explained = whitened.square().sum(-1) if diagonal else whitened @ whitened.mT
        spread = (prior - explained).clamp_min(0) if diagonal else prior - explained
        return Functions(outputs_BK.unsqueeze(0), spread.to(outputs_BK).unsqueeze(0))

    def predictive(self, inputs: Any, *, chunk_size: int = 256) -> Predictive:
        """Return the predictive at inputs.

        Args:
            inputs: tensor (B, ...), or a tuple or mapping of such.
            chunk_size: rows at once, at most.

        Raises:
            ValueError: if there are no rows, they are not finite, or the network cannot take them.
        """
        link = link_of(self.link, self.model.likelihood, outputs=self.tangent.outputs)
        functions = partial(self._functions, centre=centre_of(link))
        weights_MD, placed = self.tangent.weights_D.unsqueeze(0), checked(self.model, inputs)
        rows = min(chunk_size, 256)
        return linked(
            link,
            self.model,
            weights_MD,
            functions=functions,
            inputs=placed,
            rows=rows,
            samples=self.samples,
            seed=self.seed,
        )


def _doubled(linear: Linear) -> Linear:
    """Return a linear form with its Jacobian in double precision, because posterior variances are differences."""
    return Linear(linear.outputs_BK, [jacobian.double() for jacobian in linear.parts])


def _check_axes(tangent: Tangent) -> None:
    """Raise a ValueError unless a row has one axis of outputs."""
    if len(tangent.shape) > 1:
        raise ValueError(
            f"the functional form needs one axis of outputs for a row, (K,); the network gives {tangent.shape} for a "
            f"row. Use Laplace and Linearised."
        )


def _fit(model: Model, outputs_NK: Tensor, targets: Any) -> Tensor:
    """Return Σ log p(y|f), float64; a ValueError if it is not finite."""
    total = model.likelihood.log_prob(outputs_NK, targets).sum(dtype=torch.float64)
    if not total.isfinite():
        raise ValueError(
            "the log likelihood at the mode is not finite. Look for extreme values in the data or the weights, and for "
            "targets that the network says are impossible."
        )
    return total


@undisturbed
@explained()
def functional_laplace(
    model: Model,
    data: Any,
    start: nn.Module | Point | Tensor,
    *,
    link: Link = "auto",
    largest: int = 20_000,
    chunk: int = 2**24,
) -> FunctionalLaplace:
    """Return the functional form of a Laplace posterior with the dense Gauss-Newton matrix.

    Time grows with (N R)³ and with N R D, memory with (N R)² and N times what a row takes in the layers, where R is
    the number of columns of Λ per row: K in a regression, K − 1 for K classes.

    Args:
        model: its prior is normal, or has a precision at the mode.
        data: all training data, as for `fit`.
        start: the mode: a trained module, a point posterior of one member, or flat weights.
        link: as for `Linearised`.
        largest: bound on N R, the size of the matrix.
        chunk: numbers that a piece of a Jacobian may hold.

    Returns:
        The posterior over functions.

    Raises:
        ValueError: if there are too many rows, the prior is flat or correlated, the model is tempered, the data or
            the start do not fit, or the log likelihood at the mode is not finite.
    """
    check_kind(Model, "a Model", model=model)
    check_counts(largest=largest, chunk=chunk)
    link_of(link, model.likelihood)
    check_kind((nn.Module, Point, Tensor), "the mode: a trained module, a point posterior or weights", start=start)
    if model.temperature != 1:
        raise ValueError(f"the functional form is that of T = 1; the model has temperature {model.temperature}.")
    source = as_source(model, data, 1024)
    source.check()
    rows = source.rows()
    weights_MD, buffers_M = start_of(model, start, [0])
    weights_D, buffers = weights_MD[0], {n: b[0] for n, b in buffers_M.items()} or None
    size = model.network.layout.size
    precision_D = model.prior.precision(weights_D)[:size]
    if not (precision_D > 0).all() or correlated(model.prior) or size < len(weights_D):
        raise ValueError(
            "the functional form needs a prior with a precision for every weight on its own, and a likelihood without "
            "learned parameters. Use priors.Normal and a fixed noise scale, or Laplace(structure='dense')."
        )
    prior = Diagonal(1 / precision_D.unsqueeze(0).double())
    tangent = Tangent.at(model, weights_D, rows.inputs, buffers=buffers, structure=prior, chunk=chunk)
    _check_axes(tangent)
    outputs_NK, train = _doubled(tangent.linear(rows.inputs))
    log_likelihood = _fit(model, outputs_NK, rows.targets)
    root_NRK = root("ggn", model.likelihood, outputs_NK, targets=rows.targets, parameters={}).transpose(0, 1).double()
    check_curved(model.likelihood, float(root_NRK.abs().max()))
    count = root_NRK.shape[:2].numel()
    if count > largest:
        raise ValueError(
            f"the functional form has a matrix of {count:,} rows here, more than `largest`={largest:,}. It is for "
            f"small data: use Laplace with structure='kronecker', or fewer rows."
        )
    kernel = cross_covariance(tangent.leaves(prior), (train, train), limit=chunk).unflatten(0, outputs_NK.shape)
    half = torch.einsum("nrk,nkm->nrm", root_NRK, kernel).flatten(0, 1).unflatten(1, outputs_NK.shape)
    matrix = torch.einsum("qnk,nrk->qnr", half, root_NRK).flatten(1)
    matrix.diagonal().add_(1.0)
    return FunctionalLaplace(model, tangent, prior, train, root_NRK, checked_cholesky(matrix), log_likelihood, link)
