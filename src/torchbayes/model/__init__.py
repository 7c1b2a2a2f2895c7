"""The model: network, likelihood and prior, and the log joint density they define."""

from torchbayes.model import likelihoods, priors
from torchbayes.model.layout import Layout
from torchbayes.model.model import Batch, Model
from torchbayes.model.network import Network

__all__ = ["Batch", "Layout", "Model", "Network", "likelihoods", "priors"]
