"""Sequences of tasks: the posterior of each is the prior of the next."""

from torchbayes.continual.learning import sequence
from torchbayes.continual.tasks import Task
from torchbayes.continual.transfer import Learned

__all__ = ["Learned", "Task", "sequence"]
