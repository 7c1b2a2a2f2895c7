"""Claims from papers, put to the test: one module per claim, a recipe at two scales, a verdict from several seeds."""

from pkgutil import iter_modules

from torchbayes_experiments.experiment import Experiment, Findings
from torchbayes_experiments.files import load_or_compute
from torchbayes_experiments.headline import Headline
from torchbayes_experiments.registry import get, names, reproduce
from torchbayes_experiments.rows import Results, Rows, tidy
from torchbayes_experiments.tables import differences, dots, pivot
from torchbayes_experiments.verdicts import Part, Verdict, below

# Name -> folder of the module of that name, whose `EXPERIMENT` it is; it is imported when it is asked for.
NAMES = {
    module.name: folder
    for folder in ("basins", "evidence", "optimisation", "priors", "references", "regression", "variational")
    for module in iter_modules([f"{__path__[0]}/{folder}"])
}

__all__ = [
    "NAMES",
    "Experiment",
    "Findings",
    "Headline",
    "Part",
    "Results",
    "Rows",
    "Verdict",
    "below",
    "differences",
    "dots",
    "get",
    "load_or_compute",
    "names",
    "pivot",
    "reproduce",
    "tidy",
]
