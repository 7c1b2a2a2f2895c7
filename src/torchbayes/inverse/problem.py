"""Problem: a network for the solution, unknown coefficients, and rows of what is observed, as one `Model`.

    log p(y | w, k) = Σ_i log N(y_i; q_{n(i)}(u, x_i, k), σ²_{n(i)})

Quantity q_n is what a sensor sees: the solution itself, a boundary value, a derivative, or a source, to which the
equations equate an operator of u with coefficients k. If the source is measured, σ is its noise. If an equation holds
exactly, its rows are zeros at collocation points, and σ is a tolerance: twice as many points count as twice as many
data, so keep their number over σ² fixed when it changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from torchbayes.checks import check_function, check_kind, check_name, check_positive, is_whole, seen
from torchbayes.diagnostics import rhat
from torchbayes.inverse.coefficients import Coefficient, coefficient
from torchbayes.inverse.quantities import Quantities, Quantity, as_points, check_noisy, inputs_at, observed, width_of
from torchbayes.model.likelihoods import HeteroscedasticGaussian
from torchbayes.model.model import Model
from torchbayes.model.priors import Normal, PriorLike
from torchbayes.native.process import undisturbed_methods
from torchbayes.posteriors.draws import thinned
from torchbayes.posteriors.functions import Functions
from torchbayes.posteriors.posterior import Posterior
from torchbayes.predictive.linearised import Linearised
from torchbayes.predictive.predict import predict

_MANY = 1000  # draws of coefficients where there are no chains
_LEAST = 4  # draws of a chain for R-hat


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

    def __init__(
        self,
        network: nn.Module,
        quantities: Mapping[str, Quantity],
        *,
        coefficients: Mapping[str, Any] | None = None,
        noise: Mapping[str, Any],
        prior: PriorLike | Mapping[str, PriorLike] | None = None,
    ) -> None:
        """Put solution, equations, coefficients and noise together.

        Args:
            network: u, points (B, d) -> (B, K), smooth: `rows` warns of ReLU. Linear layers with tanh are fastest.
            quantities: name -> function of u, points (B, d) and the coefficients by name, which returns values (B,) or
                (B, K): whatever is observed, or of interest. It is called with rows of other quantities too, so it must
                be finite at all points.
            coefficients: name -> prior of an unknown number: one of `torchbayes.priors`, or a torch Distribution, whose
                support is respected, such as a log-normal. Or an nn.Module: a coefficient that is a function
                of points. The quantities find all of them by name in their third argument.
            noise: name of a quantity -> standard deviation of its noise, in its units, or the torch Distribution of an
                unknown one. Quantities of which nothing is observed need none.
            prior: of the weights of the networks, or glob -> prior, with names as in `model`; N(0, 1) if None.

        Raises:
            TypeError: if an argument is of another kind.
            ValueError: if there are no quantities, a name is no Python name or is taken, a noise is not positive, or
                globs and weights do not match up.
        """
        check_kind(nn.Module, "an nn.Module", network=network)
        _check_names("quantities", quantities)
        if not quantities:
            raise ValueError(
                "`quantities` must name at least one function; got none. Write {'u': lambda u, x, k: u(x)}."
            )
        for function in quantities.values():
            check_function("functions of u, points and coefficients, by name", quantities=function)
        coefficients = coefficients or {}
        _check_names("coefficients", coefficients)
        _check_names("noise", noise)
        for name in noise:
            check_name("quantity in `noise`", name, quantities)
        fields = {name: given for name, given in coefficients.items() if isinstance(given, nn.Module)}
        unknown = {
            name: coefficient(f"coefficients[{name!r}]", given)
            for name, given in coefficients.items()
            if name not in fields
        }
        scales = {name: _scale(name, scale) for name, scale in noise.items()}
        module = Quantities(network, quantities, unknown=unknown, fields=fields, noise=scales)
        beliefs = {f"coefficients.{name}": each.prior for name, each in unknown.items()}
        beliefs |= {f"noise.{name}": each.prior for name, each in module.noise.beliefs.items()}
        rules = prior if isinstance(prior, Mapping) else {"*": Normal() if prior is None else prior}
        rules = rules if module.weighted() else {}
        self.model = Model(module, HeteroscedasticGaussian(floor=0.0), {**beliefs, **rules})
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
        module, network = self._module, self.model.network
        columns = [c for name, pair in observations.items() for c in observed(module, name, pair, network=network)]
        inputs = {key: torch.cat([each[key] for each, _ in columns]) for key in columns[0][0]}
        if not len(inputs["points"]):
            raise ValueError("`observations` hold no value that was observed; got only NaN.")
        return inputs, torch.cat([targets for _, targets in columns]).to(inputs["points"]).unsqueeze(-1)

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
        check_noisy(self._module, quantity)
        points = as_points(self.model.network, points, "points")
        width = width_of(self._module, quantity, points)
        if not is_whole(column) or not 0 <= column < width:
            raise ValueError(f"`column` must be one of the {width} of {quantity!r}, from 0; got {seen(column)}.")
        return inputs_at(self._module, quantity, points, column=int(column))

    def values(
        self, posterior: Posterior | Functions, quantity: str, points: Any, *, draws: int | None = None, seed: int = 0
    ) -> Tensor:
        """Return a quantity at points for each draw from a posterior, without noise: solution, derivative or source.

        Args:
            posterior: of `model`, or functions drawn from one.
            quantity: its name; it need not be one that was observed.
            points: (n, d), or (n,) where d is 1.
            draws: S, of functions; the default of `predict` if None, which linearises that of a Laplace posterior.
            seed: seed of the draws.

        Returns:
            Tensor (S, n, K). Bands are its quantiles over the first axis.

        Raises:
            ValueError: if the name is unknown, points do not fit, or draws do not.
            TypeError: if the posterior or the points are of another kind.
        """
        _check_posterior(posterior)
        points = as_points(self.model.network, points, "points")
        columns, source = range(width_of(self._module, quantity, points)), cast("Any", posterior)
        if draws is None and getattr(posterior, "of_linearised", False):
            source = Linearised(source, seed=seed).drawn()
        each = [inputs_at(self._module, quantity, points, column=column) for column in columns]
        predictives = [predict(source, inputs, draws=draws, seed=seed) for inputs in each]
        return torch.stack([predictive.outputs_SBK[..., 0] for predictive in predictives], dim=-1)

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
        _check_posterior(posterior)
        functions = posterior if isinstance(posterior, Functions) else posterior.functions(draws, seed=seed)
        named = self.model.layout.split(functions.weights_SD)
        return {name: each.transform(named[where]) for name, where, each in _unknown(self._module)}

    def summary(
        self, posterior: Posterior, *, level: float = 0.95, draws: int | None = None, seed: int = 0
    ) -> dict[str, dict[str, float]]:
        """Return what is known of each unknown number; one with the prior's standard deviation was not identified.

        Args:
            posterior: of `model`.
            level: probability between `low` and `high`.
            draws: as in `coefficients`.
            seed: seed of the draws.

        Returns:
            name -> mean, sd, low, high, prior_sd (infinite where it is not known), and rhat (NaN without chains).

        Raises:
            ValueError: if the level is not between 0 and 1, or draws do not fit.
            TypeError: if the posterior is of another kind.
        """
        check_positive(level=level)
        if level >= 1:
            raise ValueError(f"`level` must lie between 0 and 1; got {seen(level)}.")
        posterior = thinned(posterior, draws) if draws is not None and isinstance(posterior, Posterior) else posterior
        draws_by_name = self.coefficients(posterior, draws=draws, seed=seed)
        sds = {name: each.sd for name, _, each in _unknown(self._module)}
        chains = posterior.members if getattr(posterior, "chain_length", None) else 0
        return {
            name: _numbers(values, chains, level) | {"prior_sd": sds[name]} for name, values in draws_by_name.items()
        }


def _unknown(module: Quantities) -> list[tuple[str, str, Coefficient]]:
    """Return name, name in the layout and belief of every unknown number."""
    coefficients, noise = module.coefficients.beliefs, module.noise.beliefs
    return [
        *((name, f"coefficients.{name}", each) for name, each in coefficients.items()),
        *((f"noise.{name}", f"noise.{name}", each) for name, each in noise.items()),
    ]


def _check_posterior(posterior: Any) -> None:
    check_kind((Posterior, Functions), "what `fit` returns", posterior=posterior)


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


def _check_names(argument: str, named: Any) -> None:
    """Raise TypeError if something is no mapping by name, ValueError if a name cannot be that of a parameter."""
    if not isinstance(named, Mapping):
        raise TypeError(f"`{argument}` must be a mapping by name; got {seen(named)}.")
    wrong: Sequence[Any] = [
        name for name in named if not isinstance(name, str) or not name.isidentifier() or hasattr(nn.Module, name)
    ]
    if wrong:
        raise ValueError(
            f"`{argument}` must have names that Python can use and nn.Module does not; got {seen(wrong[0])}."
        )
