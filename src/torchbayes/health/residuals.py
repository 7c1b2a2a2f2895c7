"""Whether targets have another scale than network and noise, so that no weights near the posterior were reached."""

from __future__ import annotations

import math

import torch

from torchbayes.health.ending import Case
from torchbayes.model.likelihoods import Gaussian, HeteroscedasticGaussian
from torchbayes.model.sources.sources import Source
from torchbayes.posteriors.posterior import Posterior

_ROWS = 512
_FAR = 30.0  # noise standard deviations; a network that is only trained too little is a few away
_LARGE, _SMALL = 100.0, 0.01  # targets of this root mean square, or standard deviation, have an unusual scale
_WIDE = 3.0  # times the standard deviation of the targets; even a constant then loses 0.65 nats per target
_NOTHING = 0.95  # of the standard deviation of the targets: residuals of a network that explains nothing


def explained(case: Case) -> list[str]:
    """Return the problem that `unexplained` finds in a result."""
    return unexplained(case.posterior, case.source)


def unexplained(posterior: Posterior, source: Source) -> list[str]:
    """Return a problem, as one clause, where targets and network do not have one scale.

    With m and s the mean and the noise of a draw, the root mean square of (y − m)/s is about 1 for a good fit.
    Targets of size 10,000 under a noise of 1, or one that is learned in small steps, give thousands, and a log
    likelihood of minus millions that no other check reports, because it may be far better than that of a constant.
    A learned noise may also grow to the size of such targets, which then explains them without the network; the
    sign of this is residuals as large as the standard deviation of the targets, if that is far from 1. A noise far
    wider than the targets, such as one of 1 under targets of 0.1, leaves the data without weight. One draw of each
    member is judged, and their mean.
    """
    likelihood = posterior.model.likelihood
    if not isinstance(likelihood, Gaussian | HeteroscedasticGaussian):
        return []
    drawn, squares, targets, residuals, least = posterior.functions(posterior.members), [], [], [], math.inf
    for batch in source.some(_ROWS):
        outputs_SBK = drawn(batch.inputs, chunk_size=batch.size)
        parameters = [{name: values[s] for name, values in drawn.parameters.items()} for s in range(len(outputs_SBK))]
        noises = [
            likelihood.distribution(out, scales_of_draw)
            for out, scales_of_draw in zip(outputs_SBK, parameters, strict=True)
        ]
        mean_SB, sd_SB = (torch.stack([getattr(n, moment) for n in noises]).double() for moment in ("mean", "stddev"))
        target_B = batch.targets.double().view_as(mean_SB[0])
        squares.append(((target_B - mean_SB) / sd_SB).square().flatten())
        least = min(least, float(sd_SB.min()))
        residuals.append((target_B - mean_SB.mean(0)).flatten())
        targets.append(target_B.flatten())
    size = float(torch.cat(squares).mean().sqrt())
    if size > _FAR:
        return [
            f"the residuals of the training rows are {size:.3g} noise standard deviations, so nothing near the "
            f"posterior was reached: targets, network and noise are probably not on one scale (standardise inputs and "
            f"targets, or give the noise scale in units of the targets)"
        ]
    target, residual = torch.cat(targets), torch.cat(residuals).square().mean().sqrt()
    spread = target.std(correction=0)
    if least > _WIDE * spread > 0:
        return [
            f"the standard deviation of the noise is {least:.3g}, and that of the targets {float(spread):.3g}, so that "
            f"all functions explain them alike (give the noise scale in units of the targets, as in "
            f"likelihoods.Gaussian({float(f'{residual:.2g}'):g}), take likelihoods.Gaussian('learned'), or standardise "
            f"the targets)"
        ]
    if (target.square().mean().sqrt() > _LARGE or spread < _SMALL) and residual > _NOTHING * spread > 0:
        return [
            f"the network explains nothing of the targets: its residuals on the training rows are "
            f"{float(residual):.3g}, and the standard deviation of the targets is {float(spread):.3g}, so that they "
            f"are probably not on one scale (standardise inputs and targets)"
        ]
    return []
