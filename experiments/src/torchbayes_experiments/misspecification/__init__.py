"""Where a posterior goes when the model is wrong, and what its bands are worth there.

Kleijn and van der Vaart (2012): the posterior concentrates on the functions nearest to the truth in Kullback-Leibler
divergence, but its spread is not that of its mean over data sets, which is the sandwich. So 95 % bands cover the
nearest function more or less often than that; by how much is known in closed form. Remedies: a temperature above one,
by the ratio of the two covariances, and a likelihood with the tails that the data have.
"""

from torchbayes_experiments.experiment import Experiment
from torchbayes_experiments.misspecification import recipe, report, run

EXPERIMENT = Experiment(
    name="misspecification",
    claim="If the model is wrong the posterior concentrates on the line nearest to the truth, with 95 % bands that "
    "cover it less often, by as much as the sandwich covariance tells; tempering brings the coverage closer to 95 %, "
    "and under outliers Student t noise does so with narrower bands.",
    source="Kleijn and van der Vaart 2012, The Bernstein-von Mises theorem under misspecification; Lyddon, Holmes and "
    "Walker 2019, General Bayesian updating and the loss-likelihood bootstrap (the temperature)",
    expected="95 % coverage where the model is right, 2Φ(1.96 s/t) − 1 elsewhere, with s the standard deviation by the "
    "curvature and t by the sandwich; distances that fall as 1/√N.",
    differences="These are theorems for many rows; here are 50 to 450, and lines under noise of known scale, whose "
    "posteriors are exact: closed forms, and for Student t noise a quadrature. There is no network.",
    recipes={"small": recipe.SMALL, "paper": recipe.PAPER},
    cost={
        "small": "seconds of one core",
        "paper": "10,000 data sets of up to 1,350 rows: a few minutes of one core; it has not been run",
    },
    run=run.run,
    summarise=report.summarise,
)
