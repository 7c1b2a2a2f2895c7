"""Sequences of tasks: the posterior of each is the prior of the next."""

from torchbayes.sequences.learning import sequence
from torchbayes.sequences.tasks import Task
from torchbayes.sequences.transfer import Learned

__all__ = ["Learned", "Task", "sequence"]
