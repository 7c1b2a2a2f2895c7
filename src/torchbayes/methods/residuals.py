"""Whether targets are on another scale than network and noise, so that nothing near the posterior was reached."""

from __future__ import annotations

from torchbayes.model.likelihoods import Gaussian, HeteroscedasticGaussian
from torchbayes.model.rows.sources import Source
from torchbayes.posteriors.posterior import Posterior

_ROWS = 512
_FAR = 30.0  # noise standard deviations; a network that is merely trained too little is a few away


def unexplained(posterior: Posterior, source: Source) -> list[str]:
    """Return a problem, as one clause, where residuals of training rows are many times the noise.

    With m and s the mean and the noise of a draw, the root mean square of (y − m)/s is about 1 for a good fit. Targets
    of size 10,000 under a noise of 1, or of one that is learned in small steps, give thousands, and a log likelihood of
    minus millions that no other check minds: it may be far better than that of a constant.

    Args:
        posterior: the result; one draw of each member is looked at.
        source: the training data.
    """
    likelihood = posterior.model.likelihood
    if not isinstance(likelihood, Gaussian | HeteroscedasticGaussian):
        return []
    drawn, total, count = posterior.functions(posterior.members), 0.0, 0
    for batch in source.some(_ROWS):
        outputs_SBK = drawn(batch.inputs, chunk_size=batch.size)
        for s, outputs_BK in enumerate(outputs_SBK):
            noise = likelihood.distribution(outputs_BK, {name: part[s] for name, part in drawn.parameters.items()})
            z = (batch.targets.view_as(noise.mean) - noise.mean).double() / noise.stddev.double()
            total, count = total + float(z.square().sum()), count + z.numel()
    size = (total / max(count, 1)) ** 0.5
    if not size > _FAR:
        return []
    return [
        f"the residuals of the training rows are {size:.3g} noise standard deviations, so nothing near the posterior "
        f"was reached: targets, network and noise are probably not on one scale (standardise inputs and targets, or "
        f"give the noise scale in units of the targets)"
    ]
