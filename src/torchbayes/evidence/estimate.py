"""Evidence: the result of an estimator, and the logarithm of a mean of weights with its error."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchbayes.posteriors.problems import note

# With fewer effective weights the jackknife's error is too small, as measured in tests/evidence/test_estimate.py.
LEAST_ESS = 10.0


@dataclass(frozen=True)
class Evidence:
    """An estimate of log p(D) = log ∫ p(D|w) p(w) dw.

    Attributes:
        log_evidence: the estimate, in nats.
        error: its standard error, in nats; 0 where the value is exact.
        method: the estimator, in words.
        details: further results by name, as documented by the method. Tensors are float64 on the CPU.
    """

    log_evidence: float
    error: float
    method: str
    details: Mapping[str, Any] = field(default_factory=dict, repr=False)


class LogMean(NamedTuple):
    """The logarithm of a mean of weights."""

    value: float  # log (1/P) Σ_p e^{v_p}
    error: float  # standard error by the jackknife
    ess: float  # effective number of weights, (Σ e^{v_p})² / Σ e^{2 v_p}, between 1 and P


def log_mean(log_weights_P: Tensor) -> LogMean:
    r"""Return log mean exp of at least two independent log weights v, with its error; v = −∞ is a weight of zero.

    The jackknife leaves out one weight at a time: $\hat\sigma^2 = \frac{P-1}{P} \sum_p (\hat z_{(p)} - \bar z)^2$
    with $\hat z_{(p)} = \log \frac{1}{P-1} \sum_{q \neq p} e^{v_q}$ (Efron and Stein 1981). For even weights it is
    the delta method's $\mathrm{sd}(e^v) / (\sqrt P \, \overline{e^v})$; where a single weight dominates it is
    larger. A ValueError if one is NaN or +∞, or all are zero.
    """
    log_weights_P = log_weights_P.double().cpu()
    count = len(log_weights_P)
    if count < 2:
        raise ValueError(f"an error needs at least 2 weights; got {count}. Use more particles or draws.")
    top = float(log_weights_P.max())
    if log_weights_P.isnan().any() or not math.isfinite(top):
        raise ValueError(
            f"log weights must be below +inf and not all −inf; the largest is {top:g} and "
            f"{int(log_weights_P.isnan().sum())} of {count} are NaN. Look for extreme values in the data or the prior."
        )
    total = float(log_weights_P.logsumexp(0))
    shares_P = (log_weights_P - total).exp()
    # log(1 − share) for small shares. The largest may be nearly one, so the rest is summed without it.
    without_P = total + torch.log1p(-shares_P.clamp(max=0.5))
    largest = int(log_weights_P.argmax())
    others_P = torch.cat([log_weights_P[:largest], log_weights_P[largest + 1 :]])
    without_P[largest] = others_P.logsumexp(0)
    variance = float(without_P.var(correction=0)) * (count - 1)
    error = math.sqrt(variance) if math.isfinite(variance) else math.inf
    return LogMean(total - math.log(count), error, 1 / float(shares_P.square().sum()))


def warn_of_few(ess: float, weighted: str, advice: str, *, wrong: str = "too low") -> None:
    """Warn if so few weights dominate that the error is unreliable; the logarithm of a mean of few weights is too low.

    `weighted` names what was weighted, such as "particles"; `advice` is one sentence.
    """
    if ess < LEAST_ESS:
        note(
            f"the evidence rests on {ess:.1f} effective {weighted}, fewer than {LEAST_ESS:g}: it is probably {wrong}, "
            f"and its error bar too small. {advice}"
        )
