"""PBP: probabilistic backpropagation, independent normal weights that every row changes in closed form.

Means and variances of the weights go through the network to those of its output, f ~ N(m_L, v_L), and the derivatives
of log Z = log N(y; m_L, v_L + noise) come back. A row changes each weight's mean and variance to those under the row's
likelihood,

    m ← m + v ∂log Z/∂m,    v ← v − v² ((∂log Z/∂m)² − 2 ∂log Z/∂v),

and likewise the Gamma over the noise's precision (Hernandez-Lobato and Adams 2015; `torchbayes.native.propagation` has
all formulas). There is no learning rate. The prior is w_i ~ N(μ_i, s_i²/λ), with μ_i and s_i those of the model and
one factor λ ~ Gamma on all precisions. Its factors are refreshed after every pass by expectation propagation.

A second pass counts the rows again, because this is assumed density filtering and not expectation propagation of the
rows: the spread of the weights shrinks with the passes. One pass counts every row once, but depends on their order.

The paper divides the inputs of a layer by √(fan_in + 1), where weights have prior variance 1/λ. Here weights are those
of the network as it is, which is the same with prior scales s = 1/√(fan_in + 1): give `Model` these, by layer, for the
paper's prior. The updates do not depend on that choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from torchbayes.checks import holds
from torchbayes.density.density import LogDensity
from torchbayes.health.descent import Descended
from torchbayes.health.ending import Case, finite
from torchbayes.health.residuals import explained
from torchbayes.linalg import Diagonal
from torchbayes.linalg.structure import is_diagonal
from torchbayes.methods.defaults import Defaults, Report
from torchbayes.methods.ep.gammas import as_log_scales, noise_before
from torchbayes.methods.keepers import Kept
from torchbayes.methods.protocol import DivergedError, Needs, Shelf, Visit
from torchbayes.model.likelihoods.weighted import Weighted
from torchbayes.model.model import Batch, Model
from torchbayes.model.network import Buffers
from torchbayes.model.priors.joint import Joint
from torchbayes.model.priors.univariate import Normal
from torchbayes.native.propagation import Beliefs, Rows, propagate, refresh
from torchbayes.posteriors.gaussian import Gaussian
from torchbayes.predictive.propagated import flattened, normal_noise, rectifier_network

_UNDONE = 0.1  # share of updates that may be undone


@dataclass(frozen=True)
class State:
    """What the next step needs; float64 on the CPU."""

    mean_MD: Tensor  # of the network's weights
    variance_MD: Tensor
    noise_MG2: Tensor  # shapes and rates of the noise's precisions; (M, 0, 2) if the noise is known
    sites_M4D: Tensor  # the factors of the prior (`torchbayes.native.propagation.refresh`)
    factor_M2: Tensor  # shape and rate of λ; (M, 0) if the prior is known
    step: int  # minibatches seen
    steps_per_epoch: int
    total_steps: int


@dataclass(frozen=True)
class Info(Report):
    """What a step reports for the log."""

    loss_M: Tensor  # the same as `nll_M`
    nll_M: Tensor  # mean of −log Z over the batch's rows, each before it was learned from, in nats
    undone_M: Tensor  # share of the updates that were undone
    noise: float  # scale, the geometric mean over members and outputs
    prior_factor: float  # λ, the geometric mean over members


@dataclass(frozen=True)
class PBP(Kept, Defaults):
    """Probabilistic backpropagation: independent normal weights, updated row by row in closed form.

    For regression by networks that are a plain stack of nn.Linear and ReLU (`networks.mlp`), all of whose weights are
    random, under `likelihoods.Gaussian` and normal priors. Several outputs are taken as independent given the inputs
    of the last layer. A fixed noise scale is used as it is. A learned one has a Gamma during the run, and the
    posterior holds the normal over its logarithm with the same mean and variance. Its prior is that of the likelihood,
    `LogInverseChi` or normal, or where that has none Gamma(`shape`, `shape` spread²).

    The posterior is a `Gaussian`; `Propagated(posterior)` predicts in closed form, as it was trained. To continue over
    a stream of rows, give `as_prior` of it to the next model as its prior, with epochs=1.

    Means start at the given or the network's initial values, so that units differ, with the spread of the prior. At
    the end of the first pass the prior's own means take their place. In a network of one layer, which needs no start,
    and under a joint prior, they start at the prior's means.

    Attributes:
        members: M, independent runs from other starts and with other orders of rows, whose mixture is the posterior.
        epochs: passes over the data.
        prior: "scalar", a factor λ ~ Gamma(`shape`, `shape`) on the precision of the model's prior; or "model", that
            prior as it is, as every joint prior is.
        shape: of these Gammas, above 1; they are worth twice as many rows or weights.
        batch_size: rows that a step reads, where the data are not batched already. They are taken one by one, so it
            changes only their order.
    """

    members: int = 1
    epochs: int = 40
    prior: Literal["scalar", "model"] = "scalar"
    shape: float = 6.0
    batch_size: int = 1024

    plan = "loop"
    carries = "prior"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shape <= 1:
            raise ValueError(f"`shape` must be a number above 1; got {self.shape!r}. The paper has 6.")

    @property
    def needs(self) -> Needs:
        """Minibatches of any size."""
        return Needs(batch_size=self.batch_size)

    def length(self, steps_per_epoch: int) -> int:
        """Return the number of steps of a run."""
        return self.epochs * steps_per_epoch

    def begin(
        self, density: LogDensity, weights_MD: Tensor, buffers: Buffers, *, seeds: Sequence[int], steps_per_epoch: int
    ) -> State:
        model, members = density.model, len(weights_MD)
        if density.ranks.data > 1:
            raise ValueError(
                f"rows are taken one after another, so {density.ranks.data} ranks cannot split them. Let them share "
                f"the members (`Ranks.grid(data=1)`)."
            )
        layers, likelihood = check_model(model), normal_noise(model)
        loc_D, scale_D = _prior_of(model)
        mean_MD = weights_MD[:, : len(loc_D)].double().cpu().clone()
        if len(layers) == 1 or _is_joint(model):
            mean_MD = loc_D.expand(members, -1).clone()
        variance_MD = scale_D.square().expand(members, -1).clone()
        factor_M2 = variance_MD.new_full((members, 2 if _is_free(self, model) else 0), self.shape)
        wider = self.shape / (self.shape - 1) if factor_M2.numel() else 1.0  # mean of 1/λ
        variance_MD *= wider
        sites_M4D = variance_MD.new_zeros(members, 4, len(loc_D))
        sites_M4D[:, 0] = 1 / wider
        sites_M4D[:, 1] = (mean_MD - loc_D) / scale_D / wider  # the factors hold the start until they are refreshed
        noise_MG2 = variance_MD.new_empty(members, 0, 2)
        if likelihood.scale == "learned":
            noise_MG2 = noise_before(model, likelihood, self.shape).expand(members, -1, -1).clone()
        progress = (0, steps_per_epoch, self.epochs * steps_per_epoch)
        return State(mean_MD, variance_MD, noise_MG2, sites_M4D, factor_M2, *progress)

    def visit(self, state: State) -> Visit | None:
        """Return the next minibatch; None when the run is over."""
        return Visit("minibatch", state.step) if state.step < state.total_steps else None

    def move(self, density: LogDensity, state: State, batch: Batch, *, donate: bool = False) -> tuple[State, Info]:
        model = density.model
        now = replace(
            state,
            mean_MD=state.mean_MD.clone(),
            variance_MD=state.variance_MD.clone(),
            noise_MG2=state.noise_MG2.clone(),
            step=state.step + 1,
        )
        sums_M3 = _learn(model, now, batch)
        if now.step % now.steps_per_epoch == 0:
            now = replace(now, sites_M4D=now.sites_M4D.clone(), factor_M2=now.factor_M2.clone())
            _refresh(model, now)
        return now, _info(model, now, sums_M3)

    def posterior(self, density: LogDensity, state: State, shelf: Shelf | None = None) -> Gaussian:
        """Return the mixture of the members' normal distributions."""
        network = density.model.network
        log_scale_MG, spread_MG = as_log_scales(state.noise_MG2)
        mean_MD = torch.cat([state.mean_MD, log_scale_MG], 1)
        variance_MD = torch.cat([state.variance_MD, spread_MG], 1)
        least = torch.finfo(network.dtype).tiny
        mean_MD, variance_MD = (t.to(network.device, network.dtype) for t in (mean_MD, variance_MD.clamp_min(least)))
        return Gaussian(density.model, mean_MD, Diagonal(variance_MD))

    def ending(self, posterior: Gaussian, state: State) -> Descended:
        why = "the weights are spread wider than the data bear (standardise inputs and targets, or take more epochs)"
        first = [_undone, finite, explained]
        return Descended(why=why, together=True, noise=False, first=first, weights_MD=posterior.mean_MD, buffers={})


def _undone(case: Case) -> list[str]:
    """Return a problem if many updates were undone."""
    undone = case.history.columns().get("undone")
    share = 0.0 if undone is None or not undone.numel() else float(undone[:, -1].max())
    if share <= _UNDONE:
        return []
    return [
        f"{100 * share:.0f} % of the updates of the last pass left no positive variance and were undone "
        f"(standardise inputs and targets, or give the noise scale in units of the targets)"
    ]


def check_model(model: Model) -> tuple[Any, ...]:
    """Return the layers of a model's network; ValueError if the method does not suit the model."""
    normal_noise(model)
    layers = rectifier_network(model).layers
    if model.temperature != 1:
        raise ValueError(f"PBP is Bayes at T = 1; the model has temperature {model.temperature}. Take VI() for others.")
    start = model.network.layout.size
    for segment in model.prior.segments:
        prior = segment.prior
        if isinstance(prior, Joint) and not is_diagonal(prior.covariance):
            raise ValueError(
                f"PBP needs independent weights; the joint prior has a {prior.covariance.kind} covariance. Use "
                f"priors.Normal, or give `as_prior` a posterior of PBP, VI or IVON."
            )
        if segment.where.start < start and not isinstance(prior, Normal | Joint):
            raise ValueError(f"PBP needs normal priors; got {prior!r}. Use priors.Normal or priors.FanInNormal.")
    return layers


def _is_joint(model: Model) -> bool:
    return any(isinstance(segment.prior, Joint) for segment in model.prior.segments)


def _is_free(method: PBP, model: Model) -> bool:
    """Return whether a factor on the prior's precision is inferred."""
    return method.prior == "scalar" and not _is_joint(model)


def _prior_of(model: Model) -> tuple[Tensor, Tensor]:
    """Return means and standard deviations of the network's weights under the prior, float64."""
    size = model.network.layout.size
    return model.prior.locs()[:size].contiguous(), model.prior.stds()[:size].contiguous()


def _learn(model: Model, now: State, batch: Batch) -> Tensor:
    """Change a state by the rows of a batch, and return what `propagate` does; DivergedError if log Z is not finite."""
    network, targets, counts_MB = rectifier_network(model), batch.targets, None
    likelihood = model.likelihood
    while isinstance(likelihood, Weighted) and holds(likelihood, "counted"):
        likelihood, (targets, weights) = likelihood.base, targets
        counts_MB = weights.double() if counts_MB is None else counts_MB * weights.double()
    inputs_MBI = flattened(network, batch.inputs, axis=1)
    targets_MBK = targets.double().reshape(*inputs_MBI.shape[:2], network.layers[-1].fan_out)
    counts_MB = None if counts_MB is None else counts_MB.cpu().contiguous()
    rows, noise = Rows(inputs_MBI.cpu().contiguous(), targets_MBK.cpu().contiguous(), counts_MB), now.noise_MG2
    if not noise.shape[1]:
        noise = torch.tensor(normal_noise(model).scales, dtype=torch.float64).square()
    sums_M3 = propagate(network.layers, Beliefs(now.mean_MD, now.variance_MD), noise, rows=rows)
    if not torch.isfinite(sums_M3).all():
        member = int((~torch.isfinite(sums_M3).all(1)).nonzero()[0])
        raise DivergedError(
            f"log Z is not finite at step {now.step - 1} of {now.total_steps}, for member {member}. The batch holds "
            f"values up to {float(rows.inputs_MBI.abs().max()):.3g} in its inputs and "
            f"{float(rows.targets_MBK.abs().max()):.3g} in its targets: standardise them."
        )
    return sums_M3


def _refresh(model: Model, now: State) -> None:
    """Replace the factors of the prior in a state, which removes the start from them."""
    loc_D, scale_D = _prior_of(model)
    if now.factor_M2.numel():
        beliefs = Beliefs(now.mean_MD, now.variance_MD)
        refresh(beliefs, now.sites_M4D, now.factor_M2, loc_D=loc_D, scale_D=scale_D)
        return
    shift_MD = now.sites_M4D[:, 1]
    now.mean_MD.sub_(shift_MD * now.variance_MD / scale_D)
    shift_MD.zero_()


def _info(model: Model, now: State, seen_M3: Tensor) -> Info:
    """Return what a step reports."""
    total_M, undone_M, rows_M = seen_M3.unbind(1)
    updates = now.mean_MD.shape[1] + now.noise_MG2.shape[1]
    rows_M = rows_M.clamp_min(1)
    scales = as_log_scales(now.noise_MG2)[0] if now.noise_MG2.numel() else _logs(normal_noise(model).scales)
    shape_M, rate_M = now.factor_M2.unbind(1) if now.factor_M2.numel() else torch.ones(2, 1, dtype=torch.float64)
    factor = float((shape_M / rate_M).log().mean().exp())
    nll_M = -total_M / rows_M
    return Info(nll_M, nll_M, undone_M / (updates * rows_M), float(scales.mean().exp()), factor)


def _logs(scales: Sequence[float]) -> Tensor:
    return torch.tensor(scales, dtype=torch.float64).log()
