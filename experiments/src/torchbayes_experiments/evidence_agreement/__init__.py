"""The log evidence of small networks by independent estimators: do they agree, and when does Laplace agree with them?

A network with H tanh units in one hidden layer has 2^H H! equivalent modes. A Laplace approximation at one of them has
the evidence of that mode, and log(2^H H!) is added for the others. That is right where modes are apart, and wrong where
data are so few that modes overlap: without data the posterior is the prior, and the estimate at one mode is exact.
Annealing and integration need no such correction.
"""

from torchbayes_experiments.evidence_agreement import recipe, report, run
from torchbayes_experiments.experiment import Experiment

EXPERIMENT = Experiment(
    name="evidence_agreement",
    claim="Annealed importance sampling and thermodynamic integration give the same log evidence of a small network "
    "within their error bars, forward and reverse annealing enclose it, and Laplace, counted over the equivalent "
    "modes, comes within 0.5 nats of it once the data fix all weights.",
    source="MacKay 1992, A practical Bayesian framework for backpropagation networks; Neal 2001, Annealed importance "
    "sampling; Grosse, Ancha and Roy 2016, Measuring the reliability of MCMC inference with bidirectional Monte Carlo",
    expected="No published table: estimators that are right agree, and the error of Laplace falls like 1/N in a "
    "regular model (Tierney and Kadane 1986). In a network with more units than the data need it need not fall, as "
    "the posterior is then not near a Gaussian however many the rows (Watanabe 2009).",
    differences="None of the papers has these problems. Laplace is of the highest of several modes, found by L-BFGS, "
    "with log(2^H H!) for its mirror images; modes that are not its mirror images are left out.",
    recipes={"small": recipe.SMALL, "paper": recipe.PAPER},
    cost={
        "small": "about seven minutes on one core",
        "paper": "more rows and longer runs, as no paper states a size: some hours on one core (an estimate)",
    },
    run=run.run,
    summarise=report.summarise,
)
