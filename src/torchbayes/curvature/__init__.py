"""Curvature of log likelihoods in the weights: what a pass over the data adds up, layer by layer.

`roots` has the curvature of the likelihood in the outputs, `layers` and `discovery` what the layers of a network make
of it, `parts` the Jacobian in factors, `sums`, `kfac` and `passes` how one structure adds it up, `collect` the pass
itself; `features` and `tangent` turn covariances of weights into covariances of outputs.
"""

from torchbayes.curvature.collect import Collector, Members, units
from torchbayes.curvature.discovery import LayerSupport, NetworkLayers, layer_support, network_layers
from torchbayes.curvature.sums import Piece
from torchbayes.curvature.tangent import Tangent

__all__ = [
    "Collector",
    "LayerSupport",
    "Members",
    "NetworkLayers",
    "Piece",
    "Tangent",
    "layer_support",
    "network_layers",
    "units",
]
