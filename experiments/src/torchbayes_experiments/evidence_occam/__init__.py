"""Occam's razor by the evidence: width and prior scale of a network for regression (MacKay 1992, Immer et al. 2021).

    log p(D) ≈ log p(D|w*) + log [ p(w*) (2π)^{D/2} det(P)^{−1/2} ]

The second term is the log Occam factor; the factor is the fraction of the prior's volume that remains after the data.
Every network is trained to a mode under its own prior. Its noise scale is the one with the highest evidence: `tune`
proposes one at the mode, the network is trained again, and the step is halved if the evidence has not risen, because
`tune` does not know the curvature at the new mode. The evidence is that of one mode; log(2^H H!) for its mirror images
is reported beside it. Statements about the prior do not depend on that term, statements about the width do.
"""

from torchbayes_experiments.evidence_occam import recipe, report, run
from torchbayes_experiments.experiment import Experiment

EXPERIMENT = Experiment(
    name="evidence_occam",
    claim="The Laplace evidence of a network has a maximum inside the range of prior scales, and the scale it chooses "
    "predicts about as well as the best; with width the likelihood rises and the Occam factor falls.",
    source="MacKay 1992, A practical Bayesian framework for backpropagation networks; Immer, Bauer, Fortuin, Rätsch "
    "and Khan 2021, Scalable marginal likelihood estimation for model selection in deep learning",
    expected="Evidence and test error go together over priors and widths, and the evidence of networks larger than the "
    "data need falls or levels off while their training error goes on falling (figures of both papers; other "
    "data).",
    differences="UCI energy in the place of a robot arm or images; one prior scale for all weights; modes by damped "
    "Gauss-Newton steps and dense precisions, where Immer et al. optimise the prior during training with Kronecker "
    "factors.",
    recipes={"small": recipe.SMALL, "paper": recipe.PAPER},
    cost={
        "small": "about three minutes on one core",
        "paper": "more widths and longer climbs, as no paper has these data: some hours on one core (an estimate)",
    },
    run=run.run,
    summarise=report.summarise,
    unused=("starts",),
)
