r"""Multinomial logistic regression by Newton's method, to a known distance from the optimum.

Over coefficients θ the objective is

    f(θ) = (1/n) Σ_b w_b [log Σ_k e^{a_bk} − Σ_k q_bk a_bk] + Σ_i λ_i (θ_i − s_i)²,    a = offset + A θ,

with weights w of sum n, shares q of the classes, and penalties λ that draw θ to where it starts, s. It is convex.
Each step solves H d = −∇f by conjugate gradients, preconditioned by the diagonal of H, and is halved until f falls
(Nocedal and Wright 2006, section 7.1). Where every λ is positive, f(θ) − min f ≤ Σ_i (∂_i f)² / (4 λ_i), because the
curvature along θ_i is at least 2 λ_i; that bound is what is reported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from torchbayes.calibration.rows import Rows

TOLERANCE = 1e-13
"""Distance from the optimum at which to stop, in nats per row."""
_STEPS = 100
_HALVINGS = 40
_ROUNDING = 1e-16  # of the objective: twice what the next step would gain


class Design(Protocol):
    """A linear map A from coefficients (P,) to logits (B, K)."""

    def logits(self, coefficients_P: Tensor) -> Tensor:
        """Return A θ."""
        ...

    def adjoint(self, gradient_BK: Tensor, *, squared: bool = False) -> Tensor:
        """Return Aᵀ g, (P,); with every entry of A squared if `squared`."""
        ...


@dataclass(frozen=True)
class ByClass:
    """The logit of class k is θ_k z_k + θ_{K+k}."""

    values_BK: Tensor

    def logits(self, coefficients_P: Tensor) -> Tensor:
        """Return the logits."""
        slope_K, bias_K = coefficients_P.chunk(2)
        return self.values_BK * slope_K + bias_K

    def adjoint(self, gradient_BK: Tensor, *, squared: bool = False) -> Tensor:
        """Return the sums of the gradient times z, and of the gradient."""
        values_BK = self.values_BK.square() if squared else self.values_BK
        return torch.cat([(gradient_BK * values_BK).sum(0), gradient_BK.sum(0)])


@dataclass(frozen=True)
class ByMatrix:
    """The logit of class k is Σ_j θ_kj z_j + θ_{K²+k}; a matrix and a bias, one after the other."""

    values_BK: Tensor

    def logits(self, coefficients_P: Tensor) -> Tensor:
        """Return the logits."""
        classes = self.values_BK.shape[1]
        return self.values_BK @ coefficients_P[:-classes].view(classes, classes).T + coefficients_P[-classes:]

    def adjoint(self, gradient_BK: Tensor, *, squared: bool = False) -> Tensor:
        """Return the sums of the gradient times every z, and of the gradient."""
        values_BK = self.values_BK.square() if squared else self.values_BK
        return torch.cat([(gradient_BK.T @ values_BK).flatten(), gradient_BK.sum(0)])


@dataclass(frozen=True)
class OfSecond:
    """Two classes: the logit of the first is 0, and that of the second is φ θ."""

    features_BP: Tensor

    def logits(self, coefficients_P: Tensor) -> Tensor:
        """Return the logits."""
        second_B = self.features_BP @ coefficients_P
        return torch.stack([torch.zeros_like(second_B), second_B], -1)

    def adjoint(self, gradient_BK: Tensor, *, squared: bool = False) -> Tensor:
        """Return φᵀ times the gradient of the second logit."""
        features_BP = self.features_BP.square() if squared else self.features_BP
        return features_BP.T @ gradient_BK[:, 1]


class Optimum(NamedTuple):
    """Coefficients, the objective there, and how far it may be above its minimum (an estimate without penalties)."""

    coefficients_P: Tensor
    loss: float
    gap: float


@dataclass(frozen=True)
class _Objective:
    design: Design
    rows: Rows
    start_P: Tensor
    penalty_P: Tensor

    def value(self, at_P: Tensor) -> float:
        logs_BK = torch.log_softmax(self.design.logits(at_P), -1)
        return self.rows.loss(logs_BK) + float(self.penalty_P @ (at_P - self.start_P).square())

    def slopes(self, at_P: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor], Tensor]:
        """Return the gradient, the product of the Hessian with a vector, and the Hessian's diagonal."""
        probs_BK = torch.softmax(self.design.logits(at_P), -1)
        each_B1 = (self.rows.weights_B / self.rows.count)[:, None]
        gradient_P = self.design.adjoint(each_B1 * (probs_BK - self.rows.shares_BK))
        gradient_P = gradient_P + 2 * self.penalty_P * (at_P - self.start_P)

        def product(vector_P: Tensor) -> Tensor:
            moved_BK = probs_BK * self.design.logits(vector_P)
            moved_BK = moved_BK - probs_BK * moved_BK.sum(1, keepdim=True)
            return self.design.adjoint(each_B1 * moved_BK) + 2 * self.penalty_P * vector_P

        diagonal_P = self.design.adjoint(each_B1 * probs_BK * (1 - probs_BK), squared=True) + 2 * self.penalty_P
        return gradient_P, product, diagonal_P


def minimised(design: Design, rows: Rows, *, start_P: Tensor, penalty_P: Tensor) -> Optimum:
    """Return the coefficients that minimise the penalised loss of rows, to `TOLERANCE` or to rounding."""
    objective = _Objective(design, rows, start_P, penalty_P)
    at_P, value, gap = start_P, objective.value(start_P), float("inf")
    for _ in range(_STEPS):
        gradient_P, product, diagonal_P = objective.slopes(at_P)
        step_P = _solved(product, -gradient_P, diagonal_P)
        decrement = -float(gradient_P @ step_P)
        bounded = bool((penalty_P > 0).all())
        gap = float((gradient_P.square() / (4 * penalty_P)).sum()) if bounded else max(decrement, 0.0) / 2
        if gap <= TOLERANCE or decrement <= _ROUNDING * max(value, 1.0):
            break
        for halving in range(_HALVINGS):
            share = 0.5**halving
            trial = objective.value(at_P + share * step_P)
            if trial <= value - 1e-4 * share * decrement:
                break
        else:
            break  # the objective falls by less than rounding
        at_P, value = at_P + share * step_P, trial
    return Optimum(at_P, value, gap)


def _solved(product: Callable[[Tensor], Tensor], goal_P: Tensor, diagonal_P: Tensor) -> Tensor:
    """Return H⁻¹ goal by conjugate gradients, the more exact the closer goal is to 0, as Newton's method needs."""
    inverse_P = 1 / diagonal_P.clamp_min(torch.finfo(torch.float64).tiny)
    solution_P, residual_P = torch.zeros_like(goal_P), goal_P
    scaled_P = inverse_P * residual_P
    direction_P, norm = scaled_P, float(residual_P @ scaled_P)
    enough = norm * min(0.01, norm)
    for _ in range(max(2 * len(goal_P), 20)):
        image_P = product(direction_P)
        curvature = float(direction_P @ image_P)
        if norm <= enough or curvature <= 0:
            break
        solution_P = solution_P + (norm / curvature) * direction_P
        residual_P = residual_P - (norm / curvature) * image_P
        scaled_P = inverse_P * residual_P
        last, norm = norm, float(residual_P @ scaled_P)
        direction_P = scaled_P + (norm / last) * direction_P
    return solution_P
