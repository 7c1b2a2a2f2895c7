"""EP: expectation propagation, a normal distribution by the moments of each row's likelihood (Minka 2001).

For networks that are linear in their random weights, f_n = A_n w + b_n. Each row has a site that stands for its
likelihood, t_n(g) = C_n exp(−½ gᵀT_n g + ν_nᵀg) with g = A_n w, and q ∝ p(w) Π_n t_n. In turn, the part a of a site is
taken out of q, which leaves the cavity q_{−n} ∝ q / t_n^a, and replaced so that q has the moments of

    q_{−n}(g) ℓ_n(g)^a,    a = 1 for EP; a → 0 is variational inference with a full covariance (Minka 2004)

until nothing changes. With A(m, V) = ½ (d log 2π + log|V| + mᵀV⁻¹m) of normal distributions the log evidence is

    log Z = A(q) − A(p) + (1/a) Σ_n [log Z_n + A(q_{−n}) − A(q_n)],    Z_n = ∫ q_{−n}(g) ℓ_n(g)^a dg

which is exact for normal noise. A single sweep in turn is assumed density filtering: each row is seen once.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from torchbayes.checks import free_memory, size_of
from torchbayes.curvature.discovery import LayerSupport, layer_support
from torchbayes.density.density import LogDensity
from torchbayes.health.ending import Ended
from torchbayes.health.residuals import explained
from torchbayes.linalg import Dense
from torchbayes.methods.defaults import Defaults
from torchbayes.methods.ep.beliefs import Belief, Sites, belief, prior_of
from torchbayes.methods.ep.factors import Factors, check_likelihood, factors_of, is_exact
from torchbayes.methods.ep.sweeps import Rule, at_once, in_turn
from torchbayes.methods.keepers import Kept
from torchbayes.methods.protocol import DivergedError, Needs, Shelf, Visit
from torchbayes.model.model import Batch
from torchbayes.model.network import Buffers
from torchbayes.model.probes.functions import refuse_coupled
from torchbayes.posteriors.gaussian import Gaussian
from torchbayes.posteriors.problems import ProblemWarning

_LEAST_POWER = 1e-6  # below it rounding matters, because sites are differences divided by it
_MATRICES = 6  # matrices of D by D numbers held at a time
_WIDEST = 300.0  # spread of outputs beyond which integrals over several of them are rough
_LEAST_SHARE, _LONGER = 1 / 64, 1.15  # share of the way that a site moves; growth of it after a good sweep


@dataclass(frozen=True)
class State:
    """What the next step needs; everything but the buffers in float64."""

    precision_MDD: Tensor  # of q, (1, D, D)
    shift_MD: Tensor  # precision times mean of q
    prior_norm_M: Tensor  # A(p), in nats
    log_scale_M: Tensor  # Σ c log C over all sites, in nats
    mean_MD: Tensor  # of q before the sweep
    variance_MD: Tensor  # of the weights under q before the sweep
    sites: Mapping[str, Tensor]  # by number of the batch and part, each (1, N, ...)
    buffers: Buffers
    layer_support: str  # `LayerSupport.text` of the network's layers; empty before the first batch
    change: float  # how far q moved in the last whole sweep, over the damping; 0 before
    share: float  # of the way that a site moves at a visit
    skipped: int  # sites left unchanged in the sweep so far
    step: int  # batches seen
    steps_per_epoch: int  # of a sweep

    @property
    def belief(self) -> Belief:
        """q; DivergedError if its precision is not positive definite."""
        q = belief(self.precision_MDD[0], self.shift_MD[0])
        if q is None:
            raise DivergedError(
                f"the precision of q is not positive definite after step {self.step}. Lower `damping`, or look for "
                f"extreme values in the data."
            )
        return q

    def log_evidence(self) -> Tensor:
        """Return log Z, (1,), in nats."""
        return self.belief.log_norm - self.prior_norm_M + self.log_scale_M


@dataclass(frozen=True)
class Info:
    """What a step reports for the log."""

    state: State  # after the step
    evidence: bool  # whether log Z estimates the log evidence, as it does at temperature 1

    def means(self) -> dict[str, Tensor]:
        """Return nothing: no number of EP is averaged over a sweep."""
        return {}

    def now(self) -> dict[str, Any]:
        """Return what is true of the last step of a sweep."""
        evidence = {"log_evidence": float(self.state.log_evidence())} if self.evidence else {}
        return {"change": self.state.change, "damping": self.state.share, "skipped": self.state.skipped, **evidence}


@dataclass(frozen=True)
class EP(Kept, Defaults):
    """Expectation propagation: a Gaussian by the moments of each row's likelihood, and the log evidence.

    For networks whose outputs are linear in the random weights, such as an nn.Linear, or a trained network with
    `Model(…, random="head.*")`, under a normal prior and a likelihood without learned parameters: any whose rows have
    one output, or up to three that go together (four classes), and Gaussian, Bernoulli, Probit, Poisson and StudentT
    with any number. It starts from no weights. The covariance is dense, D². `sweeps=1` with order="sequential" is
    assumed density filtering: every row is seen once, and `as_prior` goes on with the next data.

    Attributes:
        power: a, how much of a site is replaced at a time: 1 is EP, towards 0 (1e-6) it becomes variational inference.
        order: "parallel", where the sites of a batch move at once, or "sequential", where each row sees those before
            it: fewer sweeps, which take about a hundred times as long.
        sweeps: most visits to all rows; the run ends sooner where nothing changes.
        damping: share of the way that a site moves at a visit, above 0 and at most 1; None begins with 1, halves it
            after each sweep that changes more than the one before, and lets it grow again after others.
        tolerance: a sweep ends the run if it changes no weight's mean, in its standard deviations, and no logarithm of
            its variance by more than this, over the damping.
        batch_size: rows per visit where the data are not batched already.
    """

    power: float = 1.0
    order: Literal["parallel", "sequential"] = "parallel"
    sweeps: int = 100
    damping: float | None = None
    tolerance: float = 1e-4
    batch_size: int = 1000

    members = 1
    plan = "loop"
    carries = "prior"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not _LEAST_POWER <= self.power <= 1:
            raise ValueError(
                f"`power` must be from {_LEAST_POWER}, which is variational inference to rounding, to 1, which is EP; "
                f"got {self.power}."
            )
        if self.damping is not None and self.damping > 1:
            raise ValueError(f"`damping` must be at most 1, the whole way; got {self.damping}.")

    @property
    def needs(self) -> Needs:
        """Sites, of rows that are the same in every sweep."""
        return Needs(batch_size=self.batch_size, fixed_rows=True)

    def length(self, steps_per_epoch: int) -> int:
        """Return the most visits of a run."""
        return self.sweeps * steps_per_epoch

    def begin(
        self, density: LogDensity, weights_MD: Tensor, buffers: Buffers, *, seeds: Sequence[int], steps_per_epoch: int
    ) -> State:
        model, size, device = density.model, weights_MD.shape[1], weights_MD.device
        refuse_coupled(model)
        check_likelihood(model.likelihood)
        if (free := free_memory(device)) < _MATRICES * 8 * size**2:
            raise ValueError(
                f"EP holds matrices of {size:,} by {size:,}, {size_of(_MATRICES * 8.0 * size**2)} in all; "
                f"{size_of(free)} are free. Make fewer weights random, such as random='head.*', or use Laplace or VI."
            )
        precision_DD, shift_D = prior_of(model)
        prior = belief(precision_DD, shift_D)
        if prior is None:
            raise ValueError("the covariance of the prior is not positive definite to rounding. Give a wider one.")
        copies, share = {name: buffer.clone() for name, buffer in buffers.items()}, self.damping or 1.0
        return State(
            precision_DD.unsqueeze(0),
            shift_D.unsqueeze(0),
            prior.log_norm.unsqueeze(0),
            torch.zeros_like(prior.log_norm).unsqueeze(0),
            prior.mean_D.unsqueeze(0),
            prior.root_DD.square().sum(1).unsqueeze(0),
            {},
            copies,
            "",
            change=0.0,
            share=share,
            skipped=0,
            step=0,
            steps_per_epoch=steps_per_epoch,
        )

    def visit(self, state: State) -> Visit | None:
        """Return the next site; None when the sweeps are over, or the last one changed nothing."""
        sweep, number = divmod(state.step, state.steps_per_epoch)
        settled = sweep > 0 and number == 0 and state.change <= self.tolerance
        return None if settled or sweep >= self.sweeps else Visit("site", number)

    @torch.no_grad()
    def move(self, density: LogDensity, state: State, batch: Batch, *, donate: bool = False) -> tuple[State, Info]:
        model, rows = density.model, batch.map(lambda t: t[0])
        sweep, number = divmod(state.step, state.steps_per_epoch)
        buffers = {name: buffer[0] for name, buffer in state.buffers.items()}
        layers = state.layer_support or layer_support(model, model.network.weights() * 0, rows.inputs).text()
        factors = factors_of(model, rows, support=LayerSupport.parse(layers), buffers=buffers, check=sweep == 0)
        old = _sites(state.sites, number) or Sites.flat(factors.offset_NR)
        if state.step == 0:
            _say_wide(factors, state.belief)
        rule = Rule(self.power, 1 / model.scales(1, 1).likelihood, state.share)
        visited = (in_turn if self.order == "sequential" else at_once)(state.belief, factors, old, rule=rule)
        gained = factors.counts_N @ (visited.sites.log_scale_N - old.log_scale_N)
        now = replace(
            state,
            precision_MDD=visited.belief.precision_DD.unsqueeze(0),
            shift_MD=visited.belief.shift_D.unsqueeze(0),
            log_scale_M=state.log_scale_M + gained,
            sites={**state.sites, **{f"{number}.{n}": t.unsqueeze(0) for n, t in visited.sites._asdict().items()}},
            layer_support=layers,
            skipped=visited.skipped + (state.skipped if number else 0),
            step=state.step + 1,
        )
        if number == state.steps_per_epoch - 1:
            now = _swept(now, visited.belief, first=sweep == 0, adapt=self.damping is None)
        return now, Info(now, model.temperature == 1)

    def posterior(self, density: LogDensity, state: State, shelf: Shelf | None = None) -> Gaussian:
        """Return q, with log Z at temperature 1."""
        model, q = density.model, state.belief
        evidence_M = state.log_evidence() if model.temperature == 1 else None
        root_MDD = q.root_DD.unsqueeze(0).to(model.network.dtype)
        mean_MD = q.mean_D.unsqueeze(0).to(model.network.dtype)
        return Gaussian(
            model,
            mean_MD,
            Dense(root_MDD),
            linear=True,
            log_evidence_M=evidence_M,
            buffers_M=dict(state.buffers) or None,
            statistics_known=True,
        )

    def ending(self, posterior: Gaussian, state: State) -> Ended:
        problems = []
        if state.sites and not any(sites.shape[1] for sites in state.sites.values()):
            problems.append("no row counts, so that it is the prior (look at the targets and their weights)")
        if state.skipped:
            problems.append(
                f"{state.skipped} sites were left as they were in the last sweep, as what is left without them is no "
                f"distribution, or their rows are impossible (lower `power` or `damping`)"
            )
        if state.step == self.length(state.steps_per_epoch) and state.change > self.tolerance:
            problems += _unsettled(self, state, exact=is_exact(posterior.model.likelihood))
        return Ended(said=problems, then=[] if problems else [explained])


def _say_wide(factors: Factors, prior: Belief) -> None:
    """Warn if outputs that go together spread so widely under the prior that integrals over them are rough."""
    # integrals over one number are exact at any spread
    if factors.slopes_NRD.shape[1] == 1 or not len(factors.counts_N):
        return
    spread = float((factors.slopes_NRD @ prior.root_DD).square().sum(-1).max().sqrt())
    if spread > _WIDEST:
        warnings.warn(
            f"EP: outputs of a row have a standard deviation of {spread:.2g} under the prior. Integrals over several "
            f"such numbers take long, and are rough. Standardise the inputs, or narrow the prior.",
            ProblemWarning,
            stacklevel=2,
        )


def _sites(held: Mapping[str, Tensor], number: int) -> Sites | None:
    """Return the sites of a batch; None before its first visit."""
    parts = [held[f"{number}.{name}"][0] for name in Sites._fields if f"{number}.{name}" in held]
    return Sites(*parts) if parts else None


def _unsettled(method: EP, state: State, *, exact: bool) -> list[str]:
    """Return that the sweeps of a run did not suffice; nothing if a single one is all there is to do."""
    if method.sweeps > 1:
        return [
            f"it had not converged: at the rate of the last of {method.sweeps} sweeps a weight moves by "
            f"{state.change:.2g} standard deviations, or its log variance by that (raise `sweeps`, or lower `damping`)"
        ]
    if method.damping in {None, 1.0} and (exact or method.order == "sequential"):
        return []
    return [
        "it had not converged: after one sweep, in parallel or damped, sites are not what their rows ask for (raise "
        "`sweeps`, or give order='sequential' without damping for assumed density filtering)"
    ]


def _swept(state: State, now: Belief, *, first: bool, adapt: bool) -> State:
    """Return the state at the end of a sweep, with the change that it made, and the share for the next one."""
    variance_D = now.root_DD.square().sum(1)
    moved_D = (now.mean_D - state.mean_MD[0]).abs() / variance_D.sqrt()
    wider_D = (variance_D / state.variance_MD[0]).log().abs()
    change, share = float(torch.maximum(moved_D, wider_D).max()) / state.share, state.share
    if adapt and not first:
        share = max(0.5 * share, _LEAST_SHARE) if change >= state.change else min(_LONGER * share, 1.0)
    return replace(
        state, mean_MD=now.mean_D.unsqueeze(0), variance_MD=variance_D.unsqueeze(0), change=change, share=share
    )
