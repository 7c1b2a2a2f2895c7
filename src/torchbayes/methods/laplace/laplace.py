"""Laplace: a Gaussian at a mode, with the curvature of the log joint density there as its precision.

    q(w) = N(w*, P⁻¹),    P = Σ_n J_nᵀ Λ_n J_n + diag(−∂² log p(w*))

J is the Jacobian of the network's outputs in its weights and Λ the curvature of the likelihood in the outputs. The
first part, the generalised Gauss-Newton matrix, is the Hessian of the negative log likelihood of the network
linearised at w*. MacKay (1992); Ritter et al. (2018) for Kronecker factors; Daxberger et al. (2021) for networks that
are trained already. With M modes the posterior is the mixture of their Gaussians. The data are passed over once, twice
for EKFAC, a few times for a low rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from torchbayes.curvature.collect import units
from torchbayes.density.density import LogDensity
from torchbayes.health.ending import Ended
from torchbayes.health.mode import off_mode, too_wide
from torchbayes.linalg import Curvature
from torchbayes.linalg.dropped import evened
from torchbayes.methods.choices import Choice, Epochs, Strength
from torchbayes.methods.defaults import Defaults, Report
from torchbayes.methods.finite import writable
from torchbayes.methods.keepers import Kept
from torchbayes.methods.laplace import curvature_pass
from torchbayes.methods.laplace.curvature_pass import (
    CurvatureName,
    CurvaturePass,
    CurvatureSettings,
    Sharing,
    StructureName,
)
from torchbayes.methods.laplace.tuning import tune
from torchbayes.methods.optimise.seeker import seeker
from torchbayes.methods.protocol import Needs, Onward, Shelf, Visit
from torchbayes.model.model import Batch, Model
from torchbayes.model.network import Buffers
from torchbayes.model.priors.bound import correlated
from torchbayes.model.priors.groups import SharedVariance
from torchbayes.model.probes.functions import refuse_coupled
from torchbayes.posteriors.laplace import LaplacePosterior
from torchbayes.posteriors.problems import note

State = CurvaturePass
PriorName = Literal["model", "scalar", "layer", "weight"]

_EVENED = 0.5  # share of the trace of the curvature that may lie in directions that are not held, without a word


@dataclass(frozen=True)
class Info(Report):
    """Mean negative log likelihood of the batch's rows at the modes, in nats, for the log."""

    nll_M: Tensor


@dataclass(frozen=True)
class Laplace(Kept, Defaults):
    """Gaussians around given modes: `fit(model, data, Laplace(), start=net)`, or `start` a MAP posterior of M members.

    Without a start, `fit` trains M networks by `MAP()` and puts Gaussians around them. The rows that are held out to
    choose the number of epochs then also choose the factor on the prior's precision, instead of the evidence.

    Attributes:
        structure: of the precision: "diagonal", "kronecker" (KFAC), "ekfac", "dense", "low_rank".
        curvature: "ggn" (exact generalised Gauss-Newton), "fisher" (by sampled targets), "empirical" (by the observed
            ones), "hessian" (exact, may be indefinite; only dense, for small networks), or "auto": "ggn" where a row
            has up to 1,000 outputs (classes, or classes times tokens), or for a low rank; else "fisher".
        prior: precision of the prior: "scalar" multiplies the model's by one factor, "layer" by one for each layer,
            "weight" by one for each weight, chosen by the evidence (`tune` can do the same later); "model" keeps it. A
            number is the factor itself.
        noise: whether the evidence also chooses the noise scale of a regression whose scale is fixed.
        batch_size: rows per step where the data are not batched already.
        samples: targets drawn for each row by "fisher".
        sharing: how Kronecker factors treat weights that are used at several places: "expand" or "reduce".
        joint_bias: whether a layer's biases share its Kronecker factors, as inputs that are 1.
        rank: directions of "low_rank" (None: 20), and eigenvectors that "kronecker" keeps on the long side of a layer:
            one with 10 times the length of the other and more than 4 times the rank, as layers of adapters have. The
            trace of the others is spread evenly over all directions but these, which lowers the evidence; nothing is
            lost if the rows have no more directions than the rank. None: 32, if the whole factors of long sides would
            have more than 2²⁴ numbers together (64 MB in single precision); else they are kept whole, as a rank of a
            quarter of the side or more keeps them.
        passes: passes over the data for "low_rank": the last measures the curvature along directions that the others
            find.
        chunk: numbers that a piece of a batch may take: the bound on memory.
        check_mode: report, as a problem of the posterior, a start whose gradient shows that it is not a mode; costs a
            backward pass.
        members: M, networks to train where no start is given; with a start, `fit` sets it to the number of modes.
    """

    structure: StructureName = "kronecker"
    curvature: CurvatureName = "auto"
    prior: PriorName | float = "scalar"
    noise: bool = False
    batch_size: int = 1000
    samples: int = field(default=1, kw_only=True)
    sharing: Sharing = field(default="expand", kw_only=True)
    joint_bias: bool = field(default=True, kw_only=True)
    rank: int | None = field(default=None, kw_only=True)
    passes: int = field(default=3, kw_only=True)
    chunk: int = field(default=2**24, kw_only=True)
    check_mode: bool = field(default=True, kw_only=True)
    members: int = field(default=1, kw_only=True)

    plan = "loop"

    def __post_init__(self) -> None:
        super().__post_init__()
        CurvatureSettings.of(self)  # checks what is to be added up

    @property
    def needs(self) -> Needs:
        """Modes, and passes over the same rows at them."""
        return Needs(batch_size=self.batch_size, start=seeker(), fixed_rows=True)

    @property
    def choices(self) -> tuple[Choice, ...]:
        """How long to train where no mode is given, and the factor on the prior unless the evidence is to choose it.

        The evidence needs a mode. Without it, weights that are no mode are expected, and not reported.
        """
        if self.noise or self.prior in {"layer", "weight"}:
            return (Epochs(seeker(), settings=(), mode=True),)
        length = Epochs(seeker(), settings=(), known={"check_mode": False}, mode=True)
        return (length, Strength("prior", {"prior": "model"})) if self.prior == "scalar" else (length,)

    @property
    def onward(self) -> Onward:
        """The method with the prior as it is, because that holds what earlier data say."""
        return Onward(replace(self, prior="model", noise=False), "prior")

    def check(self, model: Model) -> None:
        super().check(model)
        _check_prior(self, model)
        refuse_coupled(model)

    @property
    def epochs(self) -> int:
        """Passes over the data."""
        return CurvatureSettings.of(self).sums.passes

    def length(self, steps_per_epoch: int) -> int:
        """Return the number of batches in all passes."""
        return self.epochs * steps_per_epoch

    def begin(
        self, density: LogDensity, weights_MD: Tensor, buffers: Buffers, *, seeds: Sequence[int], steps_per_epoch: int
    ) -> State:
        self.check(density.model)
        curvature_pass.check_held(CurvatureSettings.of(self), weights_MD)
        return curvature_pass.begin(weights_MD, buffers, seeds=seeds, steps_per_epoch=steps_per_epoch)

    def visit(self, state: State) -> Visit | None:
        """Return the next batch of a pass; None when the passes are over."""
        return Visit("minibatch", state.step) if state.step < self.length(state.steps_per_epoch) else None

    def move(self, density: LogDensity, state: State, batch: Batch, *, donate: bool = False) -> tuple[State, Info]:
        now = writable(state, donate=donate)
        now, nll_M = curvature_pass.add(CurvatureSettings.of(self), density, now, batch=batch)
        return now, Info(nll_M)

    def posterior(self, density: LogDensity, state: State, shelf: Shelf | None = None) -> LaplacePosterior:
        """Return the mixture of the modes' Gaussians, its prior tuned if the settings say so.

        Raises:
            ValueError: if the pass is not over, or a precision is not positive definite.
        """
        posterior = curvature_pass.finish(CurvatureSettings.of(self), density, state)
        _note_evened(posterior.curvature)
        # before another prior is chosen, because the gradient belongs to the prior of the training
        problems = off_mode(posterior, state.gradient_MD) if self.check_mode else []
        by_evidence: Any = self.prior
        if not isinstance(self.prior, str):
            posterior, by_evidence = posterior.with_strength(posterior.strength_D * self.prior), "model"
        posterior = (
            posterior
            if by_evidence == "model" and not self.noise
            else tune(posterior, prior=by_evidence, noise=self.noise)
        )
        _ = posterior.gaussian  # factorised now, so that an indefinite precision raises here
        return posterior.with_problems(problems)

    def ending(self, posterior: LaplacePosterior, state: State) -> Ended:
        remedy = (
            "leave out `start`, so that the network is trained under the prior of this model, keep more by a higher "
            "rank or another structure"
        )
        return Ended(then=[partial(too_wide, remedy=remedy)])


def _note_evened(curvature: Curvature) -> None:
    """Say so if factors of low rank hold less than half of the curvature."""
    share = float((evened(curvature) / curvature.trace().clamp_min(torch.finfo(torch.float32).tiny)).max())
    if share > _EVENED:
        note(
            f"the Kronecker factors of long sides are kept at low rank, and {share:.0%} of the trace of the curvature "
            f"is spread evenly over the directions that they leave out. A higher `rank` keeps more."
        )


def _check_prior(method: Laplace, model: Model) -> None:
    """Check the prior before a mode is sought.

    Raises ValueError if weights have no precision on their own, or correlated ones cannot be added or changed.
    """
    for segment in model.prior.segments:
        if isinstance(segment.prior, SharedVariance):
            segment.prior.precision(torch.empty(0))
    if not correlated(model.prior):
        return
    if model.prior.joint is None:
        units(model, torch.empty(1, 0))
    if method.structure != "dense" and len(model.prior.segments) > 1:
        raise ValueError(
            f"the prior correlates some weights, so its precision adds to a dense curvature alone; got "
            f"{method.structure!r}. Use Laplace('dense', prior='model')."
        )
    if method.prior != "model":
        raise ValueError(
            f"the prior correlates weights, so no factor on its precision is chosen; got prior={method.prior!r}. Use "
            f"prior='model'."
        )
