"""TFB: a posterior around a trained low-rank adapter, without training (Shi et al. 2025).

In the form B = U diag(d) of the adapter s B A (`factors.rotated`) each weight of A is normal around its value,

    A_ki ~ N(Â_ki, (σ/d_k)²),    so that    B (A − Â) = σ U E,    E_ki ~ N(0, 1)

has the same variance in every direction in which the adapter can change the layer. All other weights are points. The
one number σ is the largest for which the loss on the training rows grows by at most a share ε,

    L(σ) ≤ (1 + ε) L(0),    L(σ) = −(1/N) E Σ_n log p(y_n | x_n, A),

found by bisection of log σ in passes over the rows, with the same draws in each. Up to the resolution of the last
halving the result keeps the bound. The codes of the paper return the last σ that broke it, draw anew for every σ, and
stop where the loss falls as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from torchbayes.density.density import LogDensity
from torchbayes.density.plans import BackendName
from torchbayes.health.ending import Ended, Ending
from torchbayes.linalg import Diagonal
from torchbayes.methods.adapters.factors import factors_of, rotated
from torchbayes.methods.choices import Choice, Epochs
from torchbayes.methods.defaults import Defaults, Report
from torchbayes.methods.finite import clone
from torchbayes.methods.keepers import Kept
from torchbayes.methods.noise import normals
from torchbayes.methods.optimise.seeker import seeker
from torchbayes.methods.protocol import DivergedError, Needs, Shelf, Visit
from torchbayes.model.batches.batch import batch_size
from torchbayes.model.model import Batch, Model
from torchbayes.model.network import Buffers
from torchbayes.posteriors.gaussian import Gaussian
from torchbayes.randomness.seeds import Purpose

_LEAST_LOSS = 1e-4  # of the adapter itself, in nats per row; a share of less says nothing
_NARROWEST = 1e-4  # share of `largest` where bisection begins


@dataclass(frozen=True)
class Search:
    """The state of the bisections, one for each member."""

    weights_MD: Tensor  # the adapters, rotated
    lengths_MD: Tensor  # d_k of weights of A, 0 of all others
    buffers: Buffers
    trial_M: Tensor  # σ of this pass, float64; 0 in the first
    low_M: Tensor  # between which it is sought
    high_M: Tensor
    accepted_M: Tensor  # the largest σ that kept the bound; 0 if none has
    loss_M: Tensor  # L(0), after the first pass
    total_M: Tensor  # Σ −log p of this pass so far, the mean over draws
    rows: int  # of this pass so far
    seeds: tuple[int, ...]
    step: int
    steps_per_epoch: int


@dataclass(frozen=True)
class Info(Report):
    """What a step reports for the log: mean −log p of the batch's rows over the draws, in nats, and σ."""

    nll_M: Tensor
    scale_M: Tensor


@dataclass(frozen=True)
class TFB(Kept, Defaults):
    """A posterior around trained adapters, without training: `fit(model, data, TFB(), start=network)`.

    For models whose random weights are factors of low-rank adapters, as those of PEFT, `Model(…, random="*lora*")`;
    other random weights are points. Without a start, `fit` trains members by `MAP()` first. `data` may be fewer rows
    than the adapters were trained on.

    Attributes:
        tolerance: ε, by which share the loss may grow.
        largest: σ at most; bisection begins at 1e-4 times as much.
        passes: over the rows: the first is that of the adapters alone, and each other one halves the range of log σ;
            with eight it is known to 7 %.
        draws: S, of each pass.
        batch_size: rows per step where the data are not batched already.
        members: M, adapters to train where no start is given; with a start, `fit` sets it to their number.
        plan: how the stack of members is run: auto, native, loop, vmap or compiled.
    """

    tolerance: float = 0.003
    largest: float = 1.0
    passes: int = 8
    draws: int = 10
    batch_size: int = 128
    members: int = field(default=1, kw_only=True)
    plan: BackendName | str = field(default="auto", kw_only=True)

    @property
    def needs(self) -> Needs:
        """Adapters, and passes over the same rows."""
        return Needs(batch_size=self.batch_size, start=seeker(), fixed_rows=True)

    @property
    def choices(self) -> tuple[Choice, ...]:
        """How long to train where no adapters are given."""
        return (Epochs(seeker(), settings=(), mode=True),)

    def check(self, model: Model) -> None:
        """Check that the random weights hold adapters.

        Raises:
            SettingError: if they hold none.
        """
        super().check(model)
        factors_of(model.layout)

    def length(self, steps_per_epoch: int) -> int:
        """Return the number of batches in all passes."""
        return self.passes * steps_per_epoch

    def begin(
        self, density: LogDensity, weights_MD: Tensor, buffers: Buffers, *, seeds: Sequence[int], steps_per_epoch: int
    ) -> Search:
        adapters = factors_of(density.model.layout)
        turned, lengths = zip(*(rotated(adapters, weights_D) for weights_D in weights_MD), strict=True)
        lengths_MD, none_M = torch.stack(lengths), weights_MD.new_zeros(len(weights_MD), dtype=torch.float64)
        for m, untrained in enumerate((lengths_MD == 0).all(1).tolist()):
            if untrained:
                raise ValueError(
                    f"the adapters of member {m} have not been trained: every B is 0. Train them first, or give no "
                    f"`start`."
                )
        return Search(
            torch.stack(turned),
            lengths_MD,
            clone(buffers),
            trial_M=none_M,
            low_M=none_M,
            high_M=none_M,
            accepted_M=none_M,
            loss_M=none_M,
            total_M=none_M,
            rows=0,
            seeds=tuple(seeds),
            step=0,
            steps_per_epoch=steps_per_epoch,
        )

    def visit(self, state: Search) -> Visit | None:
        """Return the next batch of a pass; None when the passes are over."""
        return Visit("minibatch", state.step) if state.step < self.length(state.steps_per_epoch) else None

    def move(self, density: LogDensity, state: Search, batch: Batch, *, donate: bool = False) -> tuple[Search, Info]:
        rows = batch_size(batch.inputs, 1)
        nll_M = self._loss(density, state, batch)
        if not nll_M.isfinite().all():
            raise DivergedError(f"the loss is not finite at σ = {state.trial_M.max():.3g}. Lower `largest`.")
        now = replace(state, total_M=state.total_M + nll_M * rows, rows=state.rows + rows, step=state.step + 1)
        info = Info(nll_M, state.trial_M)
        return (self._turned(now) if now.step % now.steps_per_epoch == 0 else now), info

    def posterior(self, density: LogDensity, state: Search, shelf: Shelf | None = None) -> Gaussian:
        """Return the mixture of the Gaussians around the members; the variance is 0 for all weights but those of A."""
        scale_MD = _scales(state.lengths_MD, state.accepted_M)
        return Gaussian(
            density.model, state.weights_MD.clone(), Diagonal(scale_MD.square()), buffers_M=state.buffers or None
        )

    def ending(self, posterior: Gaussian, state: Search) -> Ending:
        return Ended(said=[clause for m in range(len(state.loss_M)) for clause in self._said(state, m)])

    def _loss(self, density: LogDensity, state: Search, batch: Batch) -> Tensor:
        """Return mean −log p of the rows of a batch, the mean over the draws of this pass, float64 (M,)."""
        draws = self.draws if state.step >= state.steps_per_epoch else 1
        scale_MD = _scales(state.lengths_MD, state.trial_M)
        total_M = torch.zeros_like(state.total_M)
        for s in range(draws):
            noise_MD = normals(state.seeds, Purpose.ADAPTER, s, like=scale_MD)
            weights_MD, buffers = torch.addcmul(state.weights_MD, scale_MD, noise_MD), clone(state.buffers)
            value = density.value(weights_MD, batch, buffers=buffers)  # a network may change its buffers
            total_M -= value.log_likelihood.double()
        return total_M / (draws * density.num_data)

    def _turned(self, now: Search) -> Search:
        """Return the state at the begin of the next pass, with another σ."""
        none_M, loss_M = torch.zeros_like(now.total_M), now.total_M / now.rows
        now = replace(now, total_M=none_M, rows=0)
        if now.step == now.steps_per_epoch:
            high_M = torch.full_like(none_M, self.largest)
            now = replace(now, loss_M=loss_M, low_M=high_M * _NARROWEST, high_M=high_M)
        else:
            kept_M = loss_M <= now.loss_M + self.tolerance * now.loss_M.abs()
            now = replace(
                now,
                low_M=torch.where(kept_M, now.trial_M, now.low_M),
                high_M=torch.where(kept_M, now.high_M, now.trial_M),
                accepted_M=torch.where(kept_M, now.trial_M, now.accepted_M),
            )
        return replace(now, trial_M=(now.low_M * now.high_M).sqrt())

    def _said(self, state: Search, m: int) -> list[str]:
        """Return what must be said of the search of member m."""
        loss = float(state.loss_M[m])
        if state.accepted_M[m] == 0:
            return [
                f"the adapter of member {m} is a point: the loss grows by more than {self.tolerance:.2g} of itself at "
                f"every σ tried (raise `tolerance`)"
            ]
        said = []
        if abs(loss) < _LEAST_LOSS:
            said.append(
                f"the loss of member {m} is {loss:.2g} nats a row, of which a share of {self.tolerance:.2g} says "
                f"nothing (train for fewer epochs, or fit on rows that the adapter has not seen)"
            )
        if state.high_M[m] == self.largest:
            said.append(f"the loss of member {m} bears every σ tried, up to {self.largest:.3g} (raise `largest`)")
        return said


def _scales(lengths_MD: Tensor, scale_M: Tensor) -> Tensor:
    """Return the standard deviations σ/d of all weights, (M, D); 0 where d is."""
    return torch.where(lengths_MD > 0, scale_M.unsqueeze(1).to(lengths_MD) / lengths_MD, 0.0)
