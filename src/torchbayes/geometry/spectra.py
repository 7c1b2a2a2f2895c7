"""The curvature of a loss: its spectrum by stochastic Lanczos quadrature, trace by Hutch++, and leading directions.

With random signs z, E[zzᵀ] = I, and m steps of Lanczos from z give nodes θ_i and weights ω_i with

    tr f(A) = E[zᵀ f(A) z] ≈ D/P Σ_p Σ_i ω_pi f(θ_pi)

(Ubaru, Chen and Saad 2017; Ghorbani, Krishnan and Xiao 2019). The density of eigenvalues, the trace, the log
determinant and the effective dimension Σ λ/(λ + α) (Maddox, Benton and Wilson 2020) have this form. The extreme nodes
are themselves eigenvalues, once they have converged.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchbayes.checks import (
    as_seed,
    check_choice,
    check_counts,
    check_function,
    check_memory,
    check_not_negative,
    check_positive,
    check_tensor,
)
from torchbayes.geometry.lanczos import Leading, joined, lanczos, leading
from torchbayes.geometry.networks import Weights, num_observations, place_of
from torchbayes.geometry.operators import MATRICES, Matrix, Products
from torchbayes.model.model import Model
from torchbayes.native.process import undisturbed
from torchbayes.posteriors.problems import note
from torchbayes.randomness.seeds import Purpose, generator

_BASIS = 2**30  # bytes that the vectors of one group of probes may take
_CONVERGED = 1e-3  # residual of an eigenvalue that is reported, relative to the largest
_ENOUGH = 0.01  # residual, relative to the eigenvalue, up to which an eigenvector counts as converged


class Estimate(NamedTuple):
    """A number and its Monte Carlo error.

    Attributes:
        value: the estimate.
        error: its standard error over probes; NaN for a single probe, 0 where the value is exact.
    """

    value: float
    error: float


@dataclass(frozen=True)
class Spectrum:
    """The eigenvalues of the curvature at one place, as Gauss rules.

    Attributes:
        values_PK: Ritz values θ of each probe, ascending, float64, in nats per squared unit of the weights.
        weights_PK: weights ω, which sum to one for each probe.
        residuals_PK: bounds on how far each is from an eigenvalue.
        steps: steps of Lanczos that each probe took.
        size: D, the number of weights.
        num_data: N, observations in the sum that the matrix is; a row of weight w counts as w.
        matrix: which matrix.
    """

    values_PK: Tensor
    weights_PK: Tensor
    residuals_PK: Tensor
    steps: tuple[int, ...]
    size: int
    num_data: float
    matrix: Matrix

    def trace_of(self, function: Callable[[Tensor], Tensor]) -> Estimate:
        """Return tr f(A) ≈ D · mean_p Σ_i ω_pi f(θ_pi).

        Args:
            function: f, of a float64 tensor, elementwise.

        Raises:
            TypeError: if it is not a function.
        """
        check_function("a function of a tensor", function=function)
        each_P = self.size * (self.weights_PK * function(self.values_PK)).sum(1)
        if max(self.steps) == self.size == 1:
            return Estimate(float(each_P[0]), 0.0)
        return _estimate(each_P)

    @property
    def trace(self) -> Estimate:
        """The trace: the mean of zᵀAz over probes (Hutchinson 1990)."""
        return self.trace_of(lambda values: values)

    def density(self, grid_G: Tensor, width: float) -> Tensor:
        """Return the density of eigenvalues, smoothed by normals: mean_p Σ_i ω_pi N(λ; θ_pi, σ²).

        Args:
            grid_G: where, (G,), in units of the eigenvalues.
            width: σ, at least the gap between neighbouring nodes for a smooth curve.

        Returns:
            Float64 tensor (G,), of integral one.

        Raises:
            TypeError: if the grid is not a tensor.
            ValueError: if it does not have one axis, or the width is not positive.
        """
        check_tensor("G", grid_G=grid_G)
        check_positive(width=width)
        scaled_GN = (grid_G.double().cpu().unsqueeze(1) - self.values_PK.flatten()) / width
        kernels_GN = torch.exp(-0.5 * scaled_GN.square()) / (width * math.sqrt(2 * math.pi))
        return kernels_GN @ self.weights_PK.flatten() / len(self.values_PK)

    def top(self, count: int = 10, *, smallest: bool = False) -> Tensor:
        """Return the eigenvalues at one end of the spectrum, as far as they have converged.

        A node counts if its residual is below a thousandth of the largest absolute one. An eigenvalue of multiplicity
        two counts once, because one starting vector sees it once. There is a warning if none has converged.

        Args:
            count: how many at most.
            smallest: whether to give the smallest, ascending, instead of the largest, descending.

        Returns:
            Float64 tensor of at most `count`.

        Raises:
            ValueError: if `count` is not a whole number of at least 1.
        """
        check_counts(count=count)
        tables = (self.values_PK, self.residuals_PK, self.weights_PK > 0)
        values_PK, residuals_PK, real_PK = tables if smallest else (table.flip(1) for table in tables)
        fine_PK = (residuals_PK <= _CONVERGED * self.values_PK.abs().max()) & real_PK
        best, most = values_PK.new_empty(0), -1
        for values_K, fine_K, real_K in zip(values_PK, fine_PK, real_PK, strict=True):
            converged = int(fine_K[real_K].long().cumprod(0).sum())
            if converged > most:
                best, most = values_K[real_K][:converged], converged
        if not len(best):
            note(f"no eigenvalue has converged in {max(self.steps)} steps. Raise `steps`.")
        return best[:count].clone()

    def effective_dimension(self, precision: float) -> Estimate:
        """Return Σ_i λ_i / (λ_i + α), the number of directions that the data determine (Maddox et al. 2020).

        Negative eigenvalues count as 0, with a warning if they are more than rounding. The function then has a kink
        at 0, where most eigenvalues of a network are, and the value may keep changing with the number of steps by far
        more than its error says (a perceptron of 55,000 weights, α = 1: 2869, 4308, 3112 with 40, 80 and 160 steps
        and errors of 130 to 240; its Gauss-Newton matrix 1012, 997, 997).

        Args:
            precision: α > 0, of the prior; the matrix must be that of the summed loss without the prior.

        Raises:
            ValueError: if the precision is not positive.
        """
        check_positive(precision=precision)
        lowest, scale = float(self.values_PK.min()), float(self.values_PK.abs().max())
        if lowest < -1e-5 * scale:
            share = float((self.weights_PK * (self.values_PK < 0)).sum(1).mean())
            note(
                f"{share:.0%} of the eigenvalues are negative, down to {lowest:.3g}; they count as 0 in the effective "
                f"dimension. The weights are not at a minimum, or use matrix='ggn'."
            )
        return self.trace_of(lambda values: values.clamp_min(0) / (values.clamp_min(0) + precision))

    def log_det(self, precision: float) -> Estimate:
        """Return log det(A + αI), in nats.

        Args:
            precision: α ≥ 0; 0 if the matrix contains the prior.

        Raises:
            ValueError: if the precision is negative, or A + αI has an eigenvalue of at most 0.
        """
        check_not_negative(precision=precision)
        lowest = float(self.values_PK.min())
        if lowest + precision <= 0:
            raise ValueError(
                f"`precision` must be above {-lowest:.6g}, as the smallest eigenvalue is at most {lowest:.6g}; got "
                f"{precision:g}. Use matrix='ggn', or go to a minimum."
            )
        return self.trace_of(lambda values: (values + precision).log())


@undisturbed
def spectrum(
    model: Model,
    data: Any,
    weights: Weights,
    *,
    matrix: Matrix = "hessian",
    steps: int = 80,
    probes: int = 8,
    seed: int = 0,
    chunk_size: int = 1024,
) -> Spectrum:
    """Return the spectrum of the curvature of the summed negative log likelihood, by stochastic Lanczos quadrature.

    The Hessian is that of −Σ_n log p(y_n|f_w(x_n)), without temperature. The Gauss-Newton matrix is Σ_n JᵀΛJ with the
    Fisher information Λ of the outputs. Learned parameters of the likelihood belong to the weights; in the
    Gauss-Newton matrix they are on its diagonal. Networks run in evaluation mode: dropout is off and batch norm uses
    its running statistics, which for bare weights are those of the data.

    Cost: `steps` times `probes` products of the matrix with a vector, each 1.4 to 2.5 gradients of all the data if
    the graphs of all chunks fit in 1 GiB. Memory: these graphs, and `steps` times D numbers for each probe. Probes
    whose vectors fit in 1 GiB together run in step.

    Args:
        model: the model.
        data: as for `fit`.
        weights: where: a point posterior of one member, a module, or a tensor (D,).
        matrix: `hessian` or `ggn`; with `+prior`, −∇² log p(w) is added.
        steps: m, of Lanczos; eigenvalues of the bulk are resolved to about their range divided by m.
        probes: P, random vectors.
        seed: seed of the vectors; probe p does not depend on their number.
        chunk_size: rows that go through the network at once.

    Returns:
        The spectrum.

    Raises:
        TypeError: if an argument is of another kind, or the network computes in less than float32.
        ValueError: if data or weights do not fit, there is more than one network, products are not finite or not
            those of a symmetric matrix, the network cannot be differentiated twice, or settings are out of range.
    """
    check_choice(MATRICES, matrix=matrix)
    check_counts(steps=steps, probes=probes, chunk_size=chunk_size)
    seed, place = as_seed(seed), place_of(model, data, weights)
    size, steps = place.weights_D.numel(), min(steps, place.weights_D.numel())
    check_memory(steps * place.weights_D.nbytes, "the vectors of a probe", place.weights_D.device, steps=steps)
    product = Products(place, matrix, chunk_size)
    group = max(_BASIS // (steps * place.weights_D.nbytes), 1)
    rules = []
    for start in range(0, probes, group):
        signs = [_signs(place.weights_D, seed, probe) for probe in range(start, min(start + group, probes))]
        rules.append(lanczos(product, torch.stack(signs), steps))
    return Spectrum(*joined(rules), size, num_observations(place, chunk_size), matrix)


@undisturbed
def trace(
    model: Model,
    data: Any,
    weights: Weights,
    *,
    matrix: Matrix = "hessian",
    products: int = 60,
    seed: int = 0,
    chunk_size: int = 1024,
) -> Estimate:
    """Return the trace of the curvature of the summed negative log likelihood, by Hutch++ (Meyer et al. 2021).

    With signs S and G, (D, m/3) each, and an orthonormal basis Q of A S,

        tr A ≈ tr(QᵀAQ) + (3/m) tr(Gᵀ(I − QQᵀ) A (I − QQᵀ)G)

    It is exact if the rank of A is at most m/3. Matrices and weights are as for `spectrum`. Hutchinson's estimate,
    `Spectrum.trace`, has a larger error where a few eigenvalues dominate.

    Args:
        model: the model.
        data: as for `fit`.
        weights: where, as for `spectrum`.
        matrix: likewise.
        products: m, of the matrix with a vector, at least 3. Memory: about m times D numbers.
        seed: seed of the signs.
        chunk_size: rows that go through the network at once.

    Returns:
        The trace, and its standard error over the columns of G.

    Raises:
        TypeError: if an argument is of another kind, or the network computes in less than float32.
        ValueError: as for `spectrum`.
    """
    check_choice(MATRICES, matrix=matrix)
    check_counts(least=3, products=products)
    check_counts(chunk_size=chunk_size)
    seed, place = as_seed(seed), place_of(model, data, weights)
    product = Products(place, matrix, chunk_size)
    count = min(products // 3, place.weights_D.numel())
    check_memory(products * place.weights_D.nbytes, "the vectors", place.weights_D.device, products=products)
    source = generator(Purpose.TRACE, seed)
    signs = torch.randint(2, (2 * count, place.weights_D.numel()), generator=source).to(place.weights_D) * 2 - 1
    basis = torch.linalg.qr(product(signs[:count]).mT.double()).Q.mT.to(place.weights_D)
    captured = float((product(basis).double() * basis).sum())
    if count == place.weights_D.numel():
        return Estimate(captured, 0.0)
    probes = signs[count:] - (signs[count:] @ basis.mT) @ basis
    residual = _estimate((product(probes).double() * probes).sum(1))
    return Estimate(captured + residual.value, residual.error)


@undisturbed
def curved_directions(
    model: Model,
    data: Any,
    weights: Weights,
    *,
    rank: int = 5,
    matrix: Matrix = "ggn",
    steps: int = 60,
    seed: int = 0,
    chunk_size: int = 1024,
) -> Leading:
    """Return the eigenvectors of the curvature of the summed loss with the largest eigenvalues, by Lanczos.

    The data determine these directions best, and a posterior is narrowest along them: `Subspace(model, weights,
    leading.vectors_RD)` is a subspace along them. The matrix is that of `spectrum`. Cost: `steps` products with a
    vector, and memory for `steps` times D numbers.

    Args:
        model: the model.
        data: as for `fit`.
        weights: where, as for `spectrum`.
        rank: R, directions.
        matrix: `hessian` or `ggn`; with `+prior`, −∇² log p(w) is added.
        steps: of the iteration, at least `rank`.
        seed: seed of the starting vector.
        chunk_size: rows that go through the network at once.

    Returns:
        Eigenvalues (R,), float64, largest absolute value first, eigenvectors (R, D), and how far each product
        with the matrix is from the value times the vector. Fewer than R where the matrix has a lower rank.

    Raises:
        TypeError: as for `spectrum`.
        ValueError: as for `spectrum`, or if there are fewer steps than directions, or more directions than
            weights.
    """
    check_choice(MATRICES, matrix=matrix)
    check_counts(rank=rank, steps=steps, chunk_size=chunk_size)
    seed, place = as_seed(seed), place_of(model, data, weights)
    size = place.weights_D.numel()
    if rank > min(steps, size):
        raise ValueError(
            f"`rank` must be at most the {min(steps, size)} {'steps' if steps < size else 'weights'}; got {rank}."
        )
    check_memory(steps * place.weights_D.nbytes, "the vectors of the iteration", place.weights_D.device, steps=steps)
    start_D = torch.randn(size, generator=generator(Purpose.CURVED, seed), dtype=torch.float64)
    pairs = leading(Products(place, matrix, chunk_size), start_D.to(place.weights_D), steps, count=rank)
    rounding = 100 * torch.finfo(place.weights_D.dtype).eps * float(pairs.values_R.abs().max())
    is_nonzero = pairs.values_R.abs() > rounding
    pairs = Leading(*(tensor[is_nonzero.to(tensor.device)] for tensor in pairs))
    loose = pairs.residuals_R > _ENOUGH * pairs.values_R.abs()
    if loose.any():
        note(
            f"{int(loose.sum())} of {len(loose)} directions have not converged in {steps} steps, the first of them to "
            f"{float((pairs.residuals_R / pairs.values_R.abs()).max()):.0%}. Raise `steps`."
        )
    return pairs


def _estimate(each_P: Tensor) -> Estimate:
    error = float(each_P.std()) / math.sqrt(len(each_P)) if len(each_P) > 1 else math.nan
    return Estimate(float(each_P.mean()), error)


def _signs(like_D: Tensor, seed: int, probe: int) -> Tensor:
    source = generator(Purpose.SPECTRUM, seed, probe)
    return (torch.randint(2, (like_D.numel(),), generator=source) * 2 - 1).to(like_D)
