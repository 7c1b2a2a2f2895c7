"""Problem: a network for the solution, unknown coefficients, and rows of what is observed, as one `Model`.

    log p(y | w, k) = Σ_i log N(y_i; q_{n(i)}(u, x_i, k), σ²_{n(i)})

Quantity q_n is what a sensor sees: the solution itself, a boundary value, a derivative, or a source, to which the
equations equate an operator of u with coefficients k. If the source is measured, σ is its noise. If an equation holds
exactly, its rows are zeros at collocation points, and σ is a tolerance: twice as many points count as twice as many
data, so keep their number over σ² fixed when it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor  # no public function says whether a tensor differs between rows of vmap

from torchbayes.checks import as_numbers, check_function, check_kind, check_name, check_positive, is_whole, seen
from torchbayes.diagnostics import rhat
from torchbayes.inverse.coefficients import Coefficient, Numbers, coefficient
from torchbayes.inverse.derivatives import Field, Function
from torchbayes.model.likelihoods import HeteroscedasticGaussian
from torchbayes.model.model import Model
from torchbayes.model.priors import Normal, PriorLike
from torchbayes.native.process import undisturbed_methods
from torchbayes.posteriors.functions import Functions
from torchbayes.posteriors.posterior import Posterior

Quantity = Callable[[Function, Tensor, Mapping[str, Any]], Tensor]
"""Solution u, points (B, d) and coefficients by name -> values (B,) or (B, K); row b depends on point b alone."""

_MANY = 1000  # draws of coefficients where there are no chains
_LEAST = 4  # draws of a chain for R-hat


class Quantities(nn.Module):
    """The network of an inverse problem: at each row one quantity, and what makes its noise.

    Its inputs are points (B, d), and for each the number of a quantity and of a column of its values, (B, 2). Its
    outputs (B, 2) are those of `likelihoods.HeteroscedasticGaussian`.
    """

    def __init__(
        self,
        network: nn.Module,
        quantities: Mapping[str, Quantity],
        unknown: Mapping[str, Coefficient],
        fields: Mapping[str, nn.Module],
        noise: Mapping[str, float | Coefficient],
    ) -> None:
        super().__init__()
        self.network, self.quantities = network, dict(quantities)
        self.coefficients, self.functions = Numbers(unknown), nn.ModuleDict(fields)
        self.scales = {name: scale for name, scale in noise.items() if isinstance(scale, float)}
        self.noise = Numbers({name: scale for name, scale in noise.items() if not isinstance(scale, float)})

    def known(self) -> dict[str, Any]:
        """Return the coefficients by name: numbers on their own scale, and functions of points."""
        return {**self.coefficients.values(), **{name: Field(part) for name, part in self.functions.items()}}

    def values(self, name: str, points: Tensor) -> Tensor:
        """Return a quantity at points, (B, K)."""
        values = self.quantities[name](Field(self.network), points, self.known())
        return values.unsqueeze(-1) if values.ndim == 1 else values

    def forward(self, points: Tensor, quantity: Tensor) -> Tensor:
        """Return value and raw variance of each row, (B, 2)."""
        which, column = quantity.unbind(-1)
        found = self._each(points, which, column) if is_batchedtensor(which) else self._sorted(points, which, column)
        return torch.stack([found, self._raw(found)[which]], dim=-1)

    def _sorted(self, points: Tensor, which: Tensor, column: Tensor) -> Tensor:
        """Return the value of each row, (B,), from rows of the same quantity together."""
        order = which.argsort(stable=True)
        counts = which.bincount(minlength=len(self.quantities)).tolist()
        parts = zip(self.quantities, points[order].split(counts), column[order].split(counts), strict=True)
        found = [_column(self.values(name, some), columns) for name, some, columns in parts if len(some)]
        return torch.cat(found)[order.argsort()]

    def _each(self, points: Tensor, which: Tensor, column: Tensor) -> Tensor:
        """Return the same where every draw of a `vmap` has rows of its own: all quantities of all rows."""
        found = [_column(self.values(name, points), column) for name in self.quantities]
        return torch.stack(found, -1).gather(-1, which.unsqueeze(-1)).squeeze(-1)

    def _raw(self, like: Tensor) -> Tensor:
        """Return r with softplus(r) = σ² for every quantity; 0 where nothing is said of its noise."""
        learned = self.noise.values()
        scales = [learned.get(name, self.scales.get(name, 1.0)) for name in self.quantities]
        variances = torch.stack([torch.as_tensor(each, dtype=like.dtype, device=like.device) for each in scales]).square()
        return variances + (-torch.expm1(-variances)).log()


def _column(values: Tensor, column: Tensor) -> Tensor:
    """Return one column of each row; the last where there is none of that number, which another quantity has."""
    return values.gather(-1, column.clamp(max=values.shape[-1] - 1).unsqueeze(-1)).squeeze(-1)


@undisturbed_methods
class Problem:
    """An inverse problem: a solution and coefficients that are unknown, and what is observed of them.

        problem = tb.inverse.Problem(
            network,
            {"u": lambda u, x, k: u(x), "source": lambda u, x, k: 0.01 * laplacian(u, x) + k["k"] * torch.tanh(u(x))},
            coefficients={"k": tb.priors.Normal(1.0, loc=0.5)},
            noise={"u": 0.1, "source": 0.1},
        )
        rows = problem.rows({"u": (sensors, measured), "source": (collocation, source)})
        posterior = tb.fit(problem.model, rows, tb.NUTS())
        problem.summary(posterior)

    Methods that choose the strength of the prior rescale that of the coefficients too: `tb.Laplace(prior="model")`
    keeps it.

    Attributes:
        model: what is fitted. Its weights are `network.*`, `coefficients.NAME`, `functions.NAME.*` and `noise.NAME`, of
            which numbers with constraints are on an unconstrained scale.
    """

    model: Model

    def __init__(
        self,
        network: nn.Module,
        quantities: Mapping[str, Quantity],
        *,
        coefficients: Mapping[str, Any] | None = None,
        noise: Mapping[str, Any],
        prior: PriorLike | Mapping[str, PriorLike] = Normal(),
    ) -> None:
        """Put solution, equations, coefficients and noise together.

        Args:
            network: u, points (B, d) -> (B, K). Stacks of linear layers and tanh are differentiated fastest.
            quantities: name -> function of u, points (B, d) and the coefficients by name, which returns values (B,) or
                (B, K): whatever is observed, or of interest. It is called with rows of other quantities too, so it must
                be finite at all points.
            coefficients: name -> prior of an unknown number: one of `torchbayes.priors`, or a torch Distribution, whose
                support is respected, such as `LogNormal(0.0, 1.0)`. Or an nn.Module: a coefficient that is a function
                of points. The quantities find all of them by name in their third argument.
            noise: name of a quantity -> standard deviation of its noise, in its units, or the torch Distribution of an
                unknown one. Quantities of which nothing is observed need none.
            prior: of the weights of the networks; or glob -> prior, with names as in `model`.

        Raises:
            TypeError: if an argument is of another kind.
            ValueError: if there are no quantities, a name is no Python name or is taken, a noise is not positive, or
                globs and weights do not match up.
        """
        check_kind(nn.Module, "an nn.Module", network=network)
        _check_names("quantities", quantities)
        if not quantities:
            raise ValueError("`quantities` must name at least one function; got none. Write {'u': lambda u, x, k: u(x)}.")
        for function in quantities.values():
            check_function("functions of u, points and coefficients, by name", quantities=function)
        coefficients = coefficients or {}
        _check_names("coefficients", coefficients)
        _check_names("noise", noise)
        for name in noise:
            check_name("quantity in `noise`", name, quantities)
        fields = {name: part for name, part in coefficients.items() if isinstance(part, nn.Module)}
        unknown = {
            name: coefficient(f"coefficients[{name!r}]", part)
            for name, part in coefficients.items()
            if name not in fields
        }
        scales = {name: _scale(name, scale) for name, scale in noise.items()}
        module = Quantities(network, quantities, unknown, fields, scales)
        like = next(chain(network.parameters(), network.buffers()), torch.zeros(()))
        for numbers in (module.coefficients, module.noise):
            numbers.to(like)
        own = {f"coefficients.{name}": each.prior for name, each in unknown.items()}
        own |= {f"noise.{name}": each.prior for name, each in module.noise.beliefs.items()}
        rules = prior if isinstance(prior, Mapping) else {"*": prior}
        self.model = Model(module, HeteroscedasticGaussian(floor=0.0), {**own, **rules})
        self._module = module

    def rows(self, observations: Mapping[str, tuple[Any, Any]]) -> tuple[dict[str, Tensor], Tensor]:
        """Return what `fit` takes: a row for every number that was observed.

        Args:
            observations: name of a quantity -> (points, values): points (n, d), or (n,) where d is 1; values (n,) or
                (n, K), or one number for all, such as the 0 of a residual. NaN stands for a value that was not
                observed.

        Returns:
            Inputs (points and numbers of quantities), and targets (N, 1).

        Raises:
            TypeError: if observations are of another kind.
            ValueError: if a name is unknown, a quantity has no noise, shapes do not fit, points or values are not
                finite, nothing is observed, or a quantity is not finite or mixes its rows.
        """
        if not isinstance(observations, Mapping) or not observations:
            raise TypeError(
                f"`observations` must be a mapping from quantities to (points, values); got {seen(observations)}."
            )
        inputs, targets = [], []
        for name, observed in observations.items():
            self._check_noisy(name)
            if not isinstance(observed, tuple | list) or len(observed) != 2:
                raise TypeError(f"`observations` of {name!r} must be a pair (points, values); got {seen(observed)}.")
            points = self._points(observed[0], f"observations[{name!r}]")
            width = self._width(name, points)
            values = as_numbers(f"observations[{name!r}]", observed[1])
            values = values.unsqueeze(-1) if values.ndim == 1 else values
            if values.ndim and values.shape != (len(points), width):
                raise ValueError(
                    f"`observations` of {name!r} must have values of shape ({len(points)}, {width}), as many as points "
                    f"and columns; got {tuple(as_numbers(name, observed[1]).shape)}."
                )
            values = values.expand(len(points), width)
            if values.isinf().any():
                raise ValueError(f"`observations` of {name!r} must be finite, or NaN where missing; got infinite ones.")
            for column in range(width):
                there = ~values[:, column].isnan()
                inputs.append(self._inputs(name, points[there], column))
                targets.append(values[there, column])
        together = {key: torch.cat([each[key] for each in inputs]) for key in inputs[0]}
        if not len(together["points"]):
            raise ValueError("`observations` hold no value that was observed; got only NaN.")
        return together, torch.cat(targets).to(together["points"]).unsqueeze(-1)

    def at(self, quantity: str, points: Any, *, column: int = 0) -> dict[str, Tensor]:
        """Return inputs at which `predict` says what a sensor would read, its noise included.

        Args:
            quantity: its name.
            points: (n, d), or (n,) where d is 1.
            column: which of its columns, where it has several.

        Raises:
            ValueError: if the name is unknown, its noise was not given, there is no such column, or points do not fit.
            TypeError: if points are no numbers.
        """
        self._check_noisy(quantity)
        points = self._points(points, "points")
        width = self._width(quantity, points)
        if not is_whole(column) or not 0 <= column < width:
            raise ValueError(f"`column` must be one of the {width} of {quantity!r}, from 0; got {seen(column)}.")
        return self._inputs(quantity, points, int(column))

    def values(
        self, posterior: Posterior | Functions, quantity: str, points: Any, *, draws: int | None = None, seed: int = 0
    ) -> Tensor:
        """Return a quantity at points for each draw from a posterior, without noise: solution, derivative or source.

        Args:
            posterior: of `model`, or functions drawn from one.
            quantity: its name; it need not be one that was observed.
            points: (n, d), or (n,) where d is 1.
            draws: S; the posterior's default if None.
            seed: seed of the draws.

        Returns:
            Tensor (S, n, K). Bands are its quantiles over the first axis.

        Raises:
            ValueError: if the name is unknown, points do not fit, or draws do not.
            TypeError: if the posterior or the points are of another kind.
        """
        functions = _functions(posterior, draws, seed)
        points = self._points(points, "points")
        width = self._width(quantity, points)
        columns = [functions(self._inputs(quantity, points, column))[..., 0] for column in range(width)]
        return torch.stack(columns, dim=-1)

    def coefficients(
        self, posterior: Posterior | Functions, *, draws: int | None = None, seed: int = 0
    ) -> dict[str, Tensor]:
        """Return draws of the unknown numbers on their own scale, name -> (S,); learned noise is `noise.NAME`.

        Args:
            posterior: of `model`, or functions drawn from one.
            draws: S; None for all draws of chains, or at least 1,000 of another posterior.
            seed: seed of the draws.

        Raises:
            ValueError: if draws do not fit the posterior.
            TypeError: if the posterior is of another kind.
        """
        if draws is None and isinstance(posterior, Posterior) and posterior.chain_length is None:
            draws = -(-_MANY // posterior.members) * posterior.members
        weights_SD = _functions(posterior, draws, seed).weights_SD
        named = self.model.layout.split(weights_SD)
        return {name: each.transform(named[f"{place}.{key}"]) for name, place, key, each in self._numbers()}

    def summary(
        self, posterior: Posterior, *, level: float = 0.95, draws: int | None = None, seed: int = 0
    ) -> dict[str, dict[str, float]]:
        """Return what is known of each unknown number.

        A coefficient whose standard deviation is that of the prior was not identified: the rows do not depend on it.

        Args:
            posterior: of `model`.
            level: probability between `low` and `high`.
            draws: as in `coefficients`.
            seed: seed of the draws.

        Returns:
            name -> mean, sd, low, high (the central interval), prior_sd (infinite where it is not known), and rhat, NaN
            where the posterior has no chains, or less than 4 draws of each.

        Raises:
            ValueError: if the level is not between 0 and 1, or draws do not fit.
            TypeError: if the posterior is of another kind.
        """
        check_positive(level=level)
        if level >= 1:
            raise ValueError(f"`level` must lie between 0 and 1; got {seen(level)}.")
        found = self.coefficients(posterior, draws=draws, seed=seed)
        sds = {name: each.sd for name, _, _, each in self._numbers()}
        chains = posterior.members if getattr(posterior, "chain_length", None) else 0
        return {name: _numbers(values, chains, level) | {"prior_sd": sds[name]} for name, values in found.items()}

    def _numbers(self) -> list[tuple[str, str, str, Coefficient]]:
        """Return name, place in the model, key there and belief of every unknown number."""
        coefficients, noise = self._module.coefficients.beliefs, self._module.noise.beliefs
        return [
            *((name, "coefficients", name, each) for name, each in coefficients.items()),
            *((f"noise.{name}", "noise", name, each) for name, each in noise.items()),
        ]

    def _check_noisy(self, name: Any) -> None:
        check_name("quantity", name, self._module.quantities)
        if name not in self._module.scales and name not in self._module.noise.beliefs:
            raise ValueError(f"`noise` says nothing of {name!r}, so it is not observed. Give Problem its noise.")

    def _points(self, points: Any, name: str) -> Tensor:
        """Return points (n, d) on the model's device; errors as of the methods."""
        points = as_numbers(name, points)
        points = points.unsqueeze(-1) if points.ndim == 1 else points
        if points.ndim != 2 or not points.numel():
            raise ValueError(f"`{name}` must have points of shape (n, d), at least one; got {tuple(points.shape)}.")
        if not points.isfinite().all():
            raise ValueError(f"`{name}` must be finite; got {seen(points)}, with NaN or infinite values.")
        network = self.model.network
        return points.to(network.device, network.dtype)

    def _inputs(self, name: str, points: Tensor, column: int) -> dict[str, Tensor]:
        number = [*self._module.quantities].index(name)
        quantity = torch.tensor([number, column], device=points.device).expand(len(points), 2)
        return {"points": points, "quantity": quantity}

    @torch.no_grad()
    def _width(self, name: str, points: Tensor) -> int:
        """Return K, the columns of a quantity, after a trial at the points; errors as of `rows`."""
        check_name("quantity", name, self._module.quantities)
        values, first = self._module.values(name, points), self._module.values(name, points[:1])
        if values.ndim != 2 or len(values) != len(points):
            raise ValueError(
                f"quantity {name!r} must return values (B,) or (B, K) for B = {len(points)} points; got shape "
                f"{tuple(values.shape)}."
            )
        if not values.isfinite().all():
            raise ValueError(f"quantity {name!r} is not finite at the points, with the network as it was given.")
        if first.shape != values[:1].shape or not torch.allclose(first, values[:1], rtol=1e-3, atol=1e-5):
            raise ValueError(f"quantity {name!r} mixes its rows: row b must depend on point b alone.")
        return values.shape[1]


def _functions(posterior: Any, draws: int | None, seed: int) -> Functions:
    check_kind((Posterior, Functions), "what `fit` returns", posterior=posterior)
    return posterior if isinstance(posterior, Functions) else posterior.functions(draws, seed=seed)


def _numbers(values_S: Tensor, chains: int, level: float) -> dict[str, float]:
    """Return mean, sd, interval and R-hat of draws, where draw s is from chain s mod M."""
    values_S = values_S.detach().double().cpu()
    low, high = torch.quantile(values_S, torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)).tolist()
    numbers = {"mean": float(values_S.mean()), "sd": float(values_S.std()), "low": low, "high": high, "rhat": torch.nan}
    if chains and len(values_S) >= _LEAST * chains:
        numbers["rhat"] = float(rhat(values_S.view(-1, chains).T.contiguous()))
    return numbers


def _scale(name: str, scale: Any) -> float | Coefficient:
    """Return a noise scale, or the belief about one; errors as of `Problem`."""
    if not isinstance(scale, torch.distributions.Distribution):
        check_positive(noise=scale)
        return float(scale)
    belief = coefficient(f"noise[{name!r}]", scale)
    if not belief.positive:
        raise ValueError(f"`noise` of {name!r} must have a distribution over positive numbers; got {scale}.")
    return belief


def _check_names(what: str, named: Any) -> None:
    """Raise TypeError if something is no mapping by name, ValueError if a name cannot be that of a parameter."""
    if not isinstance(named, Mapping):
        raise TypeError(f"`{what}` must be a mapping by name; got {seen(named)}.")
    wrong: Sequence[Any] = [
        name for name in named if not isinstance(name, str) or not name.isidentifier() or hasattr(nn.Module, name)
    ]
    if wrong:
        raise ValueError(f"`{what}` must have names that Python can use and nn.Module does not; got {seen(wrong[0])}.")
