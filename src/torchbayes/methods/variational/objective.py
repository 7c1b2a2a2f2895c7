"""The objective of variational inference, from draws of the weights or from layers that take distributions.

A descent on the parameters of a distribution over the weights is the motion of VI and of flows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

import torch
from torch import Tensor

from torchbayes.density.autograd import Chunk, by_chunks
from torchbayes.density.backend import Mixing
from torchbayes.density.density import LogDensity
from torchbayes.density.dynamics import Value
from torchbayes.density.layers.passes import Gradients, by_layers, mixed_by_layers
from torchbayes.density.layers.uses import Estimator
from torchbayes.methods.defaults import Defaults, OnMinibatches, Report
from torchbayes.methods.finite import Seen, looked_at, writable
from torchbayes.methods.keepers import Following, Kept
from torchbayes.methods.noise import normals
from torchbayes.methods.optimise.descent import Scheduled, Trajectory, start
from torchbayes.methods.optimise.optimizers import Optimizer
from torchbayes.methods.schedules import epochs_of
from torchbayes.methods.variational.families import Family, Slopes
from torchbayes.methods.variational.weighting import Weighting, weight_at
from torchbayes.model.batches.batch import batch_size, rows_of
from torchbayes.model.model import Batch, Model
from torchbayes.model.network import Buffers
from torchbayes.model.precision import lowered
from torchbayes.model.priors.expected import add_expected_, is_closed
from torchbayes.native.process import differentiable
from torchbayes.randomness.seeds import Purpose, mix, numbered

USUAL_STEPS = 5000  # more than elsewhere, because a scale takes longer to settle than a weight
_NOISE = Purpose.VARIATIONAL


@dataclass(frozen=True)
class Drawing:
    """From which distributions weights are drawn, and how."""

    family: Family
    # "weights" draws all weights; the others take noise in the layers
    estimator: Literal["weights", "auto", "local", "flipout"]
    draws: int  # S, per step
    antithetic: bool  # whether they come in pairs ±ε
    normal: bool = True  # whether the family is normal; of others only means and variances are known
    alpha: float = 0.0  # α of the divergence; 0 takes the mean of the draws' log likelihoods


class Terms(NamedTuple):
    """The objective of a step, in nats."""

    loss_M: Tensor  # all of it, per observation
    nll_M: Tensor  # mean negative log likelihood, untempered
    kl_M: Tensor  # KL(q ‖ p)


def check_pairs(draws: int, *, antithetic: bool) -> None:
    """Raise ValueError if antithetic draws do not come in pairs."""
    if antithetic and draws % 2:
        raise ValueError(f"`antithetic` draws come in pairs; got `draws` {draws}. Give an even number.")


Update = Callable[..., None]
"""Change parameters and memory of the optimiser in place, by a learning rate `lr`."""


@dataclass(frozen=True)
class State(Following):
    """The state of M fits."""

    # of the parameters (M, P) of the distribution; the first D are the means
    trajectory: Trajectory = field(metadata={"stored_as": "descent"})
    size: int  # D


@dataclass(frozen=True)
class Info(Report):
    """What a step reports for the log, in nats."""

    loss_M: Tensor  # the objective per observation
    nll_M: Tensor  # mean −log p of the batch's rows under the draws; with α > 0 mean −(1/α) log E_q p(y | w)^α
    kl_M: Tensor  # KL(q ‖ p) of all weights; from the draws where the prior has no closed form
    elbo_M: Tensor  # −N nll − KL, an estimate of a lower bound on the log evidence for T = 1; no bound with α > 0
    lr: float
    kl_weight: float  # β


@dataclass(frozen=True)
class ByMembers(ABC):
    """A bound as a loss of weights and further parameters of one member after the other, by autograd.

    It stands in for a density, which knows no such parameters.
    """

    model: Model
    num_data: int  # N

    @abstractmethod
    def terms(self, parameters_E: Tensor, rows: Batch, *, buffers: Buffers, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return expected log likelihood of some rows, expected log prior and entropy of a member, in nats.

        Buffers are changed in place; the seed is that of what the network draws.
        """

    def loss(self, weights_ME: Tensor, batch: Batch, *, buffers: Buffers, seeds: Sequence[int], out: Tensor) -> Value:
        """Return the negative bound per observation (M,), and write its gradient to `out` (M, E).

        `weights_ME` are the weights of each member followed by its other parameters. Buffers are changed in place. The
        expected log likelihood (M,) in the `Value` is an estimate for all rows.
        """
        model, rows = self.model, batch_size(batch.inputs, 1)
        scales = model.scales(self.num_data, rows)
        factor = -(model.temperature if model.tempering == "joint" else 1.0) / self.num_data
        sums = []
        for m, seed in enumerate(seeds):
            member_buffers = {name: buffer[m] for name, buffer in buffers.items()}
            rows_m = Batch(model.network.arrange(rows_of(batch.inputs, m)), rows_of(batch.targets, m))

            def of(chunk: Chunk, m: int = m, seed: int = seed) -> Tensor:
                parameters_E, (own_seed,) = weights_ME[m].detach().clone().requires_grad_(), chunk.seeds([seed])
                fit, *others = self.terms(parameters_E, chunk.rows, buffers=chunk.buffers or {}, seed=own_seed)
                loss = factor * scales.likelihood * fit
                if not chunk.adds:
                    loss = loss + factor * (scales.prior * others[0] + others[1])
                gradient_E = torch.autograd.grad(loss * chunk.scale, parameters_E)[0].div_(chunk.scale)
                out[m] = out[m] + gradient_E if chunk.adds else gradient_E
                return torch.stack([loss.detach().double(), fit.detach().double() * (self.num_data / rows)])

            with differentiable(), lowered():
                sums_2 = by_chunks(
                    rows_m,
                    of,
                    size=model.chunk_size,
                    gradient=out[m],
                    factor=factor * scales.likelihood,
                    scaled=model.network.precision.is_half,
                    buffers=member_buffers,
                )
            sums.append(sums_2)
        loss_M, fit_M = torch.stack(sums).unbind(1)
        return Value(loss_M, out, fit_M)


class Fitting(Scheduled, OnMinibatches, Kept, Defaults, ABC):
    """Base of these methods."""

    if TYPE_CHECKING:
        kl_weight: float | Weighting | None

    usual_steps = USUAL_STEPS

    @abstractmethod
    def parameters(self, density: LogDensity, weights_MD: Tensor, *, seeds: Sequence[int]) -> Tensor:
        """Return the first parameters, (M, P), around some weights."""

    @abstractmethod
    def objective(
        self, density: LogDensity, now: Trajectory, batch: Batch, *, kl_weight: float
    ) -> tuple[Terms, Tensor, Update]:
        """Return the objective of a step, a tensor (M, ...) that is finite where its gradient is, and the step itself.

        Buffers are brought up to date.
        """

    def begin(
        self, density: LogDensity, weights_MD: Tensor, buffers: Buffers, *, seeds: Sequence[int], steps_per_epoch: int
    ) -> State:
        epochs = epochs_of(self.epochs, steps_per_epoch, steps=USUAL_STEPS)
        parameters_MP = self.parameters(density, weights_MD, seeds=seeds)
        return State(
            start(
                parameters_MP, buffers, seeds, optimizer=self.optimizer, epochs=epochs, steps_per_epoch=steps_per_epoch
            ),
            weights_MD.shape[1],
        )

    def move(self, density: LogDensity, state: State, batch: Batch, *, donate: bool = False) -> tuple[State, Info]:
        now = writable(state.trajectory, donate=donate)
        lr, weight = self.rate(now), weight_at(self.kl_weight, now)
        terms, health_MX, update = self.objective(density, now, batch, kl_weight=weight)
        unseen = looked_at(now, batch, Seen.of(now.step, lr, value_M=terms.loss_M, gradient_MD=health_MX))
        update(lr=lr)
        info = Info(*terms, -density.num_data * terms.nll_M - terms.kl_M, lr, weight)
        return replace(state, trajectory=replace(now, step=now.step + 1, unseen=unseen)), info


def by_autograd(
    optimizer: Optimizer, density: LogDensity, now: Trajectory, *, batch: Batch, drawing: Drawing, kl_weight: float
) -> tuple[Terms, Tensor, Update]:
    """Return the objective of a step, its gradient by the parameters, and the step of the optimizer."""
    terms = differentiate(density, now, batch, drawing=drawing, kl_weight=kl_weight)
    return terms, now.gradient_MD, partial(optimizer.update, now.weights_MD, now.gradient_MD, now.slots)


class _Pass(NamedTuple):
    """What a step learns from the data."""

    nll_M: Tensor  # mean negative log likelihood
    weights_MSD: Tensor  # the draws; S = 0 where nothing needs them
    noise_MSE: Tensor
    slopes: Slopes  # of the loss, by draws or by marginal means and variances


def differentiate(density: LogDensity, now: Trajectory, batch: Batch, *, drawing: Drawing, kl_weight: float) -> Terms:
    """Return the objective of a step, and write its gradient by the parameters (M, P) to `now`.

    Buffers are brought up to date.
    """
    family, model, parameters_MP = drawing.family, density.model, now.weights_MD
    entropy_scale = -kl_weight * model.temperature / density.num_data
    scale = entropy_scale * model.scales(1, 1).prior
    data = (_by_weights if drawing.estimator == "weights" else _by_layers)(density, now, batch, drawing)
    mean_MD, variance_MD = parameters_MP[:, : model.layout.size], family.variance(parameters_MP)
    expected_M = torch.zeros_like(data.nll_M)
    for segment in model.prior.segments:
        if is_closed(segment, normal=drawing.normal, correlated=family.correlated):
            expected_M += add_expected_(segment, mean_MD, variance_MD, scale=scale, into=data.slopes[1:3])
        else:
            log_prob_MS = segment.add_(data.slopes.weights_MSD, data.weights_MSD, scale / drawing.draws)
            expected_M += log_prob_MS.mean(1)
    slopes = data.slopes._replace(entropy=entropy_scale)
    family.pull(parameters_MP, data.noise_MSE, slopes, out=now.gradient_MD)
    entropy_M = family.entropy(parameters_MP)
    loss_M = data.nll_M + scale * expected_M + entropy_scale * entropy_M
    return Terms(loss_M, data.nll_M, -expected_M - entropy_M)


def _by_weights(density: LogDensity, now: Trajectory, batch: Batch, drawing: Drawing) -> _Pass:
    """Return loss and slopes at S draws of the weights."""
    noise_MSE, draws = _noise(drawing, now, density.model.layout.size), drawing.draws
    weights_MSD = drawing.family.draw(now.weights_MD, noise_MSE)
    slope_MSD = torch.empty_like(weights_MSD)
    nll_M = ask(density, now, batch, weights_MSD=weights_MSD, out=slope_MSD, alpha=drawing.alpha)
    slope_MSD = slope_MSD.div_(draws) if draws > 1 else slope_MSD
    by_mean_MD, by_variance_MD = weights_MSD.new_zeros(2, len(noise_MSE), weights_MSD.shape[-1]).unbind()
    return _Pass(nll_M, weights_MSD, noise_MSE, Slopes(slope_MSD, by_mean_MD, by_variance_MD, 0.0))


def noise_stream(now: Trajectory, purpose: Purpose = _NOISE) -> int:
    """Return the stream of a step's standard normals, the same for all implementations."""
    return mix(purpose, now.step)


def ask(
    density: LogDensity, now: Trajectory, batch: Batch, *, weights_MSD: Tensor, out: Tensor, alpha: float = 0.0
) -> Tensor:
    """Return the mean negative log likelihood of draws, (M,), and write its gradient at each, (M, S, D).

    The draws are one stack of M · S networks, and those of a member see the same rows. The buffers of a member become
    the mean over its draws. With α > 0 a row's log likelihood is (T/α) log mean_s p(y | w_s)^(α/T), because T is
    removed from the objective of the tempered likelihood p^(1/T). The gradient is S times that by each draw.
    """
    draws, buffers = weights_MSD.shape[1], now.buffers
    seeds = [s for seed in now.seeds for s in numbered(Purpose.VARIATIONAL_MASKS, seed, now.step, count=draws)]
    if draws > 1:
        buffers = {name: buffer.repeat_interleave(draws, 0) for name, buffer in buffers.items()}
        batch = batch.map(lambda t: t.repeat_interleave(draws, 0))
    stacked = weights_MSD.flatten(0, 1)
    mixing = Mixing(draws, alpha / density.model.temperature) if alpha else None
    nll = density.nll(stacked, batch, buffers=buffers, seeds=seeds, out=out.view_as(stacked), mixing=mixing).log_density
    for name, buffer in buffers.items() if draws > 1 else ():
        by_draw = buffer.unflatten(0, (-1, draws))
        now.buffers[name].copy_(by_draw.mean(1) if buffer.is_floating_point() else by_draw[:, 0])
    return nll if alpha else nll.view(-1, draws).mean(1)


def _by_layers(density: LogDensity, now: Trajectory, batch: Batch, drawing: Drawing) -> _Pass:
    """Return loss and slopes of S passes in which each layer takes its weights as distributions.

    Weights are drawn only where the expectation of the prior has no closed form, and only for that.
    """
    mean_MD, log_scale_MD = now.weights_MD.chunk(2, dim=1)
    scale_MD = log_scale_MD.exp()
    closed = all(is_closed(segment) for segment in density.model.prior.segments)
    noise_MSE = _noise(drawing, now, mean_MD.shape[1]) if not closed else mean_MD.new_empty(len(mean_MD), 0, 1)
    weights_MSD = mean_MD.new_empty(len(mean_MD), 0, mean_MD.shape[1])
    if not closed:
        weights_MSD = drawing.family.draw(now.weights_MD, noise_MSE)
    nll_M, by_mean_MD, by_scale_MD, _ = ask_layers(density, now, batch, drawing=drawing, scale_MD=scale_MD)
    slopes = Slopes(torch.zeros_like(weights_MSD), by_mean_MD, by_scale_MD.div_(scale_MD).mul_(0.5), 0.0)
    return _Pass(nll_M, weights_MSD, noise_MSE, slopes)


def ask_layers(density: LogDensity, now: Trajectory, batch: Batch, *, drawing: Drawing, scale_MD: Tensor) -> Gradients:
    """Return loss and slopes of S passes by layers: their mean or, with α > 0, their joint values."""
    if drawing.alpha:
        return mixed_by_layers(
            density,
            (now.weights_MD[:, : scale_MD.shape[1]], scale_MD),
            batch=batch,
            estimator=cast("Estimator", drawing.estimator),
            buffers=now.buffers,
            seeds=now.seeds,
            steps=range(now.step * drawing.draws, (now.step + 1) * drawing.draws),
            power=drawing.alpha / density.model.temperature,
        )
    gradients = [
        by_layers(
            density,
            now.weights_MD[:, : scale_MD.shape[1]],
            scale_MD,
            batch=batch,
            estimator=cast("Estimator", drawing.estimator),
            buffers=now.buffers,
            seeds=now.seeds,
            step=now.step * drawing.draws + s,
        )
        for s in range(drawing.draws)
    ]
    if len(gradients) == 1:
        return gradients[0]
    return Gradients(*(torch.stack(values).mean(0) for values in zip(*gradients, strict=True)))


def _noise(drawing: Drawing, now: Trajectory, size: int) -> Tensor:
    """Return the standard normals of a step for D weights, (M, S, E)."""
    pairs, count = 2 if drawing.antithetic else 1, drawing.family.noise_size(size)
    like = now.weights_MD.new_empty(len(now.seeds), drawing.draws // pairs * count)
    noise_MSE = normals(now.seeds, _NOISE, now.step, like=like).unflatten(1, (-1, count))
    return torch.cat([noise_MSE, -noise_MSE], dim=1) if drawing.antithetic else noise_MSE
