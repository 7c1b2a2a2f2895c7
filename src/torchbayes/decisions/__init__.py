"""Decisions: costs of errors in, actions out, and rules of when to hand a row on that keep what they promise."""

from torchbayes.decisions.abstain import abstain
from torchbayes.decisions.abstention import Abstention, load
from torchbayes.decisions.costs import Costs
from torchbayes.decisions.decide import Decisions
from torchbayes.decisions.numbers import Exceeds, Linear, NumberCost, Squared, Within

__all__ = [
    "Abstention",
    "Costs",
    "Decisions",
    "Exceeds",
    "Linear",
    "NumberCost",
    "Squared",
    "Within",
    "abstain",
    "load",
]
