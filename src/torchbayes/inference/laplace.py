r"""Laplace: a Gaussian at a mode, with the curvature of the log joint density there as its precision.

    q(w) = N(w*, P⁻¹),    P = Σ_n J_nᵀ Λ_n J_n + diag(−∂² log p(w*))

J is the Jacobian of the network's outputs in its weights and Λ the curvature of the likelihood in the outputs, so that
the first part, the generalised Gauss-Newton matrix, is the Hessian of the negative log likelihood of the network
linearised at w*. MacKay (1992); Ritter et al. (2018) for Kronecker factors; Daxberger et al. (2021) for networks that
are trained already. With M modes the posterior is the mixture of their Gaussians. The data are passed over once, twice
for EKFAC, a few times for a low rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from torchbayes.curvature.anatomy import Findings, anatomy, look
from torchbayes.curvature.collect import Collector, Where, units
from torchbayes.curvature.passes import EigenvalueSums, HessianSums, LowRankSums
from torchbayes.curvature.sums import DenseSums, DiagonalSums, KroneckerSums, Sums
from torchbayes.inference.descent import DivergedError
from torchbayes.inference.mode import warn_unless_mode, with_joint_prior
from torchbayes.inference.settings import check_counts
from torchbayes.model.density import LogDensity
from torchbayes.model.model import Batch, Model
from torchbayes.model.network import Buffers
from torchbayes.posteriors.laplace import LaplacePosterior
from torchbayes.tuning import tune

StructureName = Literal["diagonal", "kronecker", "ekfac", "dense", "low_rank"]
CurvatureName = Literal["ggn", "fisher", "empirical", "hessian"]


@dataclass(frozen=True)
class State:
    """What the next step needs.

    Attributes:
        weights_MD: the modes.
        buffers: the network's buffers of each member, (M, ...).
        sums: what the pass adds up, name -> (M, ...); empty before the first step.
        log_likelihood_M: Σ log p(y|f) so far, float64.
        gradient_MD: gradient of it so far.
        seeds: one seed per member.
        step: batches seen.
        steps_per_epoch: length of a pass.
        num_targets: values of the targets so far.
        found: how the network is built, as `Findings.text`; empty before the first step.
    """

    weights_MD: Tensor
    buffers: Buffers
    sums: Mapping[str, Tensor]
    log_likelihood_M: Tensor
    gradient_MD: Tensor
    seeds: tuple[int, ...]
    step: int
    steps_per_epoch: int
    num_targets: int
    found: str


@dataclass(frozen=True)
class Info:
    """What only a reader of a step needs.

    Attributes:
        nll_M: mean negative log likelihood of the batch's rows at the modes, in nats.
    """

    nll_M: Tensor

    def means(self) -> dict[str, Tensor]:
        """Return what is averaged over an epoch, by name, each (M,)."""
        return {"nll": self.nll_M}

    def now(self) -> dict[str, float]:
        """Return what is true of the last step of an epoch: nothing."""
        return {}


@dataclass(frozen=True)
class Laplace:
    """Gaussians around given modes: `fit(model, data, Laplace(), start=net)`, or `start` a MAP posterior of M members.

    Attributes:
        structure: of the precision: "diagonal", "kronecker" (KFAC), "ekfac", "dense", "low_rank".
        curvature: "ggn" (exact generalised Gauss-Newton), "fisher" (by sampled targets), "empirical" (by the observed
            ones), "hessian" (exact, may be indefinite; dense alone, for small networks).
        prior: precision of the prior: "model" keeps the model's, "scalar" multiplies it by one factor, "layer" by one
            for each layer, "weight" by one for each weight, chosen by the evidence (`tune` does the same later).
        noise: whether the evidence also chooses the noise scale of a regression whose scale is fixed.
        batch_size: rows per step where the data do not bring their own batches.
        samples: targets drawn for each row by "fisher".
        sharing: how Kronecker factors see weights that are used at several places: "expand" or "reduce".
        joint_bias: whether a layer's biases share its Kronecker factors, as inputs that are 1.
        rank: directions of "low_rank".
        passes: over the data for "low_rank": the first looks for directions, the last measures the curvature there.
        chunk: numbers that a piece of a batch may take: the bound on memory.
        check_mode: warn if the gradient says that a start is no mode; costs a backward pass.
        members: M, set by `fit` to the number of modes.
    """

    structure: StructureName = "kronecker"
    curvature: CurvatureName = "ggn"
    prior: Literal["model", "scalar", "layer", "weight"] = "model"
    noise: bool = False
    batch_size: int = 1000
    samples: int = field(default=1, kw_only=True)
    sharing: Literal["expand", "reduce"] = field(default="expand", kw_only=True)
    joint_bias: bool = field(default=True, kw_only=True)
    rank: int = field(default=20, kw_only=True)
    passes: int = field(default=3, kw_only=True)
    chunk: int = field(default=2**24, kw_only=True)
    check_mode: bool = field(default=True, kw_only=True)
    members: int = field(default=1, kw_only=True)

    plan = "loop"
    at_modes = True

    def __post_init__(self) -> None:
        check_counts(batch_size=self.batch_size, samples=self.samples, rank=self.rank, members=self.members)
        check_counts(chunk=self.chunk, passes=self.passes)
        choices = {"structure": StructureName, "curvature": CurvatureName}
        choices |= {"prior": Literal["model", "scalar", "layer", "weight"], "sharing": Literal["expand", "reduce"]}
        for name, known in choices.items():
            if getattr(self, name) not in get_args(known):
                raise ValueError(f"`{name}` must be one of {', '.join(get_args(known))}; got {getattr(self, name)!r}.")
        if self.curvature == "hessian" and self.structure != "dense":
            raise ValueError(
                f"the exact Hessian comes as a dense matrix alone; got structure={self.structure!r}. Use "
                f"structure='dense', or curvature='ggn'."
            )
        if self.structure == "low_rank" and self.passes < 2:
            raise ValueError("`passes` must be at least 2 for a low rank: one to look, one to measure; got 1.")

    @property
    def epochs(self) -> int:
        """Passes over the data."""
        return self._sums().passes

    def _sums(self) -> Sums:
        if self.curvature == "hessian":
            return HessianSums()
        factors = KroneckerSums(self.sharing)
        return {
            "diagonal": DiagonalSums(),
            "kronecker": factors,
            "ekfac": EigenvalueSums(factors),
            "dense": DenseSums(self.chunk),
            "low_rank": LowRankSums(self.rank, self.passes),
        }[self.structure]

    def collector(self, model: Model, findings: Findings) -> Collector:
        """Return what adds up the curvature that these settings name.

        Args:
            model: the model.
            findings: of a look at its network.

        Returns:
            The collector.
        """
        rows = max(1, self.chunk // findings.numbers)
        layers = anatomy(model, findings, joint_bias=self.joint_bias)
        return Collector(layers, self._sums(), self.curvature, self.samples, rows)

    def init(
        self, density: LogDensity, weights_MD: Tensor, buffers: Buffers, *, seeds: Sequence[int], steps_per_epoch: int
    ) -> State:
        """Return the state before the first step.

        Args:
            density: the model with its number of rows.
            weights_MD: the modes.
            buffers: the network's buffers of each member, (M, ...).
            seeds: one seed per member.
            steps_per_epoch: length of a pass.

        Returns:
            The state.
        """
        del density
        none_M = weights_MD.new_zeros(len(weights_MD), dtype=torch.float64)
        gradient_MD = torch.zeros_like(weights_MD)
        return State(
            weights_MD.clone(), dict(buffers), {}, none_M, gradient_MD, tuple(seeds), 0, steps_per_epoch, 0, ""
        )

    def step(self, density: LogDensity, state: State, batch: Batch, *, donate: bool = False) -> tuple[State, Info]:
        """Add one batch to the sums of every member.

        Args:
            density: the model with its number of rows, and the ranks that share them.
            state: the state; intact afterwards unless donated.
            batch: one batch per member, (M, B, ...).
            donate: give the state's tensors up to save copies.

        Returns:
            The new state, and what was seen.

        Raises:
            DivergedError: if the log likelihood is not finite.
        """
        now, model = state if donate else clone(state), density.model
        if not now.found:
            first = batch.map(lambda t: t[0])
            now = replace(now, found=look(model, now.weights_MD[0], first.inputs).text())
        collector, where = (
            self.collector(model, Findings.parse(now.found)),
            Where(now.weights_MD, now.buffers, now.seeds),
        )
        now = now if now.sums else replace(now, sums=collector.empty(where))
        place = divmod(now.step, now.steps_per_epoch)
        gradient_MD = now.gradient_MD if self.check_mode else None
        found_M = collector.add_(
            dict(now.sums), where, batch, gradient_MD=gradient_MD, ranks=density.ranks, place=place
        )
        if not torch.isfinite(found_M).all():
            raise DivergedError(
                f"the log likelihood of batch {now.step} is not finite at the mode of member "
                f"{int((~torch.isfinite(found_M)).nonzero()[0])}. Look for extreme values in the data or the weights."
            )
        if place[1] == now.steps_per_epoch - 1:
            collector.turn_(dict(now.sums), where, place[0])
        total_M = now.log_likelihood_M + (found_M if place[0] == 0 else 0)
        values = now.num_targets + (batch.targets[0].numel() if place[0] == 0 else 0)
        now = replace(now, log_likelihood_M=total_M, num_targets=values, step=now.step + 1)
        return now, Info(-found_M / batch.targets.shape[1])

    def posterior(self, density: LogDensity, state: State) -> LaplacePosterior:
        """Return the mixture of the modes' Gaussians, its prior tuned if the settings say so.

        Raises:
            ValueError: if the pass is not over, or a precision is not positive definite.
        """
        if state.step < self.epochs * state.steps_per_epoch:
            raise ValueError(
                f"the pass over the data is not over: {state.step} of {self.epochs * state.steps_per_epoch} batches. "
                f"Resume the run."
            )
        model, weights_MD = density.model, state.weights_MD
        reference_MD, strength_D = units(model, weights_MD)
        collector, factor = self.collector(model, Findings.parse(state.found)), model.scales(1, 1).likelihood
        curvature = collector.curvature(state.sums, reference_MD)
        curvature = curvature if factor == 1 else curvature.scaled(factor)
        if self.check_mode:
            gradient_MD = factor * state.gradient_MD
            model.prior.add_gradient_(gradient_MD, weights_MD, model.scales(1, 1).prior)
            warn_unless_mode(gradient_MD * reference_MD.rsqrt(), curvature.trace())
        if model.prior.joint is not None and not model.prior.joint.is_independent:
            curvature = with_joint_prior(curvature, model.prior.joint)
        found = LaplacePosterior(
            model,
            weights_MD.clone(),
            curvature,
            reference_MD,
            strength_D,
            state.log_likelihood_M,
            density.num_data,
            state.num_targets,
            buffers_M=dict(state.buffers) or None,
            statistics_known=True,
        )
        found = found if self.prior == "model" and not self.noise else tune(found, prior=self.prior, noise=self.noise)
        _ = found.gaussian  # now, so that what is not positive definite is said here
        return found


def clone(state: State) -> State:
    """Return a copy that shares no tensor with the state."""
    copies = {n: {k: t.clone() for k, t in getattr(state, n).items()} for n in ("buffers", "sums")}
    tensors = {n: getattr(state, n).clone() for n in ("weights_MD", "log_likelihood_M", "gradient_MD")}
    return replace(state, **copies, **tensors)
