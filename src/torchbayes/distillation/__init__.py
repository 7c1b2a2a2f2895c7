"""Distillation: S functions of a posterior into one network with the same mean and uncertainty at each input."""

from torchbayes.distillation.fidelity import Fidelity
from torchbayes.distillation.module import StudentModule
from torchbayes.distillation.student import Student, load

__all__ = ["Fidelity", "Student", "StudentModule", "load"]
