r"""Building blocks of the diagnostics of chains, for a block of R quantities at once.

Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021), "Rank-normalization, folding, and localization: an improved R̂
for assessing convergence of MCMC"; Geyer (1992), "Practical Markov chain Monte Carlo". Blocks are R × chains × draws;
the letter C counts half chains where M counts whole ones, and the letter A all draws of one quantity.
"""

import functools
import math

import torch
from torch import Tensor


def split(block_RMS: Tensor) -> Tensor:
    """Return both halves of each chain as chains, (R, 2M, S // 2), without an odd draw in the middle."""
    half, odd = divmod(block_RMS.shape[-1], 2)
    if not odd:
        return block_RMS.view(len(block_RMS), -1, half)
    return torch.stack([block_RMS[..., :half], block_RMS[..., -half:]], 2).flatten(1, 2)


def centre(chains_RCn: Tensor) -> tuple[Tensor, Tensor]:
    """Return the means (R, C) of chains and the deviations (R, C, n), in float64; 0 for a chain that never moves."""
    chains_RCn = chains_RCn.double()
    # Relative to its first draw, a chain that never moves is zero, whatever its level and its rounding.
    first_RC1 = chains_RCn[..., :1]
    moves_RCn = chains_RCn - first_RC1
    mean_RC1 = moves_RCn.mean(-1, keepdim=True)
    return (first_RC1 + mean_RC1).squeeze(-1), moves_RCn.sub_(mean_RC1)


def potential_scale(chains_RCn: Tensor) -> Tensor:
    r"""Return $\hat R = \sqrt{(\frac{n-1}{n} W + \frac1n B) / W}$ of at least two chains, shape (R,)."""
    num_draws = chains_RCn.shape[-1]
    mean_RC, deviations_RCn = centre(chains_RCn)
    within_R = deviations_RCn.square_().sum(-1).mean(-1) / (num_draws - 1)
    return ((num_draws - 1) / num_draws + mean_RC.var(-1) / within_R).sqrt()


def sort(values_RA: Tensor) -> tuple[Tensor, Tensor]:
    """Return sorted keys, equal where values are, and the indices of the values, (R, A) each, row by row.

    On a CPU a float32 and its index are packed into one integer, because numpy sorts plain integers, with vector
    instructions, several times faster than torch sorts a tensor and keeps the indices.
    """
    if values_RA.device.type != "cpu":
        return values_RA.sort(-1)
    if values_RA.dtype == torch.float64:
        order_RA = torch.from_numpy(values_RA.numpy().argsort(-1))
        return values_RA.gather(-1, order_RA), order_RA
    # Adding zero turns -0 into 0. Below zero the bits without the sign must be flipped to order as integers.
    bits_RA = (values_RA + 0.0).view(torch.int32)
    keys_RA = bits_RA ^ ((bits_RA >> 31) & 0x7FFFFFFF)
    packed_RA = keys_RA.long().bitwise_left_shift_(32)
    packed_RA |= torch.arange(values_RA.shape[-1], device=values_RA.device)
    packed_RA.numpy().sort(-1)
    order_RA = packed_RA & 0xFFFFFFFF
    return packed_RA.bitwise_right_shift_(32), order_RA


def rank_scores(keys_RA: Tensor, order_RA: Tensor) -> Tensor:
    r"""Return normal scores of ranks, $z = \Phi^{-1}((r - 3/8) / (A + 1/4))$, float64 (R, A), from what `sort` returns.

    They are in the places of the values; ties share their average rank (Blom, 1958).
    """
    num_values = keys_RA.shape[-1]
    table = _half_rank_scores(num_values).to(keys_RA.device)
    scores_RA = table[::2].expand_as(order_RA)
    joined = _joined(keys_RA)
    if len(joined):
        scores_RA = scores_RA.contiguous()
        # Twice the average rank, less two, is the first plus the last place of a run.
        tied = table.index_select(0, _first_plus_last(joined) - 2 * num_values * (joined // num_values))
        scores_RA.view(-1).scatter_(0, joined, tied).scatter_(0, joined + 1, tied)
    return torch.empty(order_RA.shape, dtype=table.dtype, device=table.device).scatter_(1, order_RA, scores_RA)


def fold(values_RA: Tensor, order_RA: Tensor) -> Tensor:
    """Return distances from the median of each row, (R, A), for an even number of values."""
    half = values_RA.shape[-1] // 2
    # In float64, where the median of two float32 numbers is exact: a rounded one would shift one side against the
    # other, and change ranks where the spread is small compared with the level, as for probabilities near 1.
    middle_R2 = values_RA.gather(-1, order_RA[:, half - 1 : half + 1]).double()
    # Halves are taken first, so that the sum of two large values does not overflow.
    return (values_RA - (0.5 * middle_R2).sum(-1, keepdim=True)).abs_().to(values_RA.dtype)


def rank_rhat(values_RCn: Tensor, order_RA: Tensor, scores_RCn: Tensor) -> Tensor:
    """Return the larger R̂ of the rank scores and of those of the folded values, (R,)."""
    folded_RA = fold(values_RCn.flatten(1), order_RA)
    tails_R = potential_scale(rank_scores(*sort(folded_RA)).view(values_RCn.shape))
    # Draws of two values in equal number fold into a constant, whose R̂ is NaN and is ignored.
    return torch.fmax(potential_scale(scores_RCn), tails_R)


def tail_bounds(block_RMS: Tensor) -> tuple[Tensor, Tensor]:
    """Return the 5 % and 95 % quantiles of each row of draws, (R, 1, 1); linear between order statistics."""
    values_RA = block_RMS.flatten(1)
    if values_RA.device.type == "cpu":
        values_RA = values_RA.clone()
        values_RA.numpy().sort(-1)
    else:
        values_RA = values_RA.sort(-1).values
    bounds = []
    for percent in (5, 95):
        index, percents = divmod((values_RA.shape[-1] - 1) * percent, 100)
        low_R, high_R = values_RA[:, index].double(), values_RA[:, index + 1].double()
        # This form, unlike a weighted sum of both, gives the common value of ties exactly.
        bounds.append((low_R + percents / 100 * (high_R - low_R)).view(-1, 1, 1))
    return bounds[0], bounds[1]


def autocovariance(deviations_RCn: Tensor) -> Tensor:
    r"""Return the mean over chains of $c_t = \frac1n \sum_s x_s x_{s+t}$ at lags 0 to n - 1, (R, n).

    It is computed by the fast Fourier transform.
    """
    num_draws = deviations_RCn.shape[-1]
    length = fast_length(2 * num_draws)
    spectrum_RCF = torch.fft.rfft(deviations_RCn, n=length)
    # The transform is linear: power is averaged over chains first, and transformed back once.
    power_RF = (spectrum_RCF.real.square() + spectrum_RCF.imag.square()).mean(1)
    return torch.fft.irfft(power_RF, n=length)[:, :num_draws] / num_draws


def effective_size(chains_RCn: Tensor) -> Tensor:
    r"""Return the effective sample size $Cn / \hat\tau$ of half chains, float64 (R,), with C, n ≥ 2.

    By Geyer's initial monotone positive sequence over all chains. NaN where all values are equal or their squares
    overflow.
    """
    num_chains, num_draws = chains_RCn.shape[1:]
    mean_RC, deviations_RCn = centre(chains_RCn)
    covariance_Rn = autocovariance(deviations_RCn)
    within_R1 = covariance_Rn[:, :1] * num_draws / (num_draws - 1)
    total_R1 = covariance_Rn[:, :1] + mean_RC.var(-1, keepdim=True)
    rho_Rn = 1 - (within_R1 - covariance_Rn) / total_R1
    rho_Rn[:, 0] = 1
    size = num_chains * num_draws
    tau_R = _geyer(rho_Rn).clamp_min(1 / math.log10(size))
    # Without this, overflowing squares would stop the series at once and look like independent draws.
    defined_R = (total_R1 > 0).logical_and_(total_R1 < math.inf).squeeze(-1)
    return torch.where(defined_R, size / tau_R, math.nan)


def fast_length(least: int) -> int:
    """Return the smallest even number of at least ``least`` with no prime factor above five."""
    length = least + least % 2
    while True:
        cofactor = length
        for factor in (2, 3, 5):
            while cofactor % factor == 0:
                cofactor //= factor
        if cofactor == 1:
            return length
        length += 2


def _geyer(rho_Rn: Tensor) -> Tensor:
    """Return the autocorrelation time of autocorrelations at lags 0 to n - 1, (R,).

    Lags go in pairs (2p, 2p + 1), whose sums are positive and falling for a reversible chain. The first sum that is
    not positive, or the end of the lags, stops the series; the even lag of the last pair still counts, once.
    """
    num_pairs = max(1, (rho_Rn.shape[-1] - 1) // 2)
    pairs_RP2 = rho_Rn[:, : 2 * num_pairs].unflatten(-1, (num_pairs, 2))
    sums_RP = pairs_RP2.sum(-1)
    positive_RP = (sums_RP > 0).long().cumprod(-1)
    stop_R1 = positive_RP.sum(-1, keepdim=True).clamp_max(num_pairs - 1)
    before_RP = torch.arange(num_pairs, device=rho_Rn.device) < stop_R1
    total_R = torch.where(before_RP, sums_RP.cummin(-1).values, 0.0).sum(-1)
    even_R = pairs_RP2[..., 0].gather(-1, stop_R1).squeeze(-1)
    counts_R = (even_R > 0) | (sums_RP.gather(-1, stop_R1).squeeze(-1) >= 0)
    return 2 * total_R - 1 + torch.where(counts_R, even_R, 0.0)


def _joined(keys_RA: Tensor) -> Tensor:
    """Return the indices, counted over all rows, of keys that equal the next key of their row."""
    joined_RA = torch.zeros_like(keys_RA, dtype=torch.bool)
    torch.eq(keys_RA[:, 1:], keys_RA[:, :-1], out=joined_RA[:, :-1])
    return joined_RA.view(-1).nonzero().squeeze(-1)


def _first_plus_last(joined: Tensor) -> Tensor:
    """Return the first plus the last index of the run of ties to which each joined index belongs."""
    new = torch.ones_like(joined, dtype=torch.bool)
    torch.gt(joined.diff(), 1, out=new[1:])
    first = torch.where(new, joined, 0).cummax(0).values
    beyond = torch.iinfo(joined.dtype).max
    last = torch.where(new.roll(-1), joined + 1, beyond).flip(0).cummin(0).values.flip(0)
    return first + last


@functools.lru_cache(maxsize=8)
def _half_rank_scores(num_values: int) -> Tensor:
    """Return the normal scores of the ranks 1, 1.5, 2 ... ``num_values``."""
    ranks = 1 + 0.5 * torch.arange(2 * num_values - 1, dtype=torch.float64, device="cpu")
    return torch.special.ndtri((ranks - 0.375) / (num_values + 0.25))
