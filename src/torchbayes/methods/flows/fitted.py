"""What variational methods share whose draws are functions of normal numbers: w_s = t(θ, ε_s), with log q(w_s) known.

    minimise  −ELBO = E_q[−Σ_n log p(y_n | x_n, w)] − β E_q[log p(w) − log q(w)]

by S draws for each step. The gradient by θ is that of log p(y | w_s) at the weights, pulled back through t by
autograd. On the scale of the mean loss per observation, and with the temperature T of the model,

    loss = (1/S) Σ_s [nll(w_s) − (β T/N) (c log p(w_s) − log q(w_s))]

with c = 1/T where likelihood and prior are both tempered, and 1 where only the likelihood is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Literal, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from torchbayes.density.density import LogDensity
from torchbayes.density.layers.passes import by_layers
from torchbayes.density.layers.uses import Estimator
from torchbayes.health.draws import Drawn
from torchbayes.health.spread import unmoved
from torchbayes.methods.choices import WEIGHTS, Choice, Lowered
from torchbayes.methods.noise import normals
from torchbayes.methods.optimise.descent import Trajectory
from torchbayes.methods.optimise.optimizers import Optimizer
from torchbayes.methods.variational.objective import State, Terms, Update, ask
from torchbayes.methods.variational.weighting import Weighting
from torchbayes.model.model import Batch, Model
from torchbayes.model.priors.bound import BoundPrior
from torchbayes.model.priors.expected import add_expected_, is_closed
from torchbayes.native.process import differentiable
from torchbayes.posteriors.posterior import Posterior
from torchbayes.randomness.seeds import Purpose


class Draws(NamedTuple):
    """Draws from q, with their history in autograd."""

    weights_MSD: Tensor
    free_MS: Tensor  # estimate of −log q(w_s) or of a bound, in nats, float64; its mean is at most the entropy
    # means and variances (M, S, D) of normal weights that w_s is a draw of, or None
    normal: tuple[Tensor, Tensor] | None = None


class Drawing(NamedTuple):
    """How the objective is estimated."""

    # "weights" draws weights; for the others layers take them as normal distributions, `Draws.normal`
    estimator: Literal["weights", "auto", "local", "flipout"]
    draws: int  # S


class Family(Protocol):
    """Distributions whose draws are functions of parameters and standard normals."""

    @property
    def noise_size(self) -> int:
        """E, the number of standard normals that make one draw."""
        ...

    @property
    def num_parameters(self) -> int:
        """Number of parameters besides means and scales."""
        ...

    def start(self, noise_MP: Tensor) -> Tensor:
        """Return the parameters besides means and scales, made from standard normals."""
        ...

    def draw(self, mean_MD: Tensor, log_scale_MD: Tensor, rest_MP: Tensor, *, noise_MSE: Tensor) -> Draws:
        """Return draws."""
        ...


class Fitted(ABC):
    """The part of these methods beside `Fitting`: a family, whose first 2 D parameters are means and log scales."""

    draws: int
    initial_scale: float
    kl_weight: float | Weighting | None
    optimizer: Optimizer

    estimator: Literal["weights", "auto", "local", "flipout"] = "weights"

    @abstractmethod
    def family(self, model: Model) -> Family:
        """Return the family of distributions over the weights of a model."""

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The weight of the divergence, on one fold.

        A step of a flow takes several times one of `VI`, and trial runs must be as long as the run itself, because a
        shorter one chooses another weight.
        """
        return (Lowered("kl_weight", WEIGHTS, folds=1),) if self.kl_weight is None else ()

    def parameters(self, density: LogDensity, weights_MD: Tensor, *, seeds: Sequence[int]) -> Tensor:
        """Return the first parameters, (M, P)."""
        family = _family_of(self, density)
        like = weights_MD.new_empty(len(weights_MD), family.num_parameters)
        rest_MP = family.start(normals(seeds, Purpose.FLOW_START, 0, like=like))
        log_scale_MD = torch.full_like(weights_MD, self.initial_scale).log()
        return torch.cat([weights_MD, log_scale_MD, rest_MP], dim=1)

    def objective(
        self, density: LogDensity, now: Trajectory, batch: Batch, *, kl_weight: float
    ) -> tuple[Terms, Tensor, Update]:
        """Return the objective of a step, its gradient, and the step itself."""
        family, drawing = _family_of(self, density), Drawing(self.estimator, self.draws)
        terms = differentiate(density, now, batch, family=family, drawing=drawing, kl_weight=kl_weight)
        return terms, now.gradient_MD, partial(self.optimizer.update, now.weights_MD, now.gradient_MD, now.slots)

    def ending(self, posterior: Posterior, state: State) -> Drawn:
        """Return how a run ended; scales must have moved from their first value."""
        scale_MD = parts_of(state)[1]
        return Drawn(then=[lambda _: unmoved(scale_MD, self.initial_scale)])


Slopes = tuple[Tensor, ...]  # by the weights, and by the means and variances of normal weights, each (M, S, D)
_FAMILIES: WeakKeyDictionary[LogDensity, tuple[Fitted, Family]] = WeakKeyDictionary()


def parts_of(state: State) -> tuple[Tensor, Tensor, Tensor]:
    """Return means, scales and the other parameters of a run."""
    mean_MD, log_scale_MD, rest_MP = _split(state.trajectory.weights_MD, state.size)
    # not 0 where a scale has collapsed, which is reported as a problem
    scale_MD = log_scale_MD.exp().clamp_min_(torch.finfo(mean_MD.dtype).tiny)
    return mean_MD.clone(), scale_MD, rest_MP.clone()


def differentiate(
    density: LogDensity, now: Trajectory, batch: Batch, *, family: Family, drawing: Drawing, kl_weight: float
) -> Terms:
    """Return the objective of a step, and write its gradient by the parameters (M, P) to `now`.

    Buffers are brought up to date.
    """
    model, size, draws = density.model, density.model.layout.size, drawing.draws
    like = now.weights_MD.new_empty(len(now.seeds), draws * family.noise_size)
    noise_MSE = normals(now.seeds, Purpose.FLOW_NOISE, now.step, like=like).unflatten(1, (draws, -1))
    entropy_scale = -kl_weight * model.temperature / density.num_data
    scale = entropy_scale * model.scales(1, 1).prior
    with differentiable():
        leaf_MP = now.weights_MD.detach().requires_grad_()
        drawn = family.draw(*_split(leaf_MP, size), noise_MSE=noise_MSE)
        roots = (drawn.weights_MSD, *(drawn.normal or ()))
        detached = Draws(*(tensor.detach() for tensor in drawn[:2]), normal=_detached(drawn.normal))
        if drawing.estimator == "weights":
            nll_M, slopes = _by_weights(density, now, batch, held=detached)
        else:
            nll_M, slopes = _by_layers(density, now, batch, held=detached, estimator=drawing.estimator)
        expected_M = _add_prior_(model.prior, detached, slopes, scale / draws)
        total = entropy_scale * drawn.free_MS.mean(1).sum()
        total = total + sum((root * slope).sum() for root, slope in zip(roots, slopes, strict=True))
        (gradient_MP,) = torch.autograd.grad(total, leaf_MP)
    now.gradient_MD.copy_(gradient_MP)
    entropy_M = detached.free_MS.mean(1)
    loss_M = nll_M + scale * expected_M + entropy_scale * entropy_M
    return Terms(loss_M, nll_M, -expected_M - entropy_M)


def _split(parameters_MP: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return means, logarithms of scales, and the other parameters."""
    mean_MD, log_scale_MD, rest_MP = parameters_MP.split([size, size, parameters_MP.shape[1] - 2 * size], dim=1)
    return mean_MD, log_scale_MD, rest_MP


def _detached(normal: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor] | None:
    return None if normal is None else (normal[0].detach(), normal[1].detach())


def _by_weights(density: LogDensity, now: Trajectory, batch: Batch, *, held: Draws) -> tuple[Tensor, Slopes]:
    """Return the mean negative log likelihood of the draws, (M,), and its slopes by the weights."""
    slope_MSD = torch.empty_like(held.weights_MSD)
    nll_M = ask(density, now, batch, weights_MSD=held.weights_MSD, out=slope_MSD)
    others = () if held.normal is None else tuple(torch.zeros_like(slope_MSD) for _ in held.normal)
    return nll_M, (slope_MSD.div_(slope_MSD.shape[1]), *others)


def _by_layers(
    density: LogDensity, now: Trajectory, batch: Batch, *, held: Draws, estimator: Estimator
) -> tuple[Tensor, Slopes]:
    """Return the same from layers that take the normal weights as distributions, with slopes by means and variances."""
    assert held.normal is not None
    slopes = tuple(torch.zeros_like(held.weights_MSD) for _ in range(3))
    nlls, draws = [], held.weights_MSD.shape[1]
    for s in range(draws):
        mean_MD, scale_MD = held.normal[0][:, s].contiguous(), held.normal[1][:, s].sqrt()
        gradients = by_layers(
            density,
            mean_MD,
            scale_MD,
            batch=batch,
            estimator=estimator,
            buffers=now.buffers,
            seeds=now.seeds,
            step=now.step * draws + s,
        )
        slopes[1][:, s] = gradients.mean_MD / draws
        slopes[2][:, s] = gradients.scale_MD / (2 * draws * scale_MD)
        nlls.append(gradients.nll_M)
    return torch.stack(nlls).mean(0), slopes


def _add_prior_(prior: BoundPrior, held: Draws, slopes: Slopes, scale: float) -> Tensor:
    """Return E log p(w), float64 (M,), and add its slopes by weights and, if any, means and variances, to `slopes`.

    `scale` is a factor on the slopes of each draw.
    """
    slope_MSD = slopes[0]
    if held.normal is None:
        prior.add_gradient_(slope_MSD, held.weights_MSD, scale)
        return prior.log_prob(held.weights_MSD).mean(1)
    shape = held.weights_MSD.shape
    expected_MS = slope_MSD.new_zeros(shape[:2], dtype=torch.float64)
    (mean, variance), into = ([moment.flatten(0, 1) for moment in parts] for parts in (held.normal, slopes[1:]))
    for segment in prior.segments:
        if is_closed(segment):
            expected_MS += add_expected_(segment, mean, variance, scale=scale, into=into).view(shape[:2])
        else:
            expected_MS += segment.add_(slope_MSD, held.weights_MSD, scale)
    return expected_MS.mean(1)


def _family_of(method: Fitted, density: LogDensity) -> Family:
    """Return the family over the weights of a density, made once because it is the same at every step."""
    entry = _FAMILIES.get(density)
    if entry is None or entry[0] != method:
        entry = method, method.family(density.model)
        _FAMILIES[density] = entry
    return entry[1]
