"""Bayes by backprop on MNIST: test error, pruning by signal to noise, and a regression (Blundell et al. 2015).

Networks with two hidden layers of ReLU units are trained in the ordinary way, with dropout, and by variational
inference with independent weights under a normal prior and under a mixture of a wide and a narrow one. The posterior
says of every weight how certain its sign is, and so which weights a network can do without.
"""

from torchbayes_experiments.bayes_by_backprop import recipe, report, run
from torchbayes_experiments.experiment import Experiment

EXPERIMENT = Experiment(
    name="bayes_by_backprop",
    claim="Bayes by backprop with a scale mixture prior has a lower test error than SGD and than with a normal "
    "prior, three quarters of its weights and more can be removed at hardly any cost, and its predictions are "
    "uncertain where there were no data.",
    source="Blundell, Cornebise, Kavukcuoglu and Wierstra 2015, Weight uncertainty in neural networks, section 5",
    expected="Test errors on MNIST with two hidden layers of 400 units: SGD 1.83 %, dropout 1.51 %, normal prior "
    "1.82 %, scale mixture 1.36 %; with 98 % of the weights of 1,200 units removed 1.39 % instead of 1.24 % (the "
    "numbers on pruning are from memory).",
    differences="Bayes by backprop is fitted by Adam: plain SGD, as in the paper, leaves the scales of the posterior "
    "where they begin unless the training is very long. Every minibatch has the same part of the divergence, not "
    "2^(M−i) of it, and one draw; scales are parameterised by their logarithms and begin at 0.02, under the mixture "
    "at the scale of its narrow normal. Inputs are not dropped. The small scale has 400 units, and 20 epochs in the "
    "place of 600; SGD and dropout, which gain by more, have 50. For the regression the paper names neither network "
    "nor number of rows; here 100 + 100 units, 1,000 rows and noise of a learned scale.",
    recipes={"small": recipe.SMALL, "paper": recipe.PAPER},
    cost={
        "small": "six to seven minutes of one core",
        "paper": "at 400 units 1.6 hours of one core, at 800 units 4 to 5 hours (estimates from the cost of a step); "
        "it has not been run",
    },
    run=run.run,
    summarise=report.summarise,
)
