"""Inference while another library trains: the Trainer of Hugging Face, Lightning, Accelerate, a loop of your own.

`Collecting` takes points of a training run for SWA and SWAG. `Optimizer` lets the loop take the steps of a method:
SGLD, SGHMC, SGNHT or IVON.
"""

from torchbayes.trainers.collecting import Collecting
from torchbayes.trainers.optimizer import Optimizer

__all__ = ["Collecting", "Optimizer"]
