"""Values and gradients of the targets in closed form, for PyTorch: autograd takes two to five times as long."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import softplus

from benchmarks.low_error.targets import PAIRS, STUDENTS

Data = Mapping[str, Tensor]
Both = tuple[Tensor, Tensor]  # log density (M,) and gradient (M, D)


def gaussian(data: Data, w: Tensor) -> Both:
    """Return −½ Σ w²/λ and −w/λ."""
    gradient_MD = -w / data["variances"]
    return 0.5 * (w * gradient_MD).sum(-1), gradient_MD


def banana(data: Data, w: Tensor) -> Both:
    """Return the value with r = y − 0.03 (x² − 100), and (−x/100 + 0.06 x r, −r)."""
    x_M, y_M = w.unbind(-1)
    rest_M = y_M - 0.03 * (x_M * x_M - 100)
    return -0.005 * x_M * x_M - 0.5 * rest_M * rest_M, torch.stack([x_M * (0.06 * rest_M - 0.01), -rest_M], -1)


def rosenbrock(data: Data, w: Tensor) -> Both:
    """Return the value with r = (x² − y)/0.1, and (1 − x − 2 x r, r)."""
    x, y = w[:, :PAIRS], w[:, PAIRS:]
    away, rest = x - 1, 10 * (x * x - y)
    value_M = -0.5 * (away.square() + 0.1 * rest.square()).sum(-1)
    return value_M, torch.cat([-away - 2 * x * rest, rest], -1)


def brownian(data: Data, w: Tensor) -> Both:
    """Return both by sums of squares of moves and of what is left of observations, over squares of scales."""
    free_M2, path_MT = w[:, :2], w[:, 2:]
    scales_M2, counts_2 = softplus(free_M2, threshold=40.0), w.new_tensor([30.0, 20.0])
    logs_M2, precisions_M2 = scales_M2.log(), scales_M2.square().reciprocal()
    moves_MT = torch.diff(path_MT, prepend=torch.zeros_like(path_MT[:, :1]))
    rest_MT = data["seen"] * (path_MT - data["observed"])
    squares_M2 = torch.stack([moves_MT.square().sum(-1), rest_MT.square().sum(-1)], -1)
    value_M2 = -0.5 * squares_M2 * precisions_M2 - (counts_2 + 1) * logs_M2 - 0.125 * logs_M2.square()
    value_M = (value_M2 - softplus(-free_M2, threshold=40.0)).sum(-1)
    slopes_M2 = squares_M2 * precisions_M2 / scales_M2 - (counts_2 + 1 + 0.25 * logs_M2) / scales_M2
    share_M2 = free_M2.sigmoid()
    bent_MT = torch.diff(moves_MT, append=torch.zeros_like(moves_MT[:, :1]))
    path_gradient_MT = bent_MT * precisions_M2[:, :1] - rest_MT * precisions_M2[:, 1:]
    return value_M, torch.cat([slopes_M2 * share_M2 + 1 - share_M2, path_gradient_MT], -1)


def credit(data: Data, w: Tensor) -> Both:
    """Return both through the gradient by the coefficients."""
    scales, scores = w[:, :26].exp(), w[:, 26:]
    products = scales[:, 1:] * scales[:, :1]
    coefficients = scores * products
    margins = data["signs"] * (coefficients @ data["inputs"].T)
    slopes = ((-margins).sigmoid() * data["signs"]) @ data["inputs"]
    value_M = 0.5 * (w[:, :26] - scales).sum(-1) - 0.5 * scores.square().sum(-1)
    value_M = value_M - softplus(-margins, threshold=40.0).sum(-1)
    locals_M = slopes * coefficients  # by the logarithm of either scale of a coefficient
    logs = torch.cat([locals_M.sum(-1, keepdim=True), locals_M], -1) + 0.5 - 0.5 * scales
    return value_M, torch.cat([logs, slopes * products - scores], -1)


def items(data: Data, w: Tensor) -> Both:
    """Return both with 1/(1 + odds), the probabilities of a wrong answer, in one array."""
    abilities, mean, difficulties = w[:, :STUDENTS], w[:, STUDENTS : STUDENTS + 1], w[:, STUDENTS + 1 :]
    total, away = abilities + mean, mean - 0.75
    terms = torch.mul(total.exp()[:, :, None], (-difficulties).exp()[:, None]).mul_(data["asked"]).add_(1)
    half = terms.shape[-1] // 2
    product = terms[..., :half] * terms[..., half:]  # the logarithm of a product of four costs a quarter
    product = product[..., : half // 2] * product[..., half // 2 :]
    value_M = (total * data["by_student"]).sum(-1) - (difficulties * data["by_question"]).sum(-1)
    value_M = value_M - product.log_().sum((-2, -1))
    value_M = value_M - 0.5 * (abilities.square().sum(-1) + away.square().sum(-1) + difficulties.square().sum(-1))
    wrong = terms.reciprocal_()
    students = data["by_student"] - wrong.shape[-1] + wrong.sum(-1)
    questions = wrong.shape[-2] - wrong.sum(-2) - data["by_question"]
    gradient = torch.cat([students - abilities, students.sum(-1, keepdim=True) - away, questions - difficulties], -1)
    return value_M, gradient


GRADIENTS = {
    "gaussian": gaussian, "banana": banana, "rosenbrock": rosenbrock, "brownian": brownian, "credit": credit,
    "items": items,
}  # fmt: skip
