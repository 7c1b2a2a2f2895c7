"""How far approximate posteriors of a low-rank adapter are from its posterior, which HMC samples.

A language model of a million weights is trained on reviews and messages, and frozen. An adapter of a thousand weights
then learns from 200 questions whether a message is spam. Methods that were made for adapters, and others, have
the same adapter, prior and questions, and HMC says what they approximate.
"""

from torchbayes_experiments import Experiment, Headline
from torchbayes_experiments.references.adapter_fidelity import report, run

EXPERIMENT = Experiment(
    name="adapter_fidelity",
    claim="An ensemble of adapters, Laplace, TFB and BLoB predict closer to the posterior of the adapter than MAP, "
    "the ensemble closer than mean field, and Laplace, TFB, BLoB and ScalaBL have a lower NLL and ECE than maximum "
    "likelihood.",
    source="Yang et al. 2024, Bayesian low-rank adaptation for large language models; Wang et al. 2024, BLoB; Shi et "
    "al. 2025, Training-free Bayesianization; Samplawski et al. 2025, ScalaBL; of distances from HMC, Izmailov et al. "
    "2021, What are Bayesian neural network posteriors really like?, section 7",
    expected="The papers on adapters report a lower NLL and ECE than maximum likelihood, at about its accuracy, and no "
    "distance from HMC. On CIFAR-10 an ensemble has a total variation of 0.115 from HMC, mean field 0.136 and a single "
    "network 0.190.",
    differences="A base of 1.2 million weights in the place of billions, trained by the experiment itself, so that the "
    "posterior can be sampled; adapters of rank 2 on queries and values of the last block and on the output layer, "
    "1,156 weights, not of all blocks; 200 questions with two answers. All but maximum likelihood and ScalaBL, which "
    "has its published priors and other weights, have the prior N(0, 0.3²) of both factors, proper in both as HMC "
    "needs; in its paper BLoB has none for B. Values are computed after attention has averaged the hidden states, "
    "which is the same function, but Kronecker factors and dropout see these averages in the place of tokens.",
    recipes={"small": run.SMALL, "paper": run.PAPER},
    cost={
        "small": "ten minutes of one core, and seven for the base, once",
        "paper": "a base of 41 million weights, then hours on one GPU (an estimate; it has not been run)",
    },
    run=run.run,
    summarise=report.summarise,
    headline=Headline(
        "total variation from HMC, messages",
        ("TV from HMC",),
        table="messages",
        rows=("HMC, one chain", "IVON", "BLoB", "Laplace, linearised", "ensemble", "TFB", "MAP", "mean field", "MLE"),
    ),
)
