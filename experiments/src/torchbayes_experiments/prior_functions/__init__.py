"""What normal priors of several scales say of functions, and what posteriors under them predict.

Wilson and Izmailov (2020), section 5: a prior N(0, α² I), which looks vague for weights, makes functions of a
convolutional network that are alike for images of one class, at any scale; and predictions depend little on the scale,
once it is not too small to fit the data.
"""

from torchbayes_experiments.experiment import Experiment
from torchbayes_experiments.prior_functions import recipe, report, run

EXPERIMENT = Experiment(
    name="prior_functions",
    claim="Functions of LeNet under N(0, α² I) are more alike for two images of one class than of two, at every α from "
    "0.02 to 1; and the test NLL falls steeply as α grows from too small a value, and then changes little.",
    source="Wilson and Izmailov 2020, Bayesian deep learning and a probabilistic perspective of generalization, "
    "section 5 and its appendix",
    expected="Correlations within a class above those between classes for α = 0.02, 0.1 and 1, slightly lower for "
    "large α; an NLL of SWAG that falls sharply up to about 0.5 and is flat or slightly rises beyond (figures; no "
    "numbers).",
    differences="Correlations are means over the logits, where the paper has one logit. Beside them are those of a "
    "linear model, which are the cosines of the pixels. The small scale draws functions of the paper's LeNet at its "
    "1,000 images, and fits a LeNet of 8 and 16 filters to 4,000 images, so that the same α is a weaker prior in the "
    "paper, which has 60,000.",
    recipes={"small": recipe.SMALL, "paper": recipe.PAPER},
    cost={
        "small": "about a minute and a half of one core",
        "paper": "eight fits of 50 epochs of 60,000 images: about an hour on one GPU (an estimate); it has not been "
        "run",
    },
    run=run.run,
    summarise=report.summarise,
)
