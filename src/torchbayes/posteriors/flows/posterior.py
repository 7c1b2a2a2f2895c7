"""Normalising flows over the weights: w = μ + σ ∘ f(ε), ε ~ N(0, I), with f an invertible map that is learned.

    log q(w) = log N(ε; 0, I) − Σ log σ − log |det ∂f/∂ε|,    ε = f⁻¹((w − μ)/σ)

(Rezende and Mohamed 2015). With f the identity it is a normal distribution of independent weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchbayes.checks import check_choice, check_counts, check_memory, check_tensor, seen
from torchbayes.model.layout import Layout
from torchbayes.model.model import Model
from torchbayes.posteriors.flows.flow import TRANSFORMS, Flow, Transform, flow_of
from torchbayes.posteriors.functions import check_weights
from torchbayes.posteriors.posterior import Posterior, normals, readable
from torchbayes.posteriors.problems import is_finite

FLOW = "flow."
_DRAWS = 30


@readable
@dataclass(frozen=True, repr=False)
class FlowPosterior(Posterior):
    """q(w) = (1/M) Σ_m q_m(w), each the law of w = μ_m + σ_m ∘ f_m(ε).

    Attributes:
        mean_MD: μ, the mean of w if f is the identity, but not for other maps.
        scale_MD: σ.
        flow_MP: parameters of f.
        transform: kind of f: planar, radial, realnvp, iaf or spline.
        layers: maps of which f is composed.
        hidden: units in each hidden layer of the networks of realnvp, iaf and spline.
        bins: of a spline.
    """

    mean_MD: Tensor
    scale_MD: Tensor
    flow_MP: Tensor
    transform: Transform
    layers: int
    hidden: int = 32
    bins: int = 8

    kind = "flow"

    def __post_init__(self) -> None:
        check_choice(TRANSFORMS, transform=self.transform)
        check_counts(layers=self.layers, hidden=self.hidden)
        check_counts(least=2, bins=self.bins)
        of = f"the parameters of {self.layers} {self.transform} maps"
        check_parts(self.model, self.mean_MD, self.scale_MD, flow_MP=self.flow_MP, flow=lambda: self.flow.layout, of=of)

    @property
    def flow(self) -> Flow:
        """The map f."""
        sizes = {"layers": self.layers, "hidden": self.hidden, "bins": self.bins}
        return flow_of(self.transform, self.mean_MD.shape[-1], **sizes)

    @property
    def members(self) -> int:
        return len(self.mean_MD)

    @property
    def default_draws(self) -> int:
        return -(-_DRAWS // self.members) * self.members

    def sample(self, draws: int, *, seed: int = 0) -> Tensor:
        draws = self.check_draws(draws)
        noise = normals(seed, draws, self.mean_MD.shape[-1], like=self.mean_MD)
        with torch.no_grad():
            points_MSD, _ = self.flow.forward(self.flow_MP, by_member(noise, self.members))
        return together(self.mean_MD.unsqueeze(1) + self.scale_MD.unsqueeze(1) * points_MSD)

    def log_prob(self, weights: Tensor) -> Tensor:
        """Return log q(w), the log density of the mixture, exact for any weights, float64 (...), in nats.

        Inverses have a closed form, except for `planar`, where they are found by bisection, and `iaf`, where they
        take D passes. They are computed in float64.

        Args:
            weights: tensor (..., D).

        Raises:
            ValueError: if the last axis is not D, or the numbers do not fit in memory.
        """
        size = self.mean_MD.shape[-1]
        if weights.ndim < 1 or weights.shape[-1] != size:
            raise ValueError(f"`weights` must have {size} elements on its last axis; got {seen(weights)}.")
        rows = weights.reshape(-1, size).to(self.mean_MD.device)
        count = self.members * len(rows)
        check_memory(3 * 8 * count * size, "the numbers behind the weights", rows.device, weights=len(rows))
        with torch.no_grad():
            centred_MSD = rows.double() - self.mean_MD.double().unsqueeze(1)
            points_MSD = centred_MSD / self.scale_MD.double().unsqueeze(1)
            base_MSD, log_det_MS = self.flow.inverse(self.flow_MP.double(), points_MSD)
            normal_MS = -0.5 * (base_MSD.square().sum(-1) + size * math.log(2 * math.pi))
            log_prob_MS = normal_MS - log_det_MS - self.scale_MD.double().log().sum(-1, keepdim=True)
        return (torch.logsumexp(log_prob_MS, 0) - math.log(self.members)).view(weights.shape[:-1])

    def tensors(self) -> dict[str, Tensor]:
        flow = {FLOW + name: part for name, part in self.flow.layout.split(self.flow_MP).items()}
        return {"mean_MD": self.mean_MD, "scale_MD": self.scale_MD, **flow}

    def settings(self) -> dict[str, Any]:
        return {"transform": self.transform, "layers": self.layers, "hidden": self.hidden, "bins": self.bins}

    @classmethod
    def restore(cls, model: Any, tensors: dict[str, Tensor], settings: dict[str, Any]) -> FlowPosterior:
        """Return the posterior rebuilt from what `tensors` and `settings` gave.

        Raises:
            ValueError: if there is no such flow, or the parameters are of another one.
        """
        if settings["transform"] not in TRANSFORMS:
            raise ValueError(
                f"the file holds a flow {settings['transform']!r}; known are {', '.join(TRANSFORMS)}. Upgrade "
                f"torchbayes to read it."
            )
        sizes = {name: settings[name] for name in ("layers", "hidden", "bins")}
        mean_MD, scale_MD = tensors["mean_MD"], tensors["scale_MD"]
        layout = flow_of(settings["transform"], mean_MD.shape[-1], **sizes).layout
        return cls(model, mean_MD, scale_MD, joined(layout, tensors, FLOW), settings["transform"], **sizes)


def check_parts(
    model: Model, mean_MD: Tensor, scale_MD: Tensor, *, flow_MP: Tensor, flow: Callable[[], Layout], of: str
) -> None:
    """Check the shapes of means, scales and parameters of a flow; `flow` gives their layout, `of` names them.

    A ValueError if shapes do not fit or a scale is not positive.
    """
    check_weights(model, "M", mean_MD=mean_MD, scale_MD=scale_MD)
    check_tensor("M", "P", flow_MP=flow_MP)
    size = flow().size
    if scale_MD.shape != mean_MD.shape or flow_MP.shape != (len(mean_MD), size):
        raise ValueError(
            f"`scale_MD` must have the shape {tuple(mean_MD.shape)} of `mean_MD`, and `flow_MP` {of}, {size:,} "
            f"for each member; got {tuple(scale_MD.shape)} and {tuple(flow_MP.shape)}."
        )
    if not flow_MP.is_floating_point() or not is_finite(flow_MP):
        raise ValueError(f"`flow_MP` must be finite numbers in floating point; got {flow_MP.dtype}.")
    if bool((scale_MD <= 0).any()):
        raise ValueError(f"`scale_MD` must be positive; got {float(scale_MD.min()):g}.")


def by_member(noise: Tensor, members: int) -> Tensor:
    """Return rows (S M, E), where row s belongs to member s mod M, as (M, S, E)."""
    return noise.view(-1, members, noise.shape[-1]).transpose(0, 1)


def together(weights_MSD: Tensor) -> Tensor:
    """Return draws of members as rows (S M, D), where row s is from member s mod M."""
    return weights_MSD.transpose(0, 1).flatten(0, 1)


def joined(layout: Layout, tensors: dict[str, Tensor], prefix: str) -> Tensor:
    """Return the flat parameters (M, P) of named tensors of a file; a ValueError if they do not have this layout."""
    stored = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    ordered = {name: stored[name] for name in layout.names if name in stored} | stored  # files are sorted by name
    faults = layout.differences(Layout({name: tuple(tensor.shape[1:]) for name, tensor in ordered.items()}))
    if faults:
        raise ValueError(
            f"the file's parameters are not those of its flow: {'; '.join(faults[:3])}. It was written by another "
            f"version of torchbayes or zuko. Fit again, or install that version."
        )
    return layout.join(ordered)
