"""What the sums at a mode are made into: the posterior, and a word where the mode is none."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from torchbayes.linalg.curvature import Curvature, DenseCurvature
from torchbayes.model.joint_prior import Joint


class NotAModeWarning(UserWarning):
    """The gradient of the log joint density is too large for a mode."""


class ChangingDataWarning(UserWarning):
    """The same rows come out differently at every pass, so that their number is not that of the observations."""


def warn_if_changing(inputs: Callable[[], Iterable[Any]]) -> None:
    """Warn where the first rows of the data differ between two passes, as augmentation makes them.

    Args:
        inputs: makes a pass over the inputs in a fixed order.
    """
    first, again = (pytree.tree_leaves(next(iter(inputs()))) for _ in range(2))
    if not all(torch.equal(a, b) for a, b in zip(first, again, strict=True)):
        warnings.warn(
            "the inputs differ from pass to pass, as augmentation makes them. The curvature counts every row once, as an "
            "observation of its own; what a posterior is whose data are drawn anew is not said. Use the data without "
            "augmentation.",
            ChangingDataWarning,
            stacklevel=3,
        )


def warn_unless_mode(gradient_MD: Tensor, curvature_trace_M: Tensor) -> None:
    """Warn where the gradient of the log joint density is larger than the data's own noise would make it.

    In units of the prior's standard deviations, the gradient of the log likelihood at the truth has the mean square
    tr H, the Fisher information. A mode's gradient is zero, that of a network trained with noise somewhat more; beyond
    √tr H it says that the weights are no mode of this model.

    Args:
        gradient_MD: gradient of the tempered log joint density, times the prior's standard deviations.
        curvature_trace_M: tr H in units of the prior.
    """
    norm_M = torch.linalg.vector_norm(gradient_MD, dim=-1)
    bound_M = curvature_trace_M.clamp_min(0).sqrt()
    bad = (norm_M > bound_M).nonzero()[:, 0].tolist()
    if bad:
        m = bad[0]
        warnings.warn(
            f"the start of member {m} is not a mode of this model: the gradient of the log joint density has norm "
            f"{float(norm_M[m]):.3g} (per prior standard deviation), and the data's own noise would give "
            f"{float(bound_M[m]):.3g}. The approximation is of a slope, not of a peak: train to convergence under this "
            f"likelihood and prior, for instance with MAP and the same Model.",
            NotAModeWarning,
            stacklevel=2,
        )


def with_joint_prior(curvature: Curvature, prior: Joint) -> Curvature:
    """Return H plus the precision of a correlated prior.

    Args:
        curvature: H, in units of the weights.
        prior: with correlations.

    Returns:
        The sum.

    Raises:
        ValueError: if the two do not add up to a structure.
    """
    if isinstance(curvature, DenseCurvature):
        return DenseCurvature(curvature.matrix_MDD + torch.linalg.inv(prior.covariance.dense()))
    raise ValueError(
        f"a correlated prior adds to a dense curvature alone; got {curvature.kind}. Use structure='dense', or a "
        f"diagonal posterior as the prior."
    )
