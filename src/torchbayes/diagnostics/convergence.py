"""Convergence of chains: R-hat, effective sample sizes, Monte Carlo errors and autocorrelations, for each quantity."""

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from torchbayes.checks import check_flags, whole
from torchbayes.diagnostics._blocks import check_draws, per_quantity
from torchbayes.diagnostics._series import (
    autocovariance,
    centre,
    effective_size,
    potential_scale,
    rank_rhat,
    rank_scores,
    sort,
    split,
    tail_bounds,
)

RhatMethod = Literal["rank", "split", "classic"]

ENOUGH = 100  # effective samples for each chain (Vehtari et al. 2021)


class Summary(NamedTuple):
    """Diagnostics of draws (M, S, ...), each a float64 tensor in the trailing shape.

    Attributes:
        mean: mean of all draws.
        sd: standard deviation of all draws, with M·S - 1 in the denominator.
        mcse: Monte Carlo standard error of the mean, as `mcse_mean`.
        ess_bulk: effective sample size in the bulk.
        ess_tail: effective sample size in the tails.
        rhat: rank-normalised split R-hat.
    """

    mean: Tensor
    sd: Tensor
    mcse: Tensor
    ess_bulk: Tensor
    ess_tail: Tensor
    rhat: Tensor


def rhat(draws_MSD: Tensor, *, method: RhatMethod = "rank", chunk_size: int | None = None) -> Tensor:
    r"""Return R-hat of each quantity, float64, in the trailing shape: near one for chains that agree.

    It is $\sqrt{\left(\frac{n-1}{n} W + \frac1n B\right) / W}$. For chains of n draws, W is the mean of the
    variances within chains and B is n times the variance of the chain means. ``"classic"`` takes the M chains as
    they are (Gelman & Rubin, 1992). ``"split"`` takes both halves of each as separate chains, which reveals a
    drift. ``"rank"`` takes the larger of two split R-hats: of the normal scores of the ranks, which needs no finite
    variance, and of the same for distances from the median, which shows chains of different spread (Vehtari et al.,
    2021, "Rank-normalization, folding, and localization"; they advise below 1.01). NaN for a quantity that never
    moves, infinite for chains that never move but differ. One chain is judged by its halves, where arviz gives NaN.

    Args:
        draws_MSD: Draws, shape (M, S) or (M, S, ...) with S ≥ 4.
        method: "rank", "split" or "classic".
        chunk_size: Quantities in a block; None chooses. It affects only memory, about 150 bytes per draw in it.

    Raises:
        TypeError: If the draws are not a floating tensor.
        ValueError: If the method is unknown, draws are too few or not finite, or a single chain is given to
            "classic".
    """
    check_draws(draws_MSD)
    if method not in get_args(RhatMethod):
        raise ValueError(f"`method` must be one of {', '.join(map(repr, get_args(RhatMethod)))}; got {method!r}.")
    if method == "classic" and len(draws_MSD) == 1:
        raise ValueError("`method` 'classic' compares whole chains and needs at least 2; got 1. Use 'split' or 'rank'.")
    statistics: dict[str, Callable[[Tensor], Tensor]] = {
        "rank": _rank_rhat,
        "split": lambda block_RMS: potential_scale(split(block_RMS)),
        "classic": potential_scale,
    }
    return per_quantity(draws_MSD, statistics[method], chunk_size=chunk_size)


def ess(draws_MSD: Tensor, *, chunk_size: int | None = None) -> Tensor:
    r"""Return the effective sample size for the mean of each quantity, float64, in the trailing shape.

    It is $M S / \hat\tau$ with $\hat\tau = 1 + 2 \sum_{t \geq 1} \hat\rho_t$. The $\hat\rho_t$ are autocorrelations
    of all half chains together (Vehtari et al., 2021, eq. 10), by the fast Fourier transform; the sum stops by
    Geyer's initial monotone positive sequence (Geyer, 1992). It assumes a finite variance; `ess_bulk` does not. It
    is at most M·S·log10(M·S), since an antithetic chain is worth more than its draws. NaN for a quantity that never
    moves, where arviz gives M·S: a stuck sampler must not look perfect.

    Args:
        draws_MSD: Draws, shape (M, S) or (M, S, ...) with S ≥ 4.
        chunk_size: Quantities in a block; None chooses. It affects only memory, about 150 bytes per draw in it.

    Raises:
        TypeError: If the draws are not a floating tensor.
        ValueError: If draws are too few or not finite.
    """
    return per_quantity(draws_MSD, _mean_size, chunk_size=chunk_size)


def ess_bulk(draws_MSD: Tensor, *, chunk_size: int | None = None) -> Tensor:
    """Return the effective sample size in the bulk: that of the normal scores of the ranks (Vehtari et al., 2021).

    Float64, in the trailing shape; NaN for a quantity that never moves. Arguments and errors are those of `ess`.
    """
    return per_quantity(draws_MSD, lambda block_RMS: effective_size(_rank(split(block_RMS))[1]), chunk_size=chunk_size)


def ess_tail(draws_MSD: Tensor, *, chunk_size: int | None = None) -> Tensor:
    r"""Return the effective sample size in the tails, float64, in the trailing shape.

    It is the smaller of those of $[x \leq q_{5\%}]$ and $[x \leq q_{95\%}]$, with the quantiles of all draws
    (Vehtari et al., 2021). An indicator that never changes, as when more than one draw in twenty ties with the
    largest, counts as M·S; where neither changes the result is NaN.

    Arguments and errors are those of `ess`.
    """
    return per_quantity(draws_MSD, _tail, chunk_size=chunk_size)


def mcse_mean(draws_MSD: Tensor, *, chunk_size: int | None = None) -> Tensor:
    r"""Return the Monte Carlo standard error of the mean of all draws, $\mathrm{sd} / \sqrt{\mathrm{ess}}$.

    It has the units of each quantity, float64, in the trailing shape; NaN for one that never moves.

    Arguments and errors are those of `ess`.
    """
    return per_quantity(draws_MSD, lambda block_RMS: _level(block_RMS)[2], chunk_size=chunk_size)


def summary(draws_MSD: Tensor, *, chunk_size: int | None = None) -> Summary:
    """Return mean, spread, Monte Carlo error, effective sample sizes and R-hat, in one pass over the draws.

    Arguments and errors are those of `ess`.
    """
    return Summary(*per_quantity(draws_MSD, _everything, chunk_size=chunk_size).unbind(-1))


def autocorrelation(
    draws_MSD: Tensor, max_lag: int, *, per_chain: bool = False, chunk_size: int | None = None
) -> Tensor:
    r"""Return autocorrelations of draws, $\rho_t = \sum_m c_{mt} / \sum_m c_{m0}$, float64 (max_lag + 1, ...).

    The autocovariance is $c_{mt} = \frac1S \sum_s (x_{ms} - \bar x_m)(x_{m,s+t} - \bar x_m)$: every chain is
    centred at its own mean, so differences between chains show in `rhat` and not here. NaN where nothing moves. Per
    chain the shape is (M, max_lag + 1, ...).

    Args:
        draws_MSD: Draws, as for `rhat`.
        max_lag: Largest lag in draws, 0 to S - 1.
        per_chain: Whether to compute them for each chain separately, $c_{mt} / c_{m0}$.
        chunk_size: Quantities in a block; None chooses. It affects only memory, about 150 bytes per draw in it.

    Raises:
        TypeError: If the draws are not a floating tensor.
        ValueError: If draws are too few or not finite, or the lag is out of range.
    """
    check_draws(draws_MSD)
    num_draws = draws_MSD.shape[1]
    check_flags(per_chain=per_chain)
    if whole("max_lag", max_lag, least=0) >= num_draws:
        raise ValueError(
            f"`max_lag` must be a whole number of 0 to {num_draws - 1}, below the number of draws; got {max_lag!r}."
        )

    def lags(block_RMS: Tensor) -> Tensor:
        deviations_RMS = centre(block_RMS)[1]
        series = deviations_RMS.flatten(0, 1).unsqueeze(1) if per_chain else deviations_RMS
        covariance = autocovariance(series)
        rho = covariance[:, : max_lag + 1] / covariance[:, :1]
        return rho.unflatten(0, (len(block_RMS), -1)) if per_chain else rho

    result = per_quantity(draws_MSD, lags, chunk_size=chunk_size)
    return result.movedim((-2, -1), (0, 1)) if per_chain else result.movedim(-1, 0)


def _rank(halves_RCn: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sorting indices of the values, (R, 2M·n), and the rank scores, (R, 2M, n)."""
    keys_RA, order_RA = sort(halves_RCn.flatten(1))
    return order_RA, rank_scores(keys_RA, order_RA).view(halves_RCn.shape)


def _rank_rhat(block_RMS: Tensor) -> Tensor:
    halves_RCn = split(block_RMS)
    return rank_rhat(halves_RCn, *_rank(halves_RCn))


def _mean_size(block_RMS: Tensor) -> Tensor:
    return effective_size(split(block_RMS))


def _tail(block_RMS: Tensor) -> Tensor:
    low_R, high_R = (effective_size(split(block_RMS <= bound_R11)) for bound_R11 in tail_bounds(block_RMS))
    # As in arviz, a constant indicator does not lower the other tail; if both are constant, the result is NaN.
    size = block_RMS[0].numel() - (block_RMS.shape[-1] % 2) * block_RMS.shape[-2]
    least_R = torch.minimum(low_R.nan_to_num(size), high_R.nan_to_num(size))
    return torch.where(low_R.isnan() & high_R.isnan(), torch.nan, least_R)


def _level(block_RMS: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    # Mean, standard deviation and standard error of the mean.
    num_values = block_RMS[0].numel()
    mean_R1, deviations_R1A = centre(block_RMS.flatten(1).unsqueeze(1))
    sd_R = (deviations_R1A.square_().sum(-1) / (num_values - 1)).sqrt().squeeze(-1)
    return mean_R1.squeeze(-1), sd_R, sd_R / _mean_size(block_RMS).sqrt()


def _everything(block_RMS: Tensor) -> Tensor:
    halves_RCn = split(block_RMS)
    order_RA, scores_RCn = _rank(halves_RCn)
    bulk_R = effective_size(scores_RCn)
    rhat_R = rank_rhat(halves_RCn, order_RA, scores_RCn)
    return torch.stack([*_level(block_RMS), bulk_R, _tail(block_RMS), rhat_R], -1)
