"""Bayes by backprop on MNIST: test error, pruning by signal to noise, and a regression (Blundell et al. 2015).

Networks with two hidden layers of ReLU units are trained in the ordinary way, with dropout, and by variational
inference with independent weights under a normal prior and under a mixture of a wide and a narrow one. The posterior
says of every weight how certain its sign is, and so which weights a network can do without.
"""

from torchbayes.experiments.bayes_by_backprop import recipe, report, run
from torchbayes.experiments.experiment import Experiment

EXPERIMENT = Experiment(
    name="bayes_by_backprop",
    claim="Bayes by backprop with a scale mixture prior has a lower test error than SGD and than with a normal "
    "prior, three quarters of its weights and more can be removed at hardly any cost, and its predictions are "
    "uncertain where there were no data.",
    source="Blundell, Cornebise, Kavukcuoglu and Wierstra 2015, Weight uncertainty in neural networks, section 5",
    expected="Test errors on MNIST with two hidden layers of 400 units: SGD 1.83 %, dropout 1.51 %, normal prior "
    "1.82 %, scale mixture 1.36 %; with 98 % of the weights of 1,200 units removed 1.39 % instead of 1.24 % (the "
    "numbers on pruning are from memory).",
    differences="DIFFERENCES",
    recipes={"small": recipe.SMALL, "paper": recipe.PAPER},
    cost={
        "small": "COST",
        "paper": "PAPERCOST",
    },
    run=run.run,
    summarise=report.summarise,
)
