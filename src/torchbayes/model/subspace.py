"""Subspaces of the weights: a network as a function of a few coordinates (Izmailov et al. 2019).

An affine subspace holds the weights o + z P, with an origin o and R directions, the rows of P. In the coordinates u the
model's normal prior N(m, S), conditioned on the subspace, is standard normal:

    A = P S⁻¹ Pᵀ = L Lᵀ,    w = o + (m' + u L⁻¹) P,    m' = (m − o) S⁻¹ Pᵀ A⁻¹,    u ~ N(0, I)

So the prior stays that of the model, and all directions have a similar scale. With a prior scale s, whatever the
model's prior, z ~ N(0, s² I) and w = o + s u P, as in the paper. The directions then have the lengths of the rows of P,
which are one standard deviation of a trajectory if they are its principal components. Learned parameters of the
likelihood are not weights of the network: they remain separate coordinates, after u.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from functools import cached_property, partial, reduce
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from torchbayes.checks import as_seed, check_kind, check_positive, check_tensor, optional, seen, whole
from torchbayes.model.layout import Layout
from torchbayes.model.model import Model, having
from torchbayes.model.network import Buffers, Network
from torchbayes.model.priors import Normal
from torchbayes.model.priors.joint import Joint
from torchbayes.native.process import outside_autocast, undisturbed
from torchbayes.randomness.seeds import Purpose, generator

NETWORK = "network."


class Reduced(nn.Module):
    """A network as a function of the coordinates u in a subspace of its random weights; u is its one random parameter.

    The parameters of `network` named in `derived` are computed from u at every call. Their modules follow training
    mode, as those of random parameters do.
    """

    def __init__(self, space: Subspace) -> None:
        """Start at the coordinates of the subspace's origin."""
        super().__init__()
        self.coordinates = nn.Parameter(space.coordinates(space.origin_D))
        self.network, self.space = space.whole.network.module, space
        self.derived = tuple(NETWORK + name for name in space.whole.network.layout.names)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the network's outputs at the weights that the coordinates stand for."""
        network = self.space.whole.network
        with outside_autocast():  # weights are those of the coordinates to float32, as without a subspace
            views = network.mask.fill(network.layout.split(self.space.lift(self.coordinates)))
        return functional_call(self.network, dict(network.precision.cast(views)), args, kwargs)


class Subspace:
    """An affine subspace of a network's random weights, for any method: `fit(model, data, method, space=subspace)`.

    Attributes:
        whole: the model over all weights.
        origin_D: o, the weights at the coordinates where a fit starts.
        basis_RD: P.
        centre_D: weights at u = 0.
        axes_RD: factor of u: w = centre + u axes.
        rank: R.
        prior_scale: s; None for the model's prior.
    """

    def __init__(self, model: Model, origin: Tensor, basis_RD: Tensor, *, prior_scale: float | None = None) -> None:
        """Describe the subspace.

        Args:
            model: the model, with a normal prior unless `prior_scale` is given.
            origin: o, the random weights of the network, (D,); learned parameters of the likelihood may follow.
            basis_RD: P, R linearly independent directions (R, D); columns after the network's D weights are ignored.
            prior_scale: s, standard deviation of the coordinates z of w = o + z P: their prior N(0, s² I) replaces the
                model's. None keeps the model's.

        Raises:
            TypeError: if an argument is of another kind.
            ValueError: if shapes do not fit the network, a number is not finite, directions are linearly dependent, or
                the prior has no precision along one of them.
        """
        check_tensor("D", origin=origin)
        check_tensor("R", "D", basis_RD=basis_RD)
        optional(check_positive, prior_scale=prior_scale)
        size = _check_weights(model, origin=origin, basis_RD=basis_RD)
        self.whole, network = model, model.network
        placed = (t[..., :size].detach().to(network.device, network.dtype) for t in (origin, basis_RD))
        self.origin_D, self.basis_RD = placed
        self.rank, self.prior_scale = len(basis_RD), prior_scale
        centre_D, axes_RD, self._weighted_RD = _axes(model, self.origin_D, self.basis_RD, prior_scale)
        self.centre_D, self.axes_RD = (t.to(self.basis_RD) for t in (centre_D, axes_RD))

    @classmethod
    @undisturbed
    def random(
        cls, model: Model, origin: Tensor, rank: int, *, seed: int = 0, prior_scale: float | None = None
    ) -> Subspace:
        """Return a subspace through an origin, along directions drawn at random, each of length about 1.

        Args:
            model: the model.
            origin: weights of the network.
            rank: R.
            seed: seed of the directions.
            prior_scale: s, as above.

        Raises:
            ValueError: if there are more directions than weights.
        """
        shape = (whole("rank", rank), _check_weights(model))
        if rank > shape[1]:
            raise ValueError(f"`rank` must be at most the {shape[1]} random weights of the network; got {rank}.")
        drawn = torch.randn(shape, generator=generator(Purpose.SUBSPACE, as_seed(seed)), dtype=torch.float64)
        return cls(model, origin, drawn / shape[1] ** 0.5, prior_scale=prior_scale)

    @classmethod
    @undisturbed
    def of(
        cls, posterior: Spread, *, rank: int = 5, prior_scale: float | None = None, model: Model | None = None
    ) -> Subspace:
        """Return the subspace through the mean of a posterior, along its principal components.

        These are the components of its low-rank part if it has one, as SWAG does, whose low-rank part holds the last
        deviations of a trajectory. Several such members have the components of

            (1/M) Σ_m (F_mᵀ F_m + (μ_m − μ)(μ_m − μ)ᵀ)

        without the diagonals of their covariances. Any other posterior has those of its members, if it is a point mass
        at each, or those of draws: for a sampler, of all draws that it made. A curve spans a plane.

        Args:
            posterior: any posterior over all weights, such as that of a run.
            rank: R.
            prior_scale: s, as above: 1 is about the spread of the posterior.
            model: the model of the subspace, if not the posterior's: the same network at another temperature, or with
                another prior.

        Returns:
            The subspace; the length of a direction is the posterior's standard deviation along it, as far as these
                components show it.

        Raises:
            ValueError: if the posterior spans fewer directions, such as a single point mass.
            TypeError: if it is no posterior, such as the directory of a run.
        """
        if not all(hasattr(posterior, name) for name in ("model", "sample", "tensors")):
            raise TypeError(
                f"`posterior` must be a posterior, as `fit` returns it; got {seen(posterior)}. Of a run that has been "
                f"saved, give `load('RUN/posterior.safetensors', model)`."
            )
        landmarks_SD = _landmarks(posterior, whole("rank", rank))
        return cls.spanned(posterior.model if model is None else model, landmarks_SD, rank, prior_scale=prior_scale)

    @classmethod
    @undisturbed
    def spanned(cls, model: Model, weights_SD: Tensor, rank: int, *, prior_scale: float | None = None) -> Subspace:
        """Return the subspace through the mean of weights, along their principal components.

        Args:
            model: the model.
            weights_SD: snapshots of a trajectory, draws, or members.
            rank: R, less than the number of rows.
            prior_scale: s, as above.

        Returns:
            The subspace; the length of a direction is the standard deviation along it.

        Raises:
            ValueError: if there are not more rows of weights than directions, or they span fewer directions.
        """
        check_tensor("S", "D", weights_SD=weights_SD)
        _check_weights(model, weights_SD=weights_SD)
        if not 1 <= whole("rank", rank) < len(weights_SD):
            raise ValueError(
                f"`rank` must lie in 1..{len(weights_SD) - 1} for {len(weights_SD)} sets of weights; got {rank}."
            )
        mean_D = weights_SD.double().mean(0)
        _, lengths, rows = torch.linalg.svd(weights_SD.double() - mean_D, full_matrices=False)
        size = torch.linalg.vector_norm(weights_SD.double(), dim=1).max()
        varied = int((lengths > torch.maximum(1e-6 * lengths[0], 1e-9 * size)).sum())
        if rank > varied:
            advice = f"Lower it to {varied}, or give" if varied else "Give"
            raise ValueError(
                f"`rank` must be at most the number of directions along which the weights vary, {varied}; got {rank}. "
                f"{advice} weights (`weights_SD`) that differ more."
            )
        scale = (len(weights_SD) - 1) ** 0.5
        return cls(model, mean_D, lengths[:rank, None] / scale * rows[:rank], prior_scale=prior_scale)

    @cached_property
    def model(self) -> Model:
        """The model over the coordinates: as over the weights, but with the prior u ~ N(0, I)."""
        whole = self.whole.network
        network = Network(partial(Reduced, self), "coordinates", class_axis=whole.class_axis)
        network.precision = replace(network.precision, inputs=whole.precision.inputs, autocast=whole.precision.autocast)
        return having(
            self.whole,
            network=network,
            prior={"coordinates": Normal()},
        )

    @cached_property
    def checksum(self) -> str:
        """A hexadecimal checksum by which a resumed run recognises its subspace."""
        contents = (
            tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes() for tensor in (self.origin_D, self.basis_RD)
        )
        scale = b"" if self.prior_scale is None else repr(self.prior_scale).encode()
        return f"{reduce(lambda before, part: zlib.crc32(part, before), (*contents, scale), 0):08x}"

    def __deepcopy__(self, memo: dict[int, Any]) -> Subspace:
        """Return itself: it is immutable, and held by modules that are copied."""
        return self

    def lift(self, coordinates: Tensor) -> Tensor:
        """Return the weights (..., D) at coordinates (..., R); learned parameters of the likelihood follow both."""
        coordinates_R, learned = coordinates[..., : self.rank], coordinates[..., self.rank :]
        weights = self.centre_D + coordinates_R @ self.axes_RD
        return torch.cat([weights, learned], dim=-1) if learned.shape[-1] else weights

    def coordinates(self, weights: Tensor) -> Tensor:
        """Return the coordinates (..., R) of the point nearest to weights (..., D), in the metric of the prior.

        With `prior_scale` the metric is Euclidean.
        """
        size = len(self.centre_D)
        network_weights, learned = weights[..., :size], weights[..., size:]
        coordinates_R = (network_weights.double() - self.centre_D.double()) @ self._weighted_RD.T
        return torch.cat([coordinates_R.to(network_weights), learned], dim=-1)

    def lowered(self, buffers: Buffers) -> Buffers:
        """Return buffers of the network under the names that they have in the model over the coordinates."""
        return {NETWORK + name: buffer for name, buffer in buffers.items()}

    def lifted(self, buffers: Buffers) -> Buffers:
        """Return buffers of the model over the coordinates under the network's own names."""
        return {name.removeprefix(NETWORK): buffer for name, buffer in buffers.items()}


class Spread(Protocol):
    """The part of a posterior that `Subspace.of` needs."""

    @property
    def model(self) -> Model:
        """The model."""
        ...

    @property
    def default_draws(self) -> int:
        """Draws that show it well."""
        ...

    def sample(self, draws: int, *, seed: int = 0) -> Tensor:
        """Return weights, (S, D)."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Return its tensors by name."""
        ...


def space_of(model: Model) -> Subspace | None:
    """Return the subspace whose coordinates a model is over; None if it is over weights."""
    module = model.network.module
    return module.space if isinstance(module, Reduced) else None


def in_parameters(space: Subspace) -> tuple[Layout, Tensor, Tensor]:
    """Return the subspace in all E parameters of its network, of which those that are not random are constant.

    It is the layout of the parameters, w at u = 0, (E,), and the axes, (R, E).
    """
    network = space.whole.network
    if not network.constants and not network.mask.indices:
        return network.layout, space.centre_D, space.axes_RD
    layout = Layout({name: tuple(parameter.shape) for name, parameter in network.module.named_parameters()})

    def filled(weights_D: Tensor) -> Tensor:
        views = {**network.constants, **network.mask.fill(network.layout.split(weights_D))}
        return layout.join(views).to(weights_D)

    nothing_E = filled(torch.zeros_like(space.centre_D))
    return layout, filled(space.centre_D), torch.stack([filled(axis_D) - nothing_E for axis_D in space.axes_RD])


def having_model(space: Subspace, model: Model) -> Subspace:
    """Return the same subspace of another model of the same network."""
    return Subspace(model, space.origin_D, space.basis_RD, prior_scale=space.prior_scale)


def _landmarks(posterior: Spread, rank: int) -> Tensor:
    """Return weights (S, D) with the mean and the principal components of a posterior."""
    tensors = posterior.tensors()
    factor_MRD = tensors.get("covariance.factor_MRD")
    if factor_MRD is None:
        count = posterior.default_draws
        return posterior.sample(count * -(-(rank + 1) // count))
    means_MD, count = tensors["mean_MD"].double(), 2 * factor_MRD.shape[0] * factor_MRD.shape[1]
    centre_D, spread_MRD = means_MD.mean(0), factor_MRD.shape[1] ** 0.5 * factor_MRD
    away_MRD = (means_MD - centre_D).unsqueeze(1)
    rows_SD = torch.cat([away_MRD + spread_MRD, away_MRD - spread_MRD]).flatten(0, 1)
    return centre_D + (1 - 1 / count) ** 0.5 * rows_SD  # the divisor S − 1 then gives the mixture's covariance


def _axes(model: Model, origin_D: Tensor, basis_RD: Tensor, prior_scale: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return centre and axes of the coordinates u, and the rows that map weights to u, in float64.

    It raises ValueError if the prior is improper along a direction, or the directions are linearly dependent.
    """
    origin_D, basis_RD = origin_D.double(), basis_RD.double()
    weighted_RD = basis_RD if prior_scale is not None else _precise(model, basis_RD)
    gram_RR = weighted_RD @ basis_RD.T
    lower_RR, failed = torch.linalg.cholesky_ex(gram_RR)
    relative_R = lower_RR.diagonal().square() / gram_RR.diagonal()
    if int(failed) or not (relative_R > 1e-12).all():
        raise ValueError(
            f"the {len(basis_RD)} rows of `basis_RD` must be linearly independent, with a proper prior along each of "
            f"them. Leave out rows that are combinations of others; use priors.Normal, or give `prior_scale`."
        )
    if prior_scale is not None:
        return origin_D, prior_scale * basis_RD, torch.cholesky_solve(weighted_RD, lower_RR) / prior_scale
    loc_D = model.prior.locs()[: len(origin_D)].to(origin_D.device)
    shift_R = torch.cholesky_solve((weighted_RD @ (loc_D - origin_D)).unsqueeze(-1), lower_RR)[:, 0]
    axes_RD = torch.linalg.solve_triangular(lower_RR, basis_RD, upper=False)
    weighted_RD = torch.linalg.solve_triangular(lower_RR, weighted_RD, upper=False)
    return origin_D + shift_R @ basis_RD, axes_RD, weighted_RD


def _check_weights(model: Model, **weights: Tensor) -> int:
    """Return D, after checking rows of weights: number of columns, at least one row, finite numbers."""
    check_kind(Model, "a Model", model=model)
    size = model.network.layout.size
    for name, tensor in weights.items():
        if tensor.shape[-1] not in {size, model.layout.size} or not len(tensor):
            raise ValueError(
                f"`{name}` must have {size} columns, the network's random weights; got shape {tuple(tensor.shape)}."
            )
        if not torch.isfinite(tensor).all():
            raise ValueError(f"`{name}` must be finite; it holds NaN or infinite values. Leave those weights out.")
    return size


def _precise(model: Model, basis_RD: Tensor) -> Tensor:
    """Return P S⁻¹; ValueError if the prior is not normal."""
    size, blocks = basis_RD.shape[1], []
    for segment in model.prior.segments:
        prior, basis_columns = segment.prior, basis_RD[:, segment.where]
        if segment.where.start >= size:
            continue
        if isinstance(prior, Normal):
            blocks.append(basis_columns / prior.scale**2)
        elif isinstance(prior, Joint) and segment.where.stop <= size:
            blocks.append(prior.covariance.solve(basis_columns.to(prior.loc_D).unsqueeze(1))[:, 0].to(basis_RD))
        else:
            raise ValueError(
                "a subspace takes the model's prior along its directions, which must be normal, and if it correlates "
                "weights, without learned parameters of the likelihood. Use priors.Normal, or give `prior_scale`."
            )
    return torch.cat(blocks, dim=1)
