r"""Normal weights with random multipliers, q(W | z) q(z), and the auxiliary r(z | W) (Louizos and Welling 2017).

    dense layer      W_oi ~ N(z_i M_oi, σ_oi²)           one multiplier for each input
    convolution      W_oi.. ~ N(z_o M_oi.., σ_oi..²)     one for each filter, as its inputs are fewer
    other weights    w ~ N(m, σ²)

    q(z): z = g(ζ), ζ ~ N(μ, diag τ²), log q(z) = log N(ζ; μ, τ²) − log |det ∂g/∂ζ|
    r(z | W) = N(y; a + b t, e^{2 (l + d t)}) |det ∂y/∂z|,    y = k(z),    t = mean_j tanh(Σ_i c_i W_ij)

with g and k masked RealNVPs (`coupling`), and the sum over i along the axis that z multiplies. The paper has a = l = 0;
with them r begins as q(z). Since q(w) = ∫ q(w | z) q(z) dz has no density that can be computed, the bound takes

    log p(D, w) − log q(w | z) + log r(z | w) − log q(z),

in expectation ELBO(q) − E KL(q(z | w) ‖ r(z | w)): never more than the bound of q(w) itself, and that where r is exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchbayes.model.layout import Layout
from torchbayes.model.model import Model
from torchbayes.posteriors.flows.coupling import GATE, Coupling

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_VECTORS = ("q.mean", "q.log_scale", "r.a", "r.b", "r.c", "r.d", "r.l")
_HALF_LOG = 0.5 * math.log(2 * math.pi)


class Multiplied(NamedTuple):
    """Weights of one layer that are multiplied.

    Attributes:
        name: of the parameter.
        where: its place in the flat vector.
        shape: of the parameter.
        axis: of its shape, along which there is one multiplier each.
    """

    name: str
    where: slice
    shape: tuple[int, ...]
    axis: int

    @property
    def length(self) -> int:
        """n, the number of its multipliers."""
        return self.shape[self.axis]


def multiplied(model: Model) -> tuple[Multiplied, ...]:
    """Return the weights of the dense and convolutional layers of a model, in order.

    Args:
        model: the model. A layer counts whose `weight` is random as a whole.

    Raises:
        ValueError: if there is none.
    """
    network = model.network
    modules, found = dict(network.module.named_modules(remove_duplicate=False)), []
    for name, shape in network.layout.shapes.items():
        owner, _, kind = name.rpartition(".")
        layer = modules.get(owner)
        if kind != "weight" or name in network.mask.indices or len(shape) < 2:
            continue
        if isinstance(layer, nn.Linear):
            found.append(Multiplied(name, model.layout.slices[name], tuple(shape), 1))
        elif isinstance(layer, _CONVOLUTIONS):
            found.append(Multiplied(name, model.layout.slices[name], tuple(shape), 0))
    if not found:
        raise ValueError(
            "`MNF` multiplies the weights of dense and convolutional layers, and no `nn.Linear` or `nn.Conv` of the "
            f"model has random weights; random are {', '.join(network.layout.names[:5])}. Choose others by `random=`, "
            "or fit `VI` or `NormalizingFlow`."
        )
    return tuple(found)


class Given(NamedTuple):
    """Weights that were drawn, and what is known of their law.

    Attributes:
        weights_MSD: w.
        mean_MSD: E[w | z].
        free_MS: log r(z | w) − log q(z), float64.
    """

    weights_MSD: Tensor
    mean_MSD: Tensor
    free_MS: Tensor


@dataclass(frozen=True)
class Multipliers:
    """The multipliers of all layers of a network.

    Attributes:
        layers: what they multiply.
        size: D, of all weights.
        steps: of each coupling.
        hidden: units of each step.
    """

    layers: tuple[Multiplied, ...]
    size: int
    steps: int
    hidden: int

    @property
    def count(self) -> int:
        """Multipliers of all layers."""
        return sum(layer.length for layer in self.layers)

    @property
    def noise_size(self) -> int:
        """Standard normals for one draw: of all multipliers, then of all weights."""
        return self.count + self.size

    @cached_property
    def layout(self) -> Layout:
        """Parameters of q(z) and r of all layers, by name."""
        return reduce(add, (self._layout_of(layer) for layer in self.layers))

    def _layout_of(self, layer: Multiplied) -> Layout:
        own = Layout({f"{layer.name}.{name}": (layer.length,) for name in _VECTORS})
        flow = self._flow(layer).layout.shapes
        return own + Layout({f"{layer.name}.{side}.{name}": s for side in ("q", "r") for name, s in flow.items()})

    def _flow(self, layer: Multiplied) -> Coupling:
        return Coupling(layer.length, self.steps, self.hidden)

    def start(self, noise_MP: Tensor, scale: float) -> Tensor:
        """Return parameters with multipliers around 1, and r(z | W) = q(z).

        Args:
            noise_MP: standard normals.
            scale: τ.
        """
        parts = self.layout.split(noise_MP)
        for layer in self.layers:
            flow, name = self._flow(layer), layer.name
            like = parts[f"{name}.q.mean"]
            for side in ("q", "r"):
                own = {key: parts[f"{name}.{side}.{key}"] for key in flow.layout.names}
                begun = flow.layout.split(flow.start(flow.layout.join(own)))
                parts |= {f"{name}.{side}.{key}": value for key, value in begun.items()}
            moves_n = flow.moves.to(like)
            log_scale = math.log(scale) + 2 * math.log(1 / (1 + math.exp(-GATE))) * moves_n  # what both flows leave
            parts |= {
                f"{name}.q.mean": torch.ones_like(like),
                f"{name}.q.log_scale": torch.full_like(like, math.log(scale)),
                f"{name}.r.a": torch.ones_like(like),
                f"{name}.r.b": torch.zeros_like(like),
                f"{name}.r.c": parts[f"{name}.r.c"] / math.sqrt(layer.length),
                f"{name}.r.d": torch.zeros_like(like),
                f"{name}.r.l": log_scale.expand_as(like),
            }
        return self.layout.join(parts)

    def draw(self, mean_MD: Tensor, scale_MD: Tensor, parameters_MP: Tensor, *, noise_MSE: Tensor) -> Given:
        """Return weights that standard normals stand for.

        Args:
            mean_MD: M of multiplied weights, m of others.
            scale_MD: σ.
            parameters_MP: of q(z) and r.
            noise_MSE: standard normals.
        """
        parts = self.layout.split(parameters_MP)
        z, minus_log_q = self._multipliers(parts, noise_MSE[..., : self.count])
        mean_MSD = self._factors(z) * mean_MD.unsqueeze(1)
        weights_MSD = torch.addcmul(mean_MSD, scale_MD.unsqueeze(1), noise_MSE[..., self.count :])
        log_r = [self._log_r(layer, parts, z_MSn, weights_MSD) for layer, z_MSn in zip(self.layers, z, strict=True)]
        return Given(weights_MSD, mean_MSD, torch.stack([*log_r, *minus_log_q]).sum(0))

    def _multipliers(self, parts: Mapping[str, Tensor], noise_MSZ: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return z of each layer, and − log q(z) of each, float64 (M, S)."""
        found, minus = [], []
        for layer, noise_MSn in zip(self.layers, noise_MSZ.split([own.length for own in self.layers], -1), strict=True):
            name, log_scale_Mn = layer.name, parts[f"{layer.name}.q.log_scale"]
            first_MSn = parts[f"{name}.q.mean"].unsqueeze(1) + log_scale_Mn.exp().unsqueeze(1) * noise_MSn
            z_MSn, log_det_MS = self._flow(layer).forward(parts, first_MSn, f"{name}.q.")
            normal_MS = 0.5 * noise_MSn.double().square().sum(-1) + layer.length * _HALF_LOG
            found.append(z_MSn)
            minus.append(normal_MS + log_scale_Mn.double().sum(-1, keepdim=True) + log_det_MS.double())
        return found, minus

    def _log_r(self, layer: Multiplied, parts: Mapping[str, Tensor], z_MSn: Tensor, weights_MSD: Tensor) -> Tensor:
        """Return log r(z | W) of a layer, float64 (M, S)."""
        a, b, c, d, ell = (parts[f"{layer.name}.r.{name}"].unsqueeze(1) for name in "abcdl")
        y_MSn, log_det_MS = self._flow(layer).forward(parts, z_MSn, f"{layer.name}.r.")
        own = weights_MSD[..., layer.where].unflatten(-1, layer.shape).movedim(2 + layer.axis, 2).flatten(3)
        told_MS1 = torch.tanh(c.unsqueeze(2) @ own).mean(-1)  # t
        log_scale_MSn = (ell + d * told_MS1).double()
        square_MSn = ((y_MSn - a - b * told_MS1).double() * torch.exp(-log_scale_MSn)).square()
        return (-0.5 * square_MSn - log_scale_MSn).sum(-1) - layer.length * _HALF_LOG + log_det_MS.double()

    def _factors(self, z: Sequence[Tensor]) -> Tensor:
        """Return what multiplies each weight, (M, S, D): 1 for those of no layer."""
        lead, parts, end = z[0].shape[:-1], [], 0
        for layer, z_MSn in zip(self.layers, z, strict=True):
            along = [1] * len(layer.shape)
            along[layer.axis] = layer.length
            parts.append(z_MSn.new_ones(()).expand(*lead, layer.where.start - end))
            parts.append(z_MSn.view(*lead, *along).expand(*lead, *layer.shape).flatten(2))
            end = layer.where.stop
        return torch.cat([*parts, z[0].new_ones(()).expand(*lead, self.size - end)], dim=-1)
