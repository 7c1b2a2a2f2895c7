"""Claims from papers, put to the test: one module per claim, a recipe at two scales, a verdict from several seeds."""

from torchbayes_experiments.experiment import Experiment, Findings
from torchbayes_experiments.files import load_or_compute
from torchbayes_experiments.registry import get, names, reproduce
from torchbayes_experiments.rows import Results, Rows, tidy
from torchbayes_experiments.tables import differences, dots, pivot
from torchbayes_experiments.verdicts import Part, Verdict, below

# Name -> folder of the module of that name, whose `EXPERIMENT` it is; it is imported when it is asked for.
NAMES = {
    "multiswag_corruption": "basins",
    "uci_table": "regression",
    "hmc_reference": "references",
    "hmc_mixing": "references",
    "hmc_mnist": "references",
    "hmc_uci": "references",
    "variational_fidelity": "references",
    "variational_uci": "regression",
    "pbp_uci": "regression",
    "evidence_agreement": "evidence",
    "evidence_occam": "evidence",
    "evidence_support": "evidence",
    "evidence_random_labels": "evidence",
    "laplace_redux": "evidence",
    "bayes_by_backprop": "variational",
    "multiplicative_flows": "variational",
    "double_descent": "basins",
    "fast_ensembling": "basins",
    "flat_regions": "basins",
    "mode_connectivity": "basins",
    "subspace_inference": "basins",
    "empcov_shift": "priors",
    "prior_functions": "priors",
    "prior_families": "priors",
    "misspecification": "priors",
    "temperature": "references",
    "continual_learning": "variational",
    "compression": "variational",
}

__all__ = [
    "NAMES",
    "Experiment",
    "Findings",
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
