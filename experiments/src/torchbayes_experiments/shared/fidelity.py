"""How good a predictive is, and how close to a reference: metrics of average class probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import torchbayes as tb

Scores = dict[str, dict[str, dict[str, float]]]

# CIFAR-10 with ResNet-20 (Izmailov et al. 2021): accuracy in %, agreement in % and total variation, each mean and
# standard deviation of three runs, from its table of fidelity; NLL and ECE are read off its bar plots.
PUBLISHED: dict[str, tuple[Any, Any, Any, float | None, float | None]] = {
    "HMC, one chain": ((89.64, 0.25), (94.01, 0.25), (0.074, 0.003), 0.322, 0.043),
    "SGD": ((83.44, 1.14), (85.48, 1.00), (0.190, 0.005), 0.80, 0.12),
    "deep ensemble (50)": ((88.49, 0.10), (91.52, 0.06), (0.115, 0.000), 0.33, 0.03),
    "MFVI": ((86.45, 0.27), (88.75, 0.24), (0.136, 0.000), 0.41, 0.02),
    "SGLD": ((89.32, 0.23), (91.54, 0.15), (0.110, 0.001), 0.33, 0.03),
    "SGHMC": ((89.38, 0.32), (91.98, 0.35), (0.109, 0.001), None, None),
    "SGHMC, cyclical": ((89.63, 0.37), (92.67, 0.52), (0.099, 0.006), None, None),
    "SGHMC, cyclical and preconditioned": ((87.46, 0.21), (90.96, 0.24), (0.111, 0.002), None, None),
}


def members_of(posterior: tb.Posterior, *, draws: int = 1) -> list[tb.Functions]:
    """Return functions of each member or chain: all draws of a chain, so many of any other member."""
    if isinstance(posterior, tb.Draws):
        return [tb.Functions(posterior.model, weights_SD) for weights_SD in posterior.weights_MSD]
    drawn, members = posterior.functions(posterior.members * draws), posterior.members
    return [drawn.some(slice(m, None, members)) for m in range(members)]  # draw s is from member s mod M


def log_probabilities(posterior: tb.Posterior, inputs: Tensor, *, draws: int = 1) -> Tensor:
    """Return the log predictive probabilities of each member or chain, averaged over its draws.

    (M, B, K), float64, on the CPU.
    """
    outputs = (tb.predict(functions, inputs).outputs_SBK for functions in members_of(posterior, draws=draws))
    return torch.stack([mixture(outputs_SBK.double().log_softmax(-1)) for outputs_SBK in outputs]).cpu()


def mixture(log_probs: Tensor | Sequence[Tensor]) -> Tensor:
    """Return the log of the average of probabilities over the first axis, (S, ...) -> (...), or of several tensors."""
    stacked = log_probs if isinstance(log_probs, Tensor) else torch.stack(list(log_probs))
    return stacked.logsumexp(0) - math.log(len(stacked))


def quality(log_probs: Tensor, targets: Tensor) -> dict[str, float]:
    """Return `accuracy`, `nll`, `ece` and `gap`, mean confidence − accuracy, of (B, K) log probabilities, float64."""
    probs, targets = log_probs.exp(), targets.cpu()
    accuracy = float(tb.metrics.accuracy(probs, targets))
    return {
        "accuracy": accuracy,
        "nll": float(tb.metrics.nll(log_probs.gather(1, targets[:, None]).squeeze(1))),
        "ece": float(tb.metrics.ece(probs, targets)),
        "gap": float(probs.amax(-1).mean()) - accuracy,
    }


def closeness(log_probs: Tensor, reference: Tensor) -> dict[str, float]:
    """Return `agreement` and `total_variation` of two averages, (B, K) each."""
    pair = log_probs.exp(), reference.exp()
    return {
        "agreement": float(tb.metrics.agreement(*pair)),
        "total_variation": float(tb.metrics.total_variation(*pair)),
    }


def scores(
    predictions: Mapping[str, Sequence[Any]], *, mixed: Callable[..., Any], measured: Callable[..., Any]
) -> Scores:
    """Return method -> `all` (its members together) and `one` (the mean over each alone) -> metric -> value.

    Distances are to all of HMC; each chain of HMC is compared with the others, and all of it with nothing.

    Args:
        predictions: method -> what each of its members or chains predicts; "HMC" is the reference.
        mixed: (predictions of some members) -> that of their mixture.
        measured: (prediction, reference or None) -> metric -> value.
    """
    reference, of_methods = mixed(predictions["HMC"]), {}
    for name, of_members in predictions.items():
        is_hmc = name == "HMC"
        alone = [
            measured(each, mixed([*of_members[:m], *of_members[m + 1 :]]) if is_hmc else reference)
            for m, each in enumerate(of_members)
        ]
        of_methods[name] = {
            "all": measured(mixed(of_members), None if is_hmc else reference),
            "one": {key: sum(metrics[key] for metrics in alone) / len(alone) for key in alone[0]},
        }
    return of_methods
