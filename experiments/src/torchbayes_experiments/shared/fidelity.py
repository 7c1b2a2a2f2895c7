"""How good a predictive is, and how close to a reference: metrics of average class probabilities."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchbayes import metrics
from torchbayes.posteriors import Draws, Functions, Posterior
from torchbayes.predictive.predict import predict


def members_of(posterior: Posterior, *, draws: int = 1) -> list[Functions]:
    """Return functions of each member or chain.

    Args:
        posterior: any; of chains, all draws are taken.
        draws: functions drawn from each member.

    Returns:
        M sets of functions.
    """
    if isinstance(posterior, Draws):
        return [Functions(posterior.model, weights_SD) for weights_SD in posterior.weights_MSD]
    drawn, members = posterior.functions(posterior.members * draws), posterior.members
    return [drawn.some(slice(m, None, members)) for m in range(members)]  # draw s is from member s mod M


def log_probabilities(posterior: Posterior, inputs: Tensor, *, draws: int = 1) -> Tensor:
    """Return the log predictive probabilities of each member or chain, averaged over its draws.

    Args:
        posterior: any; of chains, all draws are taken.
        inputs: B rows.
        draws: functions drawn from each member.

    Returns:
        Tensor (M, B, K), float64, on the CPU.
    """
    outputs = (predict(functions, inputs).outputs_SBK for functions in members_of(posterior, draws=draws))
    return torch.stack([mixture(outputs_SBK.double().log_softmax(-1)) for outputs_SBK in outputs]).cpu()


def mixture(log_probs: Tensor) -> Tensor:
    """Return the log of the average of probabilities over the first axis, (S, ...) -> (...)."""
    return log_probs.logsumexp(0) - math.log(len(log_probs))


def quality(log_probs: Tensor, targets: Tensor) -> dict[str, float]:
    """Return the metrics of predictive probabilities.

    Args:
        log_probs: (B, K), float64.
        targets: (B,).

    Returns:
        `accuracy`, `nll` in nats, `ece` (15 bins of equal width), and `gap`: mean confidence − accuracy.
    """
    probs, targets = log_probs.exp(), targets.cpu()
    accuracy = float(metrics.accuracy(probs, targets))
    return {
        "accuracy": accuracy,
        "nll": float(metrics.nll(log_probs.gather(1, targets[:, None]).squeeze(1))),
        "ece": float(metrics.ece(probs, targets)),
        "gap": float(probs.amax(-1).mean()) - accuracy,
    }


def closeness(log_probs: Tensor, reference: Tensor) -> dict[str, float]:
    """Return `agreement` and `total_variation` of two averages, (B, K) each."""
    pair = log_probs.exp(), reference.exp()
    return {
        "agreement": float(metrics.agreement(*pair)),
        "total_variation": float(metrics.total_variation(*pair)),
    }
