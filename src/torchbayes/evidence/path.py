r"""The path from the prior to the posterior, log p_β(w) = β log p(D|w) + log p(w), with its own β for every row.

β = 0 is the prior and β = 1 the posterior, unnormalised. Estimators of the evidence walk along it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from torchbayes.checks import check_function, check_object, check_tensor, seen
from torchbayes.density.density import LogDensity
from torchbayes.density.dynamics import FunctionDensity, Stepwise, Value, ValueOnly
from torchbayes.density.plans import BackendName
from torchbayes.density.precision import refuse_rounding
from torchbayes.methods.sampler import refuse_batch_norm
from torchbayes.model.model import Model
from torchbayes.model.sources.informed import informed_by
from torchbayes.model.sources.sources import as_source
from torchbayes.native.process import undisturbed, undisturbed_methods

DRAWN = 1000  # draws from the prior that are held at a time


class Parts(NamedTuple):
    """Prior and likelihood at M points."""

    log_prior: Tensor  # float64 (M,), in nats, normalised
    log_likelihood: Tensor  # float64 (M,), in nats, of all the data
    prior_gradient: Tensor  # (M, D)
    likelihood_gradient: Tensor  # (M, D)

    def at(self, beta_M: Tensor) -> Value:
        """Return log p_β and its gradient; at β = 0 an infinite log likelihood does not count."""
        beta_M1, prior_M = beta_M.to(self.prior_gradient).unsqueeze(-1), beta_M == 0
        likelihood_M = torch.where(prior_M, 0.0, beta_M * self.log_likelihood)
        gradient_MD = torch.where(prior_M.unsqueeze(-1), 0.0, beta_M1 * self.likelihood_gradient)
        return Value(likelihood_M + self.log_prior, gradient_MD + self.prior_gradient, self.log_likelihood)


class Target(Protocol):
    """A normalised prior that can be drawn from, and a likelihood."""

    def parts(self, weights_MD: Tensor) -> Parts:
        """Return log prior and log likelihood of each row, with their gradients."""
        ...

    def draw(self, count: int, seed: int) -> Tensor:
        """Return independent draws from the prior, (M, D), on the target's device and in its dtype."""
        ...


@undisturbed_methods
class ModelTarget:
    """The prior of a model, and its likelihood of all the data."""

    @undisturbed
    def __init__(self, model: Model, data: Any, *, plan: BackendName | str = "auto", chunk_size: int = 1024) -> None:
        """Read and check the data.

        Args:
            model: p(y | f_w(x)) p(w), with proper priors and temperature 1.
            data: as for `fit`.
            plan: how a stack of networks is run: auto, native, loop, vmap or compiled. Where auto would choose by
                measuring, set it, so that two runs do not differ by rounding.
            chunk_size: rows that go through a network at once.

        Raises:
            ValueError: if a prior is improper, the temperature is not 1, the network has batch norm, or the data do
                not fit.
            TypeError: if the network computes in less than float32.
        """
        check_model(model)
        source = as_source(model, data, 1024)
        source.check()
        rows = source.rows()
        self.model = model = informed_by(model, source)
        self.density = LogDensity(model, rows.size, rows, plan=plan, chunk_size=chunk_size)  # type: ignore[arg-type]
        refuse_batch_norm(self.density)
        refuse_rounding(model, rows)

    def parts(self, weights_MD: Tensor) -> Parts:
        """Return log prior and log likelihood of each row, with their gradients."""
        value = self.density(weights_MD)
        prior_MD = torch.zeros_like(weights_MD)
        self.model.prior.add_gradient_(prior_MD, weights_MD, 1.0)
        with torch.no_grad():
            log_prior_M = self.model.log_prior(weights_MD)
        return Parts(log_prior_M, value.log_likelihood, prior_MD, value.gradient - prior_MD)

    def draw(self, count: int, seed: int) -> Tensor:
        """Return independent draws from the prior, (M, D), on the network's device and in its dtype."""
        return self.model.prior.sample(count, seed=seed).to(self.model.network.device, self.model.network.dtype)


class FunctionTarget:
    """Any pair of log densities instead of a model: for tests, and for the evidence of other targets."""

    def __init__(
        self,
        log_prior: Callable[[Tensor], Tensor],
        log_likelihood: Callable[[Tensor], Tensor],
        draw: Callable[[int, int], Tensor],
    ) -> None:
        """Combine the functions.

        Args:
            log_prior: weights (M, D) -> log p(w), (M,), normalised and differentiable.
            log_likelihood: weights (M, D) -> log p(D|w), (M,), differentiable.
            draw: (count, seed) -> independent draws from the prior, (count, D).
        """
        check_function("a function of the weights", log_prior=log_prior, log_likelihood=log_likelihood)
        check_function("a function of (count, seed)", draw=draw)
        self._prior, self._likelihood = FunctionDensity(log_prior), FunctionDensity(log_likelihood)
        self._draw = draw

    def parts(self, weights_MD: Tensor) -> Parts:
        """Return log prior and log likelihood of each row, with their gradients."""
        prior, likelihood = self._prior(weights_MD), self._likelihood(weights_MD)
        return Parts(prior.log_density, likelihood.log_density, prior.gradient, likelihood.gradient)

    def draw(self, count: int, seed: int) -> Tensor:
        """Return independent draws from the prior, (M, D)."""
        return self._draw(count, seed)


class AnnealedDensity(Stepwise):
    """log p_β(w) = β log p(D|w) + log p(w) as a `Density`, so that the samplers of the library work on it.

    Attributes:
        target: prior and likelihood.
        beta_M: β of each row, float64.
    """

    def __init__(self, target: Target, beta_M: Tensor) -> None:
        """Set every row's β.

        Args:
            target: prior and likelihood.
            beta_M: β, one for each row, or one for all with shape (1,).

        Raises:
            ValueError: if one does not lie in [0, 1].
        """
        check_object(("parts", "draw"), "ModelTarget(model, data)", target=target)
        check_tensor("M", beta_M=beta_M)
        beta_M = beta_M.double()
        if not ((beta_M >= 0) & (beta_M <= 1)).all():
            raise ValueError(f"inverse temperatures `beta_M` must lie in [0, 1]; got {beta_M.tolist()}.")
        self.target, self.beta_M = target, beta_M

    def __call__(self, weights_MD: Tensor, batch: Any = None) -> Value:
        """Return value and gradient of each row; `log_likelihood` is that at β = 1, and a batch is ignored."""
        del batch
        return self.target.parts(weights_MD).at(self.beta_M.to(weights_MD.device))

    def value(self, weights_MD: Tensor, batch: Any = None) -> ValueOnly:
        """Return the value of each row; the gradients that targets compute are discarded."""
        value = self(weights_MD, batch)
        return ValueOnly(value.log_density, value.log_likelihood)


def check_model(model: Model) -> None:
    """Check that a model has an evidence: a ValueError if a prior is improper, or the temperature is not 1."""
    if not isinstance(model, Model):
        raise TypeError(f"the evidence is that of a Model or a FunctionTarget; got {seen(model)}.")
    improper = [kind for segment in model.prior.segments if (kind := getattr(segment.prior, "improper", ""))]
    if improper:
        raise ValueError(
            f"a {improper[0]} prior is improper, so the evidence is not defined. Choose a prior such as Normal."
        )
    if model.temperature != 1:
        raise ValueError(
            f"the evidence is that of the model at temperature 1; its temperature is {model.temperature}. Make a Model "
            f"without `temperature`."
        )


def as_target(model: Model | Target, data: Any = None) -> Target:
    """Return the target of a model and data (as for `fit`), or the target itself, which has its own likelihood."""
    if isinstance(model, Model):
        if data is None:
            raise ValueError("`data` are needed: the evidence of a model is that of its data.")
        return ModelTarget(model, data)
    if isinstance(model, type) or not (hasattr(model, "parts") and hasattr(model, "draw")):
        raise TypeError(f"the evidence is that of a Model or a FunctionTarget; got {seen(model)}.")
    if data is not None:
        raise ValueError(f"`data` must be None: a FunctionTarget brings its own likelihood; got {seen(data)}.")
    return model


def at_prior(target: Target, count: int, seed_of: Callable[[int], int]) -> Tensor:
    """Return log likelihoods of draws from the prior, float64 (count,); `seed_of` gives a block's seed by its start."""
    blocks = []
    for start in range(0, count, DRAWN):
        weights_SD = target.draw(min(DRAWN, count - start), seed_of(start))
        blocks.append(target.parts(weights_SD).log_likelihood.cpu())
    return torch.cat(blocks)
