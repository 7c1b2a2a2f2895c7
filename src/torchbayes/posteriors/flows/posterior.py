"""Posteriors whose draws are functions of normals: normalising flows, and normals with random multipliers.

A normalising flow over the weights is w = μ + σ ∘ f(ε), ε ~ N(0, I), with f an invertible map that is learned:

    log q(w) = log N(ε; 0, I) − Σ log σ − log |det ∂f/∂ε|,    ε = f⁻¹((w − μ)/σ)

(Rezende and Mohamed 2015). With f the identity it is a normal distribution of independent weights. Multiplicative
normalising flows draw multipliers first, then weights given the multipliers:

    q(w) = ∫ q(w | z) q(z) dz,    w = z ∘ M + σ ∘ ε    (Louizos and Welling 2017)

Draws are exact. The density is an integral over all multipliers; training uses a bound on it.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, Self, get_args

import torch
from torch import Tensor

from torchbayes.checks import check_choice, check_counts, check_memory, check_tensor, seen
from torchbayes.model.layout import Layout
from torchbayes.model.model import Model
from torchbayes.posteriors.flows.multipliers import Multipliers, multiplied
from torchbayes.posteriors.flows.neural import Neural
from torchbayes.posteriors.flows.simple import Flow, Planar, Radial
from torchbayes.posteriors.functions import check_weights
from torchbayes.posteriors.posterior import Posterior, normals, own_fields, readable
from torchbayes.posteriors.problems import is_finite

Transform = Literal["planar", "radial", "realnvp", "iaf", "spline"]
TRANSFORMS = get_args(Transform)
SIMPLE = ("planar", "radial")
_FLOW = "flow."


def flow_of(transform: Transform, size: int, *, layers: int, hidden: int, bins: int) -> Flow:
    """Return a flow of `layers` maps over D = `size` numbers; their networks have `hidden` units, splines `bins` bins.

    A ValueError if it needs a package that is not installed, or there is no such flow over so many numbers.
    """
    if transform == "planar":
        return Planar(size, layers)
    if transform == "radial":
        return Radial(size, layers)
    return Neural(size, layers, transform, hidden, bins)


@dataclass(frozen=True, repr=False)
class Transformed(Posterior):
    """Base of posteriors whose draws are functions of normals, with means, scales and the parameters of flows.

    Further fields of a kind are its settings.
    """

    mean_MD: Tensor
    scale_MD: Tensor
    flow_MP: Tensor

    @property
    def members(self) -> int:
        return len(self.mean_MD)

    @classmethod
    @abstractmethod
    def layout_of(cls, model: Model, settings: Mapping[str, Any]) -> Layout:
        """Return names and shapes of the parameters of the flows of one member, `flow_MP`."""

    def tensors(self) -> dict[str, Tensor]:
        parts = self.layout_of(self.model, self.settings()).split(self.flow_MP)
        return {"mean_MD": self.mean_MD, "scale_MD": self.scale_MD, **{_FLOW + name: t for name, t in parts.items()}}

    def settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in own_fields(type(self))[3:]}

    @classmethod
    def restore(cls, model: Model, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        settings = {name: settings[name] for name in own_fields(cls)[3:]}
        stored = {name.removeprefix(_FLOW): t for name, t in tensors.items() if name.startswith(_FLOW)}
        flow_MP = _joined(cls.layout_of(model, settings), stored)
        return cls(model, tensors["mean_MD"], tensors["scale_MD"], flow_MP, **settings)


@readable
@dataclass(frozen=True, repr=False)
class FlowPosterior(Transformed):
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

    transform: Transform
    layers: int
    hidden: int = 32
    bins: int = 8

    kind = "flow"

    def __post_init__(self) -> None:
        check_choice(TRANSFORMS, transform=self.transform)
        check_counts(layers=self.layers, hidden=self.hidden)
        check_counts(least=2, bins=self.bins)
        _check_parts(self, f"the parameters of {self.layers} {self.transform} maps")

    @classmethod
    def layout_of(cls, model: Model, settings: Mapping[str, Any]) -> Layout:
        if settings["transform"] not in TRANSFORMS:
            raise ValueError(
                f"the file holds a flow {settings['transform']!r}; known are {', '.join(TRANSFORMS)}. Upgrade "
                f"torchbayes to read it."
            )
        return flow_of(size=model.layout.size, **settings).layout

    @property
    def flow(self) -> Flow:
        """The map f."""
        return flow_of(size=self.mean_MD.shape[-1], **self.settings())

    def sample(self, draws: int, *, seed: int = 0) -> Tensor:
        draws = self.check_draws(draws)
        noise = normals(seed, draws, self.mean_MD.shape[-1], like=self.mean_MD)
        with torch.no_grad():
            points_MSD, _ = self.flow.forward(self.flow_MP, _by_member(noise, self.members))
        return _together(self.mean_MD.unsqueeze(1) + self.scale_MD.unsqueeze(1) * points_MSD)

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


@readable
@dataclass(frozen=True, repr=False)
class MNFPosterior(Transformed):
    """q(w) = (1/M) Σ_m ∫ q_m(w | z) q_m(z) dz.

    Attributes:
        mean_MD: means of the weights where multipliers are 1.
        scale_MD: σ, standard deviations given the multipliers.
        flow_MP: parameters of the multipliers, and of the auxiliary distribution that training needs.
        layers: steps of each flow.
        hidden: units of each step.
    """

    layers: int = 2
    hidden: int = 50

    kind = "mnf"

    def __post_init__(self) -> None:
        check_counts(layers=self.layers, hidden=self.hidden)
        _check_parts(self, "the parameters of the multipliers of this network")

    @classmethod
    def layout_of(cls, model: Model, settings: Mapping[str, Any]) -> Layout:
        return Multipliers(multiplied(model), model.layout.size, settings["layers"], settings["hidden"]).layout

    @property
    def multipliers(self) -> Multipliers:
        """The distribution of the multipliers."""
        return Multipliers(multiplied(self.model), self.model.layout.size, self.layers, self.hidden)

    def sample(self, draws: int, *, seed: int = 0) -> Tensor:
        draws, multipliers = self.check_draws(draws), self.multipliers
        noise = _by_member(normals(seed, draws, multipliers.noise_size, like=self.mean_MD), self.members)
        with torch.no_grad():
            return _together(multipliers.draw(self.mean_MD, self.scale_MD, self.flow_MP, noise_MSE=noise).weights_MSD)

    def log_prob(self, weights: Tensor) -> NoReturn:
        """Refuse, because log q(w) is an integral over all multipliers.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            "the posterior of `MNF` has no density that can be computed: it is an integral over all multipliers, of "
            "which training knows a bound. Draw from it; or fit `NormalizingFlow` or `VI`, whose densities are exact."
        )


def _check_parts(posterior: Transformed, parameters: str) -> None:
    """Check the shapes of means, scales and parameters of flows; `parameters` says in a message which they are.

    A ValueError if shapes do not fit or a scale is not positive.
    """
    mean_MD, scale_MD, flow_MP = posterior.mean_MD, posterior.scale_MD, posterior.flow_MP
    check_weights(posterior.model, "M", mean_MD=mean_MD, scale_MD=scale_MD)
    check_tensor("M", "P", flow_MP=flow_MP)
    size = posterior.layout_of(posterior.model, posterior.settings()).size
    if scale_MD.shape != mean_MD.shape or flow_MP.shape != (len(mean_MD), size):
        raise ValueError(
            f"`scale_MD` must have the shape {tuple(mean_MD.shape)} of `mean_MD`, and `flow_MP` {parameters}, {size:,} "
            f"for each member; got {tuple(scale_MD.shape)} and {tuple(flow_MP.shape)}."
        )
    if not flow_MP.is_floating_point() or not is_finite(flow_MP):
        raise ValueError(f"`flow_MP` must be finite numbers in floating point; got {flow_MP.dtype}.")
    if bool((scale_MD <= 0).any()):
        raise ValueError(f"`scale_MD` must be positive; got {float(scale_MD.min()):g}.")


def _by_member(noise: Tensor, members: int) -> Tensor:
    """Return rows (S M, E), where row s belongs to member s mod M, as (M, S, E)."""
    return noise.view(-1, members, noise.shape[-1]).transpose(0, 1)


def _together(weights_MSD: Tensor) -> Tensor:
    """Return draws of members as rows (S M, D), where row s is from member s mod M."""
    return weights_MSD.transpose(0, 1).flatten(0, 1)


def _joined(layout: Layout, stored: Mapping[str, Tensor]) -> Tensor:
    """Return the flat parameters (M, P) of named tensors of a file; a ValueError if they do not have this layout."""
    ordered = {name: stored[name] for name in layout.names if name in stored} | dict(stored)  # files are sorted by name
    faults = layout.differences(Layout({name: tuple(tensor.shape[1:]) for name, tensor in ordered.items()}))
    if faults:
        raise ValueError(
            f"the file's parameters are not those of its flow: {'; '.join(faults[:3])}. It was written by another "
            f"version of torchbayes or zuko. Fit again, or install that version."
        )
    return layout.join(ordered)
