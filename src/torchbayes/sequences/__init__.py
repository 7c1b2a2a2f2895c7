"""Sequences of tasks: the posterior of each is the prior of the next."""

from torchbayes.sequences.coresets import KCentre, Random
from torchbayes.sequences.sequence import sequence
from torchbayes.sequences.tasks import Task
from torchbayes.sequences.transfer import Learned

__all__ = ["KCentre", "Learned", "Random", "Task", "sequence"]
