"""Loss surfaces: planes in weight space, the loss on a grid over them, and the log posterior along rays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

import torch
from torch import Tensor

from torchbayes.checks import (
    as_seed,
    check_choice,
    check_counts,
    check_flags,
    check_function,
    check_kind,
    check_positive,
    optional,
    seen,
)
from torchbayes.density.density import LogDensity
from torchbayes.driver.progress import counted
from torchbayes.geometry.networks import (
    Losses,
    Networks,
    Place,
    Weights,
    as_plain,
    members_of,
    networks_of,
    one_of,
    place_of,
)
from torchbayes.geometry.volumes import normal, scaled
from torchbayes.model.model import Model
from torchbayes.model.network import Buffers
from torchbayes.native.process import undisturbed, undisturbed_methods
from torchbayes.posteriors.functions import Functions
from torchbayes.posteriors.point import Point
from torchbayes.randomness.seeds import Purpose, generator

_STACK = 2**28  # bytes of weights that are evaluated together


@undisturbed_methods
@dataclass(frozen=True)
class Plane:
    """w(a, b) = o + a û + b v̂: a plane in weight space, made by `Plane.through` or `Plane.random`.

    Attributes:
        model: the model.
        origin_D: o.
        axes_2D: û and v̂.
        marks_K2: coordinates of the networks that it goes through.
        buffers: of the network at the origin.
    """

    model: Model = field(repr=False)
    origin_D: Tensor = field(repr=False)
    axes_2D: Tensor = field(repr=False)
    marks_K2: Tensor
    buffers: Buffers = field(repr=False, default_factory=dict)

    @classmethod
    def through(cls, model: Model, networks: Networks) -> Plane:
        """Return the plane through three networks, such as the ends and the bend of a curve.

            û = (w₂ − w₁)/|w₂ − w₁|,    v̂ ∝ (w₃ − w₁) − ⟨w₃ − w₁, û⟩ û,    |v̂| = 1,    o = w₁

        Distances in the plane are those in weight space (Garipov et al. 2018).

        Args:
            model: the model.
            networks: three: a point posterior, a list of modules, or weights (3, D).

        Returns:
            The plane, with their coordinates as marks.

        Raises:
            ValueError: if there are not three networks, or they lie on a line.
            TypeError: if they are not networks.
        """
        point = members_of(model, networks, "networks")
        if point.members != 3:
            raise ValueError(
                f"`networks` must be three, which span a plane; got {point.members}. Of a curve with one bend they are "
                f"`curve.points_MPD[0]`."
            )
        first_D, second_D, third_D = point.weights_MD.double()
        across_D, up_D = second_D - first_D, third_D - first_D
        u_D = across_D / across_D.norm()
        residual_D = up_D - (up_D @ u_D) * u_D
        residual_D = residual_D - (residual_D @ u_D) * u_D  # once more: the first leaves rounding along û
        if not residual_D.norm() > 1e-6 * up_D.norm():
            raise ValueError("`networks` must not lie on a line; got three that do. Take another third network.")
        axes_2D = torch.stack([u_D, residual_D / residual_D.norm()])
        marks_K2 = torch.stack([torch.zeros_like(first_D), across_D, up_D]) @ axes_2D.T
        origin_D, buffers = networks_of(point)[0]
        return cls(model, origin_D, axes_2D.to(origin_D), marks_K2.cpu(), buffers)

    @classmethod
    def random(
        cls, model: Model, network: Networks, *, seed: int = 0, shape: Literal["filters", "sphere"] = "filters"
    ) -> Plane:
        """Return a plane around a network along two random directions.

        Args:
            model: the model.
            network: o: a module, weights (D,) or a point posterior of one member.
            seed: seed of the directions.
            shape: "filters" for directions whose filters have the norms of those of the network, so that 1 is the
                size of the weights (Li et al. 2018); "sphere" for directions of length 1 in weight space.

        Returns:
            The plane, with the network as its mark, at (0, 0).

        Raises:
            ValueError: if there is more than one network, every filter is zero, or there is only one direction
                because a single weight is random.
            TypeError: if it is not a network.
        """
        check_choice(("filters", "sphere"), shape=shape)
        origin_D, buffers = one_of(model, network, "network")
        source = generator(Purpose.SURFACE, as_seed(seed))
        normal_2D = torch.randn(2, len(origin_D), generator=source, dtype=torch.float64)
        axes_2D = scaled(model, origin_D, normal_2D, shape=shape)
        lengths = torch.linalg.svdvals(axes_2D)
        if len(lengths) < 2 or not lengths[1] > 1e-9 * lengths[0]:
            raise ValueError(
                f"a plane needs two directions; the {len(origin_D)} random weights of this network have one. Follow it "
                f"by `rays`."
            )
        return cls(model, origin_D, axes_2D.to(origin_D), torch.zeros(1, 2).double(), buffers)

    def at(self, x: float, y: float) -> Tensor:
        """Return the weights (D,) at coordinates."""
        return self.origin_D + x * self.axes_2D[0] + y * self.axes_2D[1]

    def limits(self, margin: float = 0.3) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return intervals of both coordinates around the marks; (−1, 1) around a single one.

        Args:
            margin: room on each side, as a share of the larger extent.
        """
        low, high = self.marks_K2.amin(0), self.marks_K2.amax(0)
        room = margin * float((high - low).max()) or 1.0
        (left, bottom), (right, top) = (low - room).tolist(), (high + room).tolist()
        return (left, right), (bottom, top)


@dataclass(frozen=True)
class Surface:
    """The loss on a grid over a plane.

    Attributes:
        x_P: first coordinates of the grid.
        y_Q: second coordinates.
        nll_QP: mean negative log likelihood per row, in nats, at temperature 1, float64.
        error_QP: error rate of a classification, root mean squared error of numbers; None for other likelihoods.
        kind: what the error is, "error rate", "rmse" or "".
        own_QP: values of `measure`; None without one.
        marks_K2: coordinates of the networks that the plane goes through.
    """

    x_P: Tensor = field(repr=False)
    y_Q: Tensor = field(repr=False)
    nll_QP: Tensor = field(repr=False)
    error_QP: Tensor | None = field(repr=False)
    kind: str
    own_QP: Tensor | None = field(repr=False)
    marks_K2: Tensor

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as lists of numbers, for JSON."""
        return as_plain(self)


@undisturbed
def surface(
    model: Model,
    data: Any,
    plane: Plane,
    *,
    points: int = 51,
    limits: tuple[tuple[float, float], tuple[float, float]] | None = None,
    measure: Callable[[Point], float] | None = None,
    calibration: Any = None,
    chunk_size: int = 1024,
    progress: bool = True,
) -> Surface:
    """Evaluate the loss on a grid over a plane in weight space.

        L(a, b) = −(1/N) Σ_n log p(y_n | f(x_n; o + a û + b v̂))

    Networks are evaluated one after the other, in chunks of rows: memory is that of one chunk. Batch-norm statistics
    depend on the weights, so those of `calibration` are computed anew at each point.

    Args:
        model: the model.
        data: the rows of the loss, as for `fit`.
        plane: where.
        points: of each coordinate, at least 2.
        limits: intervals of the coordinates; those of `plane.limits()` if None.
        measure: another function to evaluate, of a point posterior of one network, such as `lambda network:
            tb.evaluate(network, test).metrics["ece"]`.
        calibration: training data for batch-norm statistics; `data` if None.
        chunk_size: rows that go through a network at once.
        progress: whether progress is shown on standard error as `fit` shows it: a bar, or lines after 5 s.

    Returns:
        The values on the grid. A loss that is not finite stays NaN or infinite.

    Raises:
        ValueError: if data or plane do not fit the model, no row counts, or limits are no intervals.
        TypeError: if an argument is of the wrong type.
    """
    check_kind(Model, "a Model", model=model)
    check_kind(Plane, "a Plane, as `Plane.through` makes it", plane=plane)
    check_counts(points=points, least=2)
    check_flags(progress=progress)
    optional(check_function, "a point posterior -> a number", measure=measure)
    if plane.model.layout.differences(model.layout):
        raise ValueError("`plane` must be one of this model's weights. Make it with the same model.")
    (left, right), (bottom, top) = _checked_limits(plane.limits() if limits is None else limits)
    losses = Losses(model, data, calibration, chunk_size=chunk_size)
    x_P, y_Q = (torch.linspace(*ends, points, dtype=torch.float64) for ends in ((left, right), (bottom, top)))
    values_SC, kind = [], ""
    with counted("loss surface", points**2, unit="points", shown=progress) as advance:
        for y, x in product(y_Q.tolist(), x_P.tolist()):
            functions = losses.network(plane.at(x, y), plane.buffers)
            nll, error, kind = losses.of(functions)
            values_SC.append((nll, error, _measured(measure, functions)))
            advance(len(values_SC))
    nll_QP, error_QP, own_QP = torch.tensor(values_SC, dtype=torch.float64).T.unflatten(1, (points, points))
    return Surface(x_P, y_Q, nll_QP, error_QP if kind else None, kind, own_QP if measure else None, plane.marks_K2)


def _measured(measure: Callable[[Point], float] | None, functions: Functions) -> float:
    """Return the value of a measure for a network; 0 without a measure."""
    if measure is None:
        return 0.0
    value = measure(Point(functions.model, functions.weights_SD, statistics_known=True, buffers_M=functions.buffers_S))
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"`measure` must return a number for each network; it gave {seen(value)}.") from None


def _checked_limits(limits: Any) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the intervals of both coordinates, after checking them."""
    try:
        (left, right), (bottom, top) = ((float(a), float(b)) for a, b in limits)
    except (TypeError, ValueError):
        raise ValueError(f"`limits` must be two intervals, ((-1, 1), (-1, 1)); got {seen(limits)}.") from None
    if not (-float("inf") < left < right < float("inf") and -float("inf") < bottom < top < float("inf")):
        raise ValueError(f"`limits` must be two finite intervals, low before high; got {seen(limits)}.")
    return (left, right), (bottom, top)


@dataclass(frozen=True)
class Rays:
    """The log posterior along rays from one network.

    Attributes:
        radii_P: r, from 0 on, float64.
        log_density_KP: log p(w, D)/T along each ray, in nats, float64, with the constants of the prior.
        log_likelihood_KP: Σ log p(y|f_w(x)), in nats, at temperature 1.
    """

    radii_P: Tensor = field(repr=False)
    log_density_KP: Tensor = field(repr=False)
    log_likelihood_KP: Tensor = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as lists of numbers, for JSON."""
        return as_plain(self)


@undisturbed
def rays(
    model: Model,
    data: Any,
    weights: Weights,
    *,
    directions: int = 10,
    radius: float | None = None,
    points: int = 51,
    shape: Literal["filters", "sphere"] = "sphere",
    seed: int = 0,
) -> Rays:
    """Evaluate the log posterior along random rays from a network (Izmailov et al. 2021).

        log p(w* + r d_k, D)/T,    0 ≤ r ≤ radius,    |d_k| = 1

    The directions are uniform on the sphere. In many dimensions every such ray leaves the posterior, because each has
    components along its narrow directions. The radius at which the density has fallen shows how wide the region
    around the network is. Batch norm keeps the statistics that it has at w*. Networks go through the density in
    stacks of bounded memory.

    Args:
        model: the model.
        data: as for `fit`.
        weights: w*: a point posterior of one member, a module, or a tensor (D,).
        directions: K.
        radius: the largest r; None for the norm of the weights, or for 1 with filters.
        points: of each ray, evenly spaced, at least 2.
        shape: "sphere"; or "filters" for directions whose filters have the norms of those of the network, so that
            r is in units of such a direction (Li et al. 2018).
        seed: seed of the directions, which are those of `basin` with the same shape and number.

    Returns:
        The values; a density that is not finite stays NaN or infinite.

    Raises:
        TypeError: if an argument is of another kind, or the network computes in less than float32.
        ValueError: if data or weights do not fit, or settings are out of range.
    """
    check_counts(directions=directions)
    check_counts(points=points, least=2)
    optional(check_positive, radius=radius)
    check_choice(("sphere", "filters"), shape=shape)
    seed, place = as_seed(seed), place_of(model, data, weights)
    normal_KD = normal(place, directions, seed=seed)
    unit_KD = scaled(place.model, place.weights_D, normal_KD, shape=shape).to(place.weights_D)
    if radius is None:
        radius = 1.0 if shape == "filters" else float(place.weights_D.double().norm()) or 1.0
    radii_P = torch.linspace(0, float(radius), points, dtype=torch.float64)
    density = LogDensity(place.model, place.rows.size, place.rows)
    values_KP = [_along(density, place, radii_P.to(unit_D), unit_D) for unit_D in unit_KD]
    return Rays(radii_P, *(torch.stack(by_direction) for by_direction in zip(*values_KP, strict=True)))


def _along(density: LogDensity, place: Place, radii_P: Tensor, unit_D: Tensor) -> tuple[Tensor, Tensor]:
    """Return log density and log likelihood along a ray, float64 (P,) each, on the CPU."""
    values = []
    for part_R in radii_P.split(max(_STACK // unit_D.nbytes, 1)):
        weights_RD = place.weights_D + part_R.unsqueeze(1) * unit_D
        buffers = place.stacked(len(part_R))  # only a call with a gradient takes them
        value = density.value(weights_RD) if buffers is None else density(weights_RD, buffers=buffers)
        values.append((value.log_density.double().cpu(), value.log_likelihood.double().cpu()))
    log_density, log_likelihood = zip(*values, strict=True)
    return torch.cat(log_density), torch.cat(log_likelihood)
