"""What a posterior says at points (..., q, d), differentiable in them: values of drawn functions, or normal outputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.func import jvp, vmap

from torchbayes.checks import check_object, holds
from torchbayes.density.backend import Functions as Request
from torchbayes.density.loop import Loop
from torchbayes.model.layout import broadcasting
from torchbayes.model.model import Model
from torchbayes.model.network import Buffers
from torchbayes.native.process import outside_inference, quiet_vmap, usable
from torchbayes.posteriors.functions import Functions
from torchbayes.predictive.linearised import Linearised
from torchbayes.predictive.predict import as_source
from torchbayes.randomness.seeds import Purpose, generator

_ROWS = 2**15  # that go through drawn networks at once, over all draws, which bounds memory
_JOINT = 32  # rows whose covariance is computed at once: the part of it that is not needed grows with them


class Values(NamedTuple):
    """What the likelihood makes of the outputs of S functions."""

    mean_SqM: Tensor  # (..., S, q, m)
    noise_SqM: Tensor  # variances of the targets around these means, of the same shape


class Moments(NamedTuple):
    """Normal outputs at q points together, and the noise of their targets."""

    mean_qM: Tensor  # (..., q, m)
    covariance: Tensor  # (..., q m, q m), point after point
    noise_qM: Tensor  # variances, (..., q, m)


class Source(Protocol):
    """What a surrogate asks: values of functions, or moments of normal outputs."""

    @property
    def draws(self) -> int:
        """S, the number of functions; 0 where outputs are normal."""
        ...

    def moments(self, X: Tensor) -> Moments:
        """Return mean and covariance of the outputs at points (..., q, d)."""
        ...

    def fixed(self, seed: int, weights: Tensor | None) -> Fixed:
        """Return one of the functions, drawn by the weights (S,), equal if None."""
        ...


class Fixed(Protocol):
    """One function of the posterior."""

    def values(self, X: Tensor) -> Values:
        """Return its values, (..., 1, q, m), at points (..., q, d)."""
        ...


def source_of(posterior: Any, draws: int | None, *, seed: int, drawn: bool) -> Any:
    """Return the functions drawn from a posterior, or its closed form if it has one; `drawn` rules that out.

    Raises TypeError if it is no posterior, and ValueError if it has another closed form.
    """
    if drawn and draws is None:
        draws = getattr(posterior, "default_draws", None)
    source = as_source(posterior, draws, seed)
    if holds(source, "joint"):
        return Normal(cast(Any, source))
    check_object(
        ("functions",), "a posterior that `fit` returns, drawn functions or a `Linearised` one", posterior=source
    )
    if not holds(source.functions, "some"):  # type: ignore[attr-defined]
        raise ValueError(
            f"{type(source).__name__} has no joint covariance of points, which a batch of candidates needs. Give the "
            f"posterior that `fit` returns."
        )
    return Drawn(source.functions)  # type: ignore[attr-defined]


def targets_of(source: Any, num_inputs: int | None) -> int:
    """Return m, the number of targets, by a call of the network on a row of `num_inputs` zeros."""
    model = source.model
    given = num_inputs is not None
    if num_inputs is None:
        sizes = [m.in_features for m in model.network.module.modules() if isinstance(m, nn.Linear)]
        num_inputs = sizes[0] if sizes else 1
    row = torch.zeros(1, num_inputs, dtype=model.network.dtype)
    try:
        outputs = model.network(model.network.initial, model.place(row)).detach()
    except (RuntimeError, ValueError) as error:
        if given:
            raise ValueError(f"the network cannot take rows of {num_inputs} numbers: {error}") from error
        raise ValueError(
            "how many numbers a row has cannot be seen from the network. Give `num_inputs`, the d of X."
        ) from error
    learned = {name: start.start().to(outputs) for name, start in model.likelihood.parameters().items()}
    return _of_targets(model, outputs, learned).mean_SqM.shape[-1]


@dataclass(frozen=True)
class Drawn:
    """S functions, the same at all points."""

    functions: Functions

    @property
    def model(self) -> Model:
        """The model."""
        return self.functions.model

    @property
    def draws(self) -> int:
        """S."""
        return self.functions.draws

    def values(self, X: Tensor) -> Values:
        """Return means and noise of the targets, (..., S, q, m), at points (..., q, d)."""
        rows = X.reshape(-1, X.shape[-1])
        placed = self.model.place(rows)
        if X.requires_grad and torch.is_grad_enabled():
            outputs_SBK = _differentiable(self.functions, placed)
        elif len(rows):
            outputs_SBK = self.functions(placed)
        else:
            outputs_SBK = self.functions(placed.new_zeros(1, X.shape[-1]))[:, :0]
        outputs = outputs_SBK.unflatten(1, X.shape[:-1]).movedim(0, -3).to(X)
        learned = {name: value.to(X) for name, value in self.functions.parameters.items()}
        return _of_targets(self.model, outputs, broadcasting(learned, outputs_SBK))

    def moments(self, X: Tensor) -> Moments:
        """Return mean and covariance of the values over the draws, as of a normal distribution."""
        mean_SqM, noise_SqM = self.values(X)
        mean, draws = mean_SqM.mean(-3), mean_SqM.shape[-3]
        moves = (mean_SqM - mean.unsqueeze(-3)).flatten(-2)
        covariance = moves.mT @ moves / max(draws - 1, 1)
        return Moments(mean, covariance, noise_SqM.mean(-3))

    def fixed(self, seed: int, weights: Tensor | None) -> Drawn:
        """Return one of the functions alone."""
        shares = torch.ones(self.draws) if weights is None else weights.detach().cpu()
        number = int(torch.multinomial(shares, 1, generator=generator(Purpose.THOMPSON, seed)))
        return Drawn(self.functions.some(slice(number, number + 1)))


@dataclass(frozen=True)
class Tangential:
    """A function of the linearised network, f + J v at the mode w*.

    Attributes:
        model: the model.
        mode_D: w*, with learned parameters of the likelihood.
        move_D: v.
        buffers: of the network; its own if None.
    """

    model: Model
    mode_D: Tensor
    move_D: Tensor
    buffers: Buffers | None

    def values(self, X: Tensor) -> Values:
        """Return its values, (..., 1, q, m), at points (..., q, d)."""
        network, placed = self.model.network, self.model.place(X.reshape(-1, X.shape[-1]))
        (views, learned), moves = self.model.split(self.mode_D), self.model.split(self.move_D)[0]
        network.ask(views, placed.detach(), self.buffers)
        with outside_inference():  # in which torch 2.11 gives zeros
            outputs_BK, pushed, *_ = jvp(lambda w: network(w, usable(placed), self.buffers), (views,), (moves,))
        outputs = (outputs_BK + pushed).unflatten(0, X.shape[:-1]).unsqueeze(-3).to(X)
        return _of_targets(self.model, outputs, {name: value.to(X) for name, value in learned.items()})


def _differentiable(functions: Functions, placed: Tensor) -> Tensor:
    """Return the outputs (S, B, K) of drawn functions, by operations that have a gradient in the inputs."""
    model, weights_SD, buffers_S = functions.model, functions.weights_SD, functions.buffers_S or {}
    at_once = max(1, _ROWS // max(len(placed), 1))

    def drawn(weights_D: Tensor, buffers: dict[str, Tensor]) -> Tensor:
        return model.network(model.split(weights_D)[0], placed, buffers or None)

    model.network.ask(model.split(weights_SD[0])[0], placed.detach())
    if functions.masks_S is None:
        try:
            parts = []
            for first in range(0, functions.draws, at_once):
                where = slice(first, first + at_once)
                with quiet_vmap():
                    parts.append(vmap(drawn)(weights_SD[where], {n: b[where] for n, b in buffers_S.items()}))
            return torch.cat(parts)
        except RuntimeError:  # an operation without a batching rule
            pass
    request = Request(weights_SD, placed, functions.buffers_S, len(placed), functions.masks_S)
    return Loop(model).outputs(request)


def _of_targets(model: Model, outputs: Tensor, parameters: Any) -> Values:
    """Return mean and variance of the targets given outputs (..., S, q, K); a ValueError if they have none."""
    distribution = model.likelihood.distribution(outputs, parameters)
    try:
        mean, variance = distribution.mean, distribution.variance.expand_as(distribution.mean)
    except NotImplementedError:
        mean = variance = outputs.new_full((), math.nan)
    if mean.shape[:-1] != outputs.shape[:-1] or mean.isnan().any() or not variance.isfinite().all():
        raise ValueError(
            f"BoTorch optimises numbers, and {type(model.likelihood).__name__} gives targets without a mean and a "
            f"finite variance. Use a likelihood of numbers, such as Gaussian('learned')."
        )
    return Values(mean, variance)


@dataclass(frozen=True)
class Normal:
    """Normal outputs in closed form: a Gaussian posterior pushed through the linearised network."""

    linearised: Linearised
    draws: int = 0

    @property
    def model(self) -> Model:
        """The model."""
        return self.linearised.model

    def moments(self, X: Tensor) -> Moments:
        """Return the outputs at points (..., q, d); those of several modes as a normal of their mean and covariance.

        Raises:
            ValueError: if the mean of the targets is not an output.
        """
        batch, points = X.shape[:-2], X.shape[-2]
        rows = X.reshape(batch.numel(), points, X.shape[-1])
        if not rows.numel():
            empty = self.moments(X.new_zeros(1, X.shape[-1]))
            targets = empty.mean_qM.shape[-1]
            shape = (*batch, points, targets)
            return Moments(X.new_zeros(shape), X.new_zeros(*batch, *2 * (points * targets,)), X.new_zeros(shape))
        pieces = [self._joint(piece) for piece in rows.split(max(1, _JOINT // points))]
        outputs_MbqK, covariance = (torch.cat(each, dim=1).to(X) for each in zip(*pieces, strict=True))
        weights_MD = self.linearised.posterior.gaussian.mean_MD
        learned = {name: value.to(X) for name, value in self.model.split(weights_MD)[1].items()}
        mean, noise = _of_targets(self.model, outputs_MbqK, broadcasting(learned, outputs_MbqK))
        targets = mean.shape[-1]
        if targets > outputs_MbqK.shape[-1] or not torch.equal(mean, outputs_MbqK[..., :targets]):
            raise ValueError(
                f"the linearised form is of means that are outputs of the network; those of "
                f"{type(self.model.likelihood).__name__} are functions of them. Give `draws`, such as draws=100."
            )
        within = covariance[:, :, :, :targets, :, :targets].flatten(4).flatten(2, 3)
        moves = (mean - mean.mean(0)).flatten(2)  # of several modes
        spread = within.mean(0) + torch.einsum("mbi,mbj->bij", moves, moves) / len(moves)
        return Moments(*(each.reshape(*batch, *each.shape[1:]) for each in (mean.mean(0), spread, noise.mean(0))))

    def fixed(self, seed: int, weights: Tensor | None) -> Tangential:
        """Return a function of the linearised network."""
        del weights
        posterior = self.linearised.posterior
        gaussian, buffers_M = posterior.gaussian, posterior.buffers_M or {}
        weights_MD, member = gaussian.sample(gaussian.members, seed=seed), seed % gaussian.members
        mode_D, buffers = gaussian.mean_MD[member], {n: b[member] for n, b in buffers_M.items()}
        return Tangential(self.model, mode_D, weights_MD[member] - mode_D, buffers or None)

    def _joint(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return means (M, b, q, K) and covariances (M, b, q, K, q, K) at rows (b, q, d)."""
        count, points, _ = rows.shape
        flat = rows.flatten(0, 1)
        if points == 1:
            mean_MBK, spread = self.linearised.functions(flat)
            return mean_MBK.unsqueeze(2), spread[:, :, None, :, None, :]
        mean, joint = self.linearised.joint(flat)
        blocks = joint.unflatten(3, (count, points)).unflatten(1, (count, points))
        within = blocks.diagonal(dim1=1, dim2=4).movedim(-1, 1)
        return mean.unflatten(1, (count, points)), within
