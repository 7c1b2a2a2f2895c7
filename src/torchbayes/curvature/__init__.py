"""Curvature of log likelihoods in the weights, added up layer by layer in passes over the data.

`roots` has the curvature of the likelihood in the outputs, `layers` and `discovery` the layers of a network, `parts`
the Jacobian in factors, `sums`, `kfac` and `passes` the sums of each structure, `collect` the pass itself; `features`
and `tangent` turn covariances of weights into covariances of outputs.
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
