"""Claims from papers, put to the test: one folder per claim, a recipe at two scales, a verdict from several seeds."""

from torchbayes.experiments.experiment import Experiment, Findings
from torchbayes.experiments.registry import get, names, reproduce
from torchbayes.experiments.verdicts import Part, Verdict, below

__all__ = ["Experiment", "Findings", "Part", "Verdict", "below", "get", "names", "reproduce"]
