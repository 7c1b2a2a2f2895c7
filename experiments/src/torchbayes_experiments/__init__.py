"""Claims from papers, put to the test: one module per claim, a recipe at two scales, a verdict from several seeds."""

from torchbayes_experiments.experiment import Experiment, Findings
from torchbayes_experiments.registry import get, names, reproduce
from torchbayes_experiments.rows import Rows, tidy
from torchbayes_experiments.verdicts import Part, Verdict, below

NAMES = (  # an experiment is the `EXPERIMENT` of the module of its name, imported when it is asked for
    "multiswag_corruption",
    "uci_table",
    "hmc_reference",
    "hmc_mixing",
    "hmc_mnist",
    "hmc_uci",
    "variational_fidelity",
    "variational_uci",
    "pbp_uci",
    "evidence_agreement",
    "evidence_occam",
    "evidence_support",
    "evidence_random_labels",
    "laplace_redux",
    "bayes_by_backprop",
    "multiplicative_flows",
    "double_descent",
    "fast_ensembling",
    "flat_regions",
    "mode_connectivity",
    "subspace_inference",
    "empcov_shift",
    "prior_functions",
    "prior_families",
    "misspecification",
    "temperature",
    "continual_learning",
    "compression",
)

__all__ = ["NAMES", "Experiment", "Findings", "Part", "Rows", "Verdict", "below", "get", "names", "reproduce", "tidy"]
