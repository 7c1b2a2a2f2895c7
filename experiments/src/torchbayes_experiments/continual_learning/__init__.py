"""Continual learning on permuted and split MNIST (Nguyen, Li, Bui and Turner 2018; Ritter, Botev and Barber 2018).

By Bayes' rule the posterior of one task is the prior of the next, and nothing is forgotten. A network that is trained
on one task after the other loses the earlier ones. How much of Bayes' rule survives an approximation is what is
measured: independent weights by a bound on the evidence (VCL) or by a diagonal of curvatures, which is the online form
of elastic weight consolidation, Kronecker factors, and rows of each task that are seen once more before predicting.
"""

from torchbayes_experiments.continual_learning import recipe, report, run
from torchbayes_experiments.experiment import Experiment

EXPERIMENT = Experiment(
    name="continual_learning",
    claim="Carried from task to task as the prior, a posterior keeps what was learned: variational continual learning "
    "forgets less than online EWC and both less than fine-tuning, Kronecker factors improve on a diagonal, and "
    "coresets on what is without them.",
    source="Nguyen, Li, Bui and Turner 2018, Variational continual learning; for EWC and Kronecker factors: "
    "Kirkpatrick et al. 2017, Huszár 2018, and Ritter, Botev and Barber 2018",
    expected="Average accuracy after five tasks, from the figures of the authors' code: on permuted MNIST 93.3 % for "
    "VCL, 96.3 % with random coresets and 96.2 % with k-centre ones; on split MNIST 95.5, 96.9 and 98.4 %. Ritter et "
    "al.: about 96 % for Kronecker factors after ten permutations.",
    differences="EWC is its online form, one penalty at the last mode with the sum of all curvatures, of strength 1 "
    "and with the prior; the published one has a tuned strength, and a penalty for each task. Kronecker factors are "
    "joined as in `KroneckerCurvature.plus`. VCL takes its gradients by local reparameterisation, one draw where the "
    "paper has ten; learning rates fall to 0, VCL's from 0.003 in the place of 0.001; and every fit begins at standard "
    "deviations of at most 0.02, in the place of those of the last task, at first 0.05. The small scale has fewer "
    "rows and epochs, and minibatches for split MNIST too.",
    recipes={"small": recipe.SMALL, "paper": recipe.PAPER},
    cost={
        "small": "seven minutes of one core",
        "paper": "6 × 10 and 6 × 5 fits of up to 120 epochs: hours of one GPU (an estimate)",
    },
    run=run.run,
    summarise=report.summarise,
)
