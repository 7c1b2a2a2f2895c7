r"""Subspaces of the weights: a network as a function of a few coordinates (Izmailov et al. 2019).

An affine subspace holds the weights o + z P, with an origin o and R directions, the rows of P. The coordinates u are
those in which the model's normal prior N(m, S), conditioned on the subspace, is standard normal:

    A = P S⁻¹ Pᵀ = L Lᵀ,    w = o + (m' + u L⁻¹) P,    m' = (m − o) S⁻¹ Pᵀ A⁻¹,    u ~ N(0, I)

so the prior stays that of the model, and all directions have a similar scale. Learned parameters of the likelihood are
not weights of the network: they remain separate coordinates, after u.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial, reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from torchbayes.checks import as_seed, check_kind, check_tensor, whole
from torchbayes.model.model import Model, having
from torchbayes.model.network import Buffers, Network
from torchbayes.model.priors import Normal
from torchbayes.model.priors.joint import Joint
from torchbayes.native.seeds import Purpose, generator

NETWORK = "network."


class Reduced(nn.Module):
    """A network as a function of coordinates in a subspace of its random weights.

    Attributes:
        coordinates: u, the one random parameter.
        network: the network, whose random parameters are computed from the coordinates at every call.
        derived: names of those parameters; their modules follow training mode, like those of random parameters.
    """

    def __init__(self, module: nn.Module, place: Callable[[Tensor], dict[str, Tensor]], start_R: Tensor) -> None:
        """Put a network and the coordinates together.

        Args:
            module: the network.
            place: coordinates -> the network's random parameters by name.
            start_R: coordinates to begin with.
        """
        super().__init__()
        self.coordinates = nn.Parameter(start_R.clone())
        self.network = module
        self._place = place
        self.derived = tuple(NETWORK + name for name in place(start_R))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the network's outputs at the weights that the coordinates stand for."""
        return functional_call(self.network, self._place(self.coordinates), args, kwargs)


class Subspace:
    """An affine subspace of a network's random weights, for any method: `fit(model, data, method, space=subspace)`.

    Attributes:
        whole: the model over all weights.
        origin_D: weights at which coordinates are those of `start`.
        basis_RD: P.
        rank: R.
    """

    def __init__(self, model: Model, origin: Tensor, basis_RD: Tensor) -> None:
        """Describe the subspace.

        Args:
            model: the model, with a normal prior.
            origin: o, the random weights of the network, (D,); learned parameters of the likelihood may follow.
            basis_RD: P, R linearly independent directions (R, D); columns after the network's D weights are ignored.

        Raises:
            TypeError: if an argument is of another kind.
            ValueError: if shapes do not fit the network, a number is not finite, directions are linearly dependent, or
                the prior has no precision along one of them.
        """
        check_tensor("D", origin=origin)
        check_tensor("R", "D", basis_RD=basis_RD)
        size = _check_weights(model, origin=origin, basis_RD=basis_RD)
        self.whole, network = model, model.network
        held = (t[..., :size].detach().to(network.device, network.dtype) for t in (origin, basis_RD))
        self.origin_D, self.basis_RD = held
        self.rank = len(basis_RD)
        self._set_axes(model.prior.locs()[:size].to(network.device))

    def _set_axes(self, loc_D: Tensor) -> None:
        """Find origin and directions of the coordinates u.

        Raises:
            ValueError: if the prior is improper along a direction, or the directions are linearly dependent.
        """
        origin_D, basis_RD = self.origin_D.double(), self.basis_RD.double()
        weighted_RD = _precise(self.whole, basis_RD)
        gram_RR = weighted_RD @ basis_RD.T
        lower_RR, failed = torch.linalg.cholesky_ex(gram_RR)
        relative_R = lower_RR.diagonal().square() / gram_RR.diagonal()
        if int(failed) or not (relative_R > 1e-12).all():
            raise ValueError(
                f"the {self.rank} rows of `basis_RD` must be linearly independent, with a proper prior along each of "
                f"them. Leave out rows that are combinations of others; use priors.Normal."
            )
        shift_R = torch.cholesky_solve((weighted_RD @ (loc_D - origin_D)).unsqueeze(-1), lower_RR)[:, 0]
        axes_RD = torch.linalg.solve_triangular(lower_RR, basis_RD, upper=False)
        self._weighted_RD = torch.linalg.solve_triangular(lower_RR, weighted_RD, upper=False)
        self._centre_D, self._axes_RD = (t.to(self.basis_RD) for t in (origin_D + shift_R @ basis_RD, axes_RD))

    @classmethod
    def random(cls, model: Model, origin: Tensor, rank: int, *, seed: int = 0) -> Subspace:
        """Return a subspace through an origin, along directions drawn at random.

        Args:
            model: the model.
            origin: weights of the network.
            rank: R.
            seed: seed of the directions.

        Returns:
            The subspace.
        """
        shape = (whole("rank", rank), _check_weights(model))
        drawn = torch.randn(shape, generator=generator(Purpose.SUBSPACE, as_seed(seed)), dtype=torch.float64)
        return cls(model, origin, drawn / shape[1] ** 0.5)

    @classmethod
    def spanned(cls, model: Model, weights_SD: Tensor, rank: int) -> Subspace:
        """Return the subspace through the mean of weights, along their principal components.

        Args:
            model: the model.
            weights_SD: snapshots of a trajectory, draws, or members.
            rank: R, fewer than there are weights.

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
        if not lengths[rank - 1] > 1e-6 * lengths[0]:
            raise ValueError(
                f"`weights_SD` must vary along {rank} directions or more; got shape {tuple(weights_SD.shape)}, which "
                f"varies along fewer. Lower `rank`, or give other weights."
            )
        scale = (len(weights_SD) - 1) ** 0.5
        return cls(model, mean_D, lengths[:rank, None] / scale * rows[:rank])

    @cached_property
    def model(self) -> Model:
        """The model over the coordinates: as over the weights, but with the prior u ~ N(0, I)."""
        make = partial(Reduced, self.whole.network.module, self._place, self.coordinates(self.origin_D))
        whole = self.whole.network
        network = Network(make, "coordinates", class_axis=whole.class_axis)
        network.precision = replace(network.precision, inputs=whole.precision.inputs)
        return having(
            self.whole,
            network=network,
            prior={"coordinates": Normal()},
        )

    @cached_property
    def checksum(self) -> str:
        """A hexadecimal checksum by which a resumed run recognises its subspace."""
        parts = (
            tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes() for tensor in (self.origin_D, self.basis_RD)
        )
        return f"{reduce(lambda before, part: zlib.crc32(part, before), parts, 0):08x}"

    def __deepcopy__(self, memo: dict[int, Any]) -> Subspace:
        """Return itself: it is immutable, and held by modules that are copied."""
        return self

    def lift(self, coordinates: Tensor) -> Tensor:
        """Return the weights (..., D) at coordinates (..., R); learned parameters of the likelihood follow both."""
        own, rest = coordinates[..., : self.rank], coordinates[..., self.rank :]
        return torch.cat([self._centre_D + own @ self._axes_RD, rest], dim=-1)

    def coordinates(self, weights: Tensor) -> Tensor:
        """Return the coordinates (..., R) of the point nearest to weights (..., D), in the metric of the prior."""
        size = len(self._centre_D)
        own, rest = weights[..., :size], weights[..., size:]
        found = (own.double() - self._centre_D.double()) @ self._weighted_RD.T
        return torch.cat([found.to(own), rest], dim=-1)

    def lowered(self, buffers: Buffers) -> Buffers:
        """Return buffers of the network under the names that they have in the model over the coordinates."""
        return {NETWORK + name: buffer for name, buffer in buffers.items()}

    def lifted(self, buffers: Buffers) -> Buffers:
        """Return buffers of the model over the coordinates under the network's own names."""
        return {name.removeprefix(NETWORK): buffer for name, buffer in buffers.items()}

    def _place(self, coordinates_R: Tensor) -> dict[str, Tensor]:
        network = self.whole.network
        views = network.mask.fill(network.layout.split(self._centre_D + coordinates_R @ self._axes_RD))
        return dict(network.precision.cast(views))


def _check_weights(model: Model, **weights: Tensor) -> int:
    """Return the number of the network's random weights, after checking rows of weights against it.

    Raises:
        ValueError: if a tensor has the wrong number of columns, no rows, or numbers that are not finite.
    """
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
    """Return P S⁻¹.

    Raises:
        ValueError: if the prior is not normal.
    """
    joint, size = model.prior.segments[0].prior, basis_RD.shape[1]
    if isinstance(joint, Joint) and size == len(joint.loc_D):
        return joint.covariance.solve(basis_RD.to(joint.loc_D).unsqueeze(1))[:, 0].double()
    own = [segment.prior for segment in model.prior.segments if segment.where.start < size]
    if not all(isinstance(prior, Normal) for prior in own):
        raise ValueError(
            "a subspace takes the model's prior along its directions, which must be normal, and if it correlates "
            "weights, without learned parameters of the likelihood. Use priors.Normal."
        )
    return basis_RD / model.prior.stds()[:size].to(basis_RD).square()
