"""The three subspaces that are compared: random, principal components of a trajectory, plane of a curve."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from torchbayes.model import Model
from torchbayes.model.subspace import Subspace
from torchbayes.posteriors import CurvePosterior, Gaussian
from torchbayes_experiments.subspace_inference.recipe import CURVE, PCA, RANDOM, Sampling


@dataclass(frozen=True)
class Trained:
    """What subspaces are laid through.

    Attributes:
        swag: moments of one trajectory.
        curve: a curve of one bend from its average to that of another trajectory.
    """

    swag: Gaussian
    curve: CurvePosterior

    def space(self, name: str, model: Model, sampling: Sampling, *, seed: int) -> Subspace:
        """Return a subspace.

        Random directions have the average length of the first two principal components, as in the authors' code, so
        that s has the same meaning in both.

        Args:
            name: random, PCA or curve.
            model: the model to infer in, of the same network.
            sampling: rank and scales.
            seed: of random directions.
        """
        if name == CURVE:
            return of_curve(self.curve, model, scale=sampling.curve_scale)
        components = Subspace.of(self.swag, rank=sampling.rank, prior_scale=sampling.scale, model=model)
        if name == PCA:
            return components
        assert name == RANDOM, name
        length = float(components.basis_RD[:2].norm(dim=1).mean())
        scale = length * sampling.scale
        return Subspace.random(model, components.origin_D, sampling.rank, seed=seed, prior_scale=scale)


def of_curve(curve: CurvePosterior, model: Model, *, scale: float) -> Subspace:
    r"""Return the plane through the ends of a curve and its middle, of which their mean is the origin.

    With v the distance of the middle from the line through the ends, the authors' directions are (w₂ − w₁)/√3 and one
    of length v/1.5 orthogonal to it. Where the middle lies over that of the line, these are 2/√3 standard deviations
    of the three points, which are |w₂ − w₁|/2 and v/√3, divisor 2: the lengths that `Subspace.spanned` gives.

    Args:
        curve: of one member.
        model: the model to infer in.
        scale: s, in the authors' units.
    """
    points_3D = curve.weights(torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64))[:, 0]
    return Subspace.spanned(model, points_3D, 2, prior_scale=scale * 2 / math.sqrt(3))
