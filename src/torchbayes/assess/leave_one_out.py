r"""Leave-one-out predictive densities of a posterior, without a refit: how well rows are predicted by the others.

    elpd = Σ_n log p(y_n | x_n, D without n),    p_loo = Σ_n log p(y_n | x_n, D) − elpd

By draws w_s of a chain (Vehtari, Gelman and Gabry 2017; Vehtari et al. 2024): draws of the posterior without row n have
the weights 1/p(y_n | w_s), or p(y_n | w_s)^(−1/T) at the temperature T, smoothed by a Pareto tail,

    p(y_n | D without n) ≈ Σ_s v_ns p(y_n | w_s),    v_n = psis(−(1/T) log p(y_n | w_s))

The shape k̂ of the tail says whether they can be trusted: up to min(1 − 1/log₁₀ S, 0.7). For normal noise k is the
leverage of the row, whatever its residual, so that networks, many of whose rows have leverages near 1, have many rows
above it. Draws of another distribution q, such as SWAG's, are weighed by p(w | D)/q(w) as well.

Chains and members are weighed each by itself, because weights across modes say nothing: the density is that of their
equal mixture. The Gaussians of Laplace posteriors have closed forms (`torchbayes.assess.sites`), exact for linear
models with normal noise; k is there the leverage, which must be below 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchbayes.assess.approximation import Approximating, of_density
from torchbayes.assess.evaluate import unpacked
from torchbayes.assess.sites import left_out
from torchbayes.calls import explained
from torchbayes.checks import check_counts, check_kind, check_object, optional, seen
from torchbayes.checksum import checksum
from torchbayes.diagnostics.importance import psis
from torchbayes.display import Overview, shown
from torchbayes.methods.protocol import Method
from torchbayes.model.batches.batch import Batch, rows_of, tensors_of
from torchbayes.model.layout import broadcasting
from torchbayes.model.likelihoods.protocol import scored
from torchbayes.model.model import Model, check_finite
from torchbayes.model.sources.sources import as_source
from torchbayes.native.process import undisturbed
from torchbayes.posteriors.functions import Functions
from torchbayes.posteriors.posterior import Posterior
from torchbayes.posteriors.problems import warn_of
from torchbayes.predictive.linearised import Linearised, by_outputs
from torchbayes.predictive.predict import predict
from torchbayes.selection import fit

_FEWEST = 25  # draws of a member, below which there is no tail
_DRAWS = 1000  # of a distribution other than a chain
_TRUSTED = 0.7
_NUMBERS = 1 << 21  # densities whose tails are fitted at once


@shown(lambda each: Overview("LeaveOneOut", each.facts, problems=each.problems))
@dataclass(frozen=True)
class LeaveOneOut:
    """Leave-one-out predictive densities of N rows, float64, in nats.

    Attributes:
        elpd_NM: log p(y_n | x_n, D without n) of each member.
        lpd_N: log p(y_n | x_n, D) of their mixture.
        k_NM: k̂ of each row and member, in closed form the leverage; −∞ where the row was left out of a refit.
        threshold: k above which a density is not to be trusted.
        weights_N: how often each row counts.
        closed: whether densities are in closed form.
        targets: checksums of the targets, by which `stack` tells other rows; empty if unknown.
    """

    elpd_NM: Tensor
    lpd_N: Tensor
    k_NM: Tensor
    threshold: float
    weights_N: Tensor
    closed: bool = False
    targets: tuple[str, ...] = ()

    @property
    def elpd_N(self) -> Tensor:
        """Log density of each row under the equal mixture of members, (N,)."""
        return torch.logsumexp(self.elpd_NM, 1) - math.log(self.elpd_NM.shape[1])

    @property
    def elpd(self) -> float:
        """Σ_n elpd_n, over rows as often as they count."""
        return float(self.weights_N @ self.elpd_N)

    @property
    def error(self) -> float:
        """Standard error of elpd over rows, √(N Var_n elpd_n)."""
        total = self.weights_N.sum()
        deviation_N = self.elpd_N - self.elpd / total
        return float((self.weights_N @ deviation_N.square()).sqrt())

    @property
    def p_loo(self) -> float:
        """Effective number of parameters: Σ_n log p(y_n | D) − elpd."""
        return float(self.weights_N @ self.lpd_N) - self.elpd

    @property
    def k_N(self) -> Tensor:
        """The largest k of a row over members, (N,)."""
        return self.k_NM.amax(1)

    @property
    def untrusted(self) -> Tensor:
        """Numbers of the rows that count and whose k is above the threshold, int64."""
        return ((self.k_N > self.threshold) & (self.weights_N > 0)).nonzero().squeeze(1)

    @property
    def facts(self) -> dict[str, Any]:
        """The numbers that are displayed."""
        count = len(self.untrusted)
        return {
            "elpd": self.elpd,
            "error": self.error,
            "p_loo": self.p_loo,
            "rows": len(self.lpd_N),
            "untrusted": count,
        }

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with the densities, one clause each."""
        count, rows = len(self.untrusted), int((self.weights_N > 0).sum())
        if not count:
            return ()
        if self.closed:
            return (
                f"{count} of {rows} rows have leverages of 1 and more, which an exact posterior has not: the "
                f"covariance is too wide (take structure='dense' or 'kronecker', or refit those rows with `refit=`)",
            )
        return (
            f"k-hat is above {self.threshold:.2f} at {count} of {rows} rows, so their leave-one-out densities are not "
            f"to be trusted, and elpd is likely too large (refit without each of these rows with `refit=`, score rows "
            f"that were held out, or take a Laplace posterior, which has a closed form)",
        )


@undisturbed
@explained()
def loo(
    posterior: Posterior | Linearised, data: Any, *, refit: Method[Any] | None = None, chunk_size: int = 1024
) -> LeaveOneOut:
    """Return how well each row is predicted by a posterior of the others, without fitting it again.

    Args:
        posterior: the draws of a sampler, of which all are used; a Laplace posterior, or one over a last layer, in
            closed form; or another posterior with a density, such as that of SWAG or VI, by 1,000 draws.
        data: all rows to which it was fitted, as for `evaluate`.
        refit: a method that fits the model without each row whose k is above the threshold, one fit a row. None
            leaves these rows as they are.
        chunk_size: rows that go through a network at once.

    Returns:
        The densities, with k̂ of each row.

    Raises:
        ValueError: if there are no rows, a member has fewer than 25 draws, a density is not finite, rows are
            coupled, or rows cannot be told apart for a refit.
        TypeError: if the posterior has neither draws nor a density, as a deep ensemble.
    """
    check_counts(chunk_size=chunk_size)
    optional(check_object, ("init", "step", "visit"), "NUTS()", refit=refit)
    check_kind((Posterior, Linearised), "what `fit` returns", posterior=posterior)
    model = posterior.model
    if model.coupled:
        raise ValueError("the rows of this model are coupled (`Model(coupled=True)`), so that none can be left out.")
    rows = _rows(model, data)
    if isinstance(posterior, Linearised):
        estimate = _closed(posterior, rows)
    else:
        linearised = by_outputs(posterior)
        estimate = _by_draws(posterior, rows, chunk_size) if linearised is None else _closed(linearised, rows)
    if refit is not None and len(estimate.untrusted):
        estimate = _refitted(estimate, model, data, refit)
    warn_of(estimate.problems, "this leave-one-out estimate")
    # flat, as batches may be padded to different lengths
    targets = zip(*([t.flatten().float().cpu() for t in tensors_of(batch.targets)] for batch in rows), strict=True)
    return replace(estimate, targets=tuple(checksum(torch.cat(flat)) for flat in targets))


def _rows(model: Model, data: Any) -> list[Batch]:
    """Return the rows in batches."""
    rows = list(unpacked(model, data))
    for batch in rows:
        check_finite(batch.inputs)
    if not sum(batch.size for batch in rows):
        raise ValueError("`data` is empty: there are no rows to leave out.")
    return rows


def _closed(linearised: Linearised, rows: Sequence[Batch]) -> LeaveOneOut:
    count = sum(batch.size for batch in rows)
    warn_of(linearised.posterior.problems)
    left = [left_out(linearised, batch, num_data=count) for batch in rows]
    without_NM, with_NM, leverage_NM = (torch.cat(column) for column in zip(*left, strict=True))
    _check_densities(with_NM)
    lpd_N = torch.logsumexp(with_NM, 1) - math.log(with_NM.shape[1])
    like_BK = linearised.functions(rows_of(rows[0].inputs, slice(0, 1)), diagonal=True).mean_MBK[0]
    weights_N = torch.cat([_weights(linearised.model, like_BK, batch) for batch in rows])
    return LeaveOneOut(without_NM, lpd_N, leverage_NM, 1 - 1e-6, weights_N, closed=True)


def _weights(model: Model, like_BK: Tensor, batch: Batch) -> Tensor:
    """Return how often each row of a batch counts, (B,); `like_BK` are outputs of a row."""
    judged = scored(model.likelihood, like_BK.expand(batch.size, *like_BK.shape[1:]), batch.targets)
    return torch.ones(batch.size).double() if judged.row_weights is None else judged.row_weights.double().cpu()


def _by_draws(posterior: Any, rows: Sequence[Batch], chunk_size: int) -> LeaveOneOut:
    model, members = posterior.model, posterior.members
    chains = posterior.chain_length is not None
    if not chains and not isinstance(posterior, Approximating):
        raise TypeError(
            f"`posterior` must have draws or a density; a {type(posterior).__name__} has neither, and is not spread by "
            f"what its rows leave open. Score rows that were held out, with `evaluate`; got {seen(posterior)}."
        )
    draws = posterior.default_draws if chains else -(-_DRAWS // members) * members
    if draws // members < _FEWEST:
        raise ValueError(
            f"`posterior` must have at least {_FEWEST} draws of each member, by which tails are judged; got "
            f"{draws // members}. Sample longer."
        )
    functions = posterior.functions(draws, seed=0)
    shift_SM = torch.zeros(draws // members, members, dtype=torch.float64)
    if not chains:
        whole = [torch.cat(parts) for parts in zip(*rows, strict=True)]
        shift_SM = of_density(posterior, *whole, draws=draws).log_ratios_S.view(-1, members)
    factor = model.scales(1, 1).likelihood
    columns = [_of_batch(functions, batch, shift_SM, factor=factor, chunk_size=chunk_size) for batch in rows]
    elpd_NM, lpd_N, k_NM, weights_N = (torch.cat(column) for column in zip(*columns, strict=True))
    threshold = min(1 - 1 / math.log10(draws // members), _TRUSTED)
    return LeaveOneOut(elpd_NM, lpd_N, k_NM, threshold, weights_N)


def _of_batch(
    functions: Functions, batch: Batch, shift_SM: Tensor, *, factor: float, chunk_size: int
) -> tuple[Tensor, ...]:
    """Return elpd (B, M), lpd (B,), k (B, M) and weights (B,) of the rows of a batch."""
    likelihood = functions.model.likelihood
    outputs_SBK = functions(batch.inputs, chunk_size=chunk_size)
    parameters = broadcasting(functions.parameters, outputs_SBK)
    likelihood.check(outputs_SBK[0], batch.targets)
    judged = scored(likelihood, outputs_SBK[0], batch.targets)
    scores_SB = judged.likelihood.log_prob(outputs_SBK, judged.targets, parameters).double().cpu()
    fitted_SB = likelihood.log_prob(outputs_SBK, batch.targets, parameters).double().cpu()
    _check_densities(fitted_SB.T, scores_SB.T)
    scores_SMB, fitted_SMB = (each.unflatten(0, shift_SM.shape) for each in (scores_SB, fitted_SB))
    # chains each by themselves: k and weights of every (member, row) column
    ratios_SQ = (shift_SM.unsqueeze(-1) - factor * fitted_SMB).flatten(1)
    smoothed = [psis(piece) for piece in ratios_SQ.split(max(1, _NUMBERS // len(ratios_SQ)), dim=1)]
    log_weights_SQ = torch.cat([each.log_weights for each in smoothed], 1)
    elpd_MB = torch.logsumexp(log_weights_SQ + scores_SMB.flatten(1), 0).view(scores_SMB.shape[1:])
    k_MB = torch.cat([each.k for each in smoothed]).view_as(elpd_MB)
    with_SM = shift_SM.log_softmax(0).unsqueeze(-1)
    lpd_MB = torch.logsumexp(scores_SMB + with_SM, 0)
    lpd_B = torch.logsumexp(lpd_MB, 0) - math.log(len(lpd_MB))
    weights_B = torch.ones(batch.size).double() if judged.row_weights is None else judged.row_weights.double().cpu()
    return elpd_MB.T, lpd_B, k_MB.T, weights_B


def _check_densities(*densities: Tensor) -> None:
    """Raise a ValueError if a log density of a row, on the first axis, is not finite."""
    for each in densities:
        bad_B = ~each.isfinite().flatten(1).all(1)
        if bad_B.any():
            raise ValueError(
                f"log p(y|f) of {int(bad_B.sum())} rows of `data`, the first of them {int(bad_B.nonzero()[0])}, is not "
                f"finite under some draws, as it cannot be in a posterior of these rows. Give the rows that it was "
                f"fitted to."
            )


def _refitted(estimate: LeaveOneOut, model: Model, data: Any, method: Method[Any]) -> LeaveOneOut:
    """Return the densities with those of untrusted rows from fits without them."""
    source = as_source(model, data, 1024)
    elpd_NM, k_NM = estimate.elpd_NM.clone(), estimate.k_NM.clone()
    everything = torch.arange(source.num_data)
    for row in estimate.untrusted.tolist():
        others, alone = (source.kept(everything[where]) for where in (everything != row, everything == row))
        if others is None or alone is None:
            raise ValueError("`refit` needs rows that can be told apart: give tensors or a Dataset, not batches.")
        rows, left = others.rows(), alone.rows()
        again = fit(model, (rows.inputs, rows.targets), method, seed=row, callbacks=())
        predictive = predict(again, left.inputs)
        elpd_NM[row] = float(predictive.log_prob(left.targets)[0])
        k_NM[row] = -math.inf
    return replace(estimate, elpd_NM=elpd_NM, k_NM=k_NM)
