"""Normal weights with random multipliers, q(W | z) q(z), and the auxiliary r(z | W) (Louizos and Welling 2017).

    dense layer      W_oi ~ N(z_i M_oi, σ_oi²)           one multiplier for each input
    convolution      W_oi.. ~ N(z_o M_oi.., σ_oi..²)     one for each filter, since it has fewer inputs
    other weights    w ~ N(m, σ²)
    q(z): z = g(ζ), ζ ~ N(μ, diag τ²), log q(z) = log N(ζ; μ, τ²) − log |det ∂g/∂ζ|
    r(z | W) = N(y; a + b t, e^{2 (l + d t)}) |det ∂y/∂z|,    y = k(z),    t = mean_j tanh(Σ_i c_i W_ij)

g and k are masked RealNVPs, and the sum over i runs along the axis that z multiplies. The paper has a
= l = 0; with them r starts equal to q(z). Since q(w) = ∫ q(w | z) q(z) dz cannot be computed, the bound uses

    log p(D, w) − log q(w | z) + log r(z | w) − log q(z),

whose expectation is ELBO(q) − E KL(q(z | w) ‖ r(z | w)): never more than the bound of q(w) itself, and equal to it
where r is exact. A masked RealNVP, as used here (Dinh et al. 2017), is

    h = tanh(F (k ∘ z) + f),    μ = A h + a,    s = sigmoid(B h + b)
    z' = k ∘ z + (1 − k) ∘ (s ∘ z + (1 − s) ∘ μ),    log det = Σ (1 − k) log s

In the paper the masks k are random at each call. Here they are fixed: one step keeps every second number, the next
step the others, so that two steps move each number once. Parameters of members are stacked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchbayes.model.layout import Layout
from torchbayes.model.model import Model

GATE = 2.0  # initial b: s = 0.88
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_VECTORS = ("q.mean", "q.log_scale", "r.a", "r.b", "r.c", "r.d", "r.l")
_HALF_LOG = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True)
class Coupling:
    """Steps of a masked RealNVP over n numbers."""

    size: int  # n
    steps: int
    hidden: int  # units in h
    centre: float = 1.0  # initial a, around which z contracts

    @cached_property
    def layout(self) -> Layout:
        """F, f, A, a, B and b of each step."""
        n, h = self.size, self.hidden
        shapes = {"F": (h, n), "f": (h,), "A": (n, h), "a": (n,), "B": (n, h), "b": (n,)}
        return Layout({f"{step}.{name}": shape for step in range(self.steps) for name, shape in shapes.items()})

    @property
    def moves(self) -> Tensor:
        """How often each number is moved, (n,)."""
        return torch.stack([1 - self._kept(step, torch.zeros(())) for step in range(self.steps)]).sum(0)

    def start(self, noise_MP: Tensor) -> Tensor:
        """Return initial parameters from standard normals: z contracts around `centre`, each number on its own."""
        parts = self.layout.split(noise_MP)
        for name, value in parts.items():
            kind = name.rpartition(".")[2]
            if kind == "F":
                parts[name] = value / math.sqrt(self.size)
            else:
                parts[name] = torch.full_like(value, {"a": self.centre, "b": GATE}.get(kind, 0.0))
        return self.layout.join(parts)

    def forward(self, parts: Mapping[str, Tensor], z_MSn: Tensor, prefix: str = "") -> tuple[Tensor, Tensor]:
        """Return where points go, and the log determinant there, (M, S).

        `parts` are the parameters by name, each (M, ...); `prefix` stands before the names.
        """
        total_MS = z_MSn.new_zeros(z_MSn.shape[:-1])
        for step in range(self.steps):
            parameters = {name: parts[f"{prefix}{step}.{name}"] for name in ("F", "f", "A", "a", "B", "b")}
            keep_n = self._kept(step, z_MSn)
            h_MSh = torch.tanh((keep_n * z_MSn) @ parameters["F"].mT + parameters["f"].unsqueeze(1))
            shift_MSn = h_MSh @ parameters["A"].mT + parameters["a"].unsqueeze(1)
            gate_MSn = h_MSh @ parameters["B"].mT + parameters["b"].unsqueeze(1)
            s_MSn = torch.sigmoid(gate_MSn)
            z_MSn = keep_n * z_MSn + (1 - keep_n) * (s_MSn * z_MSn + (1 - s_MSn) * shift_MSn)
            total_MS = total_MS + ((1 - keep_n) * F.logsigmoid(gate_MSn)).sum(-1)
        return z_MSn, total_MS

    def _kept(self, step: int, like: Tensor) -> Tensor:
        """Return k of a step, (n,). If n = 1, the first step moves the number."""
        return ((torch.arange(self.size, device=like.device) + step) % 2).to(like.dtype)


class Multiplied(NamedTuple):
    """A parameter of one layer that is multiplied."""

    name: str
    where: slice  # its place in the flat vector
    shape: tuple[int, ...]
    axis: int  # of its shape: one multiplier for each index along it

    @property
    def length(self) -> int:
        """n, the number of multipliers."""
        return self.shape[self.axis]


def multiplied(model: Model) -> tuple[Multiplied, ...]:
    """Return the weights of dense and convolutional layers that are random as a whole; a ValueError without any."""
    network = model.network
    modules, weights = dict(network.module.named_modules(remove_duplicate=False)), []
    for name, shape in network.layout.shapes.items():
        owner, _, kind = name.rpartition(".")
        layer = modules.get(owner)
        if kind != "weight" or name in network.mask.indices or len(shape) < 2:
            continue
        if isinstance(layer, nn.Linear):
            weights.append(Multiplied(name, model.layout.slices[name], tuple(shape), 1))
        elif isinstance(layer, _CONVOLUTIONS):
            weights.append(Multiplied(name, model.layout.slices[name], tuple(shape), 0))
    if not weights:
        raise ValueError(
            "`MNF` multiplies the weights of dense and convolutional layers, and no `nn.Linear` or `nn.Conv` of the "
            f"model has random weights; random are {', '.join(network.layout.names[:5])}. Choose others by `random=`, "
            "or fit `VI` or `NormalizingFlow`."
        )
    return tuple(weights)


class Given(NamedTuple):
    """Weights that were drawn, and what is known of their law."""

    weights_MSD: Tensor  # w
    mean_MSD: Tensor  # E[w | z]
    free_MS: Tensor  # log r(z | w) − log q(z), float64


@dataclass(frozen=True)
class Multipliers:
    """The multipliers of all layers of a network."""

    layers: tuple[Multiplied, ...]
    size: int  # D, all weights
    steps: int  # of each coupling
    hidden: int  # units of each step

    @property
    def count(self) -> int:
        """The number of multipliers of all layers."""
        return sum(layer.length for layer in self.layers)

    @property
    def noise_size(self) -> int:
        """The number of standard normals for one draw: those of all multipliers, then those of all weights."""
        return self.count + self.size

    @cached_property
    def layout(self) -> Layout:
        """The parameters of q(z) and r of all layers, by name."""
        return reduce(add, (self._layout_of(layer) for layer in self.layers))

    def _layout_of(self, layer: Multiplied) -> Layout:
        vectors = Layout({f"{layer.name}.{name}": (layer.length,) for name in _VECTORS})
        flow = self._flow(layer).layout.shapes
        return vectors + Layout({f"{layer.name}.{side}.{name}": s for side in ("q", "r") for name, s in flow.items()})

    def _flow(self, layer: Multiplied) -> Coupling:
        return Coupling(layer.length, self.steps, self.hidden)

    def start(self, noise_MP: Tensor, scale: float) -> Tensor:
        """Return parameters, from standard normals, with multipliers around 1, τ = scale, and r(z | W) = q(z)."""
        parts = self.layout.split(noise_MP)
        for layer in self.layers:
            flow, name = self._flow(layer), layer.name
            like = parts[f"{name}.q.mean"]
            for side in ("q", "r"):
                noise = {key: parts[f"{name}.{side}.{key}"] for key in flow.layout.names}
                initial = flow.layout.split(flow.start(flow.layout.join(noise)))
                parts |= {f"{name}.{side}.{key}": value for key, value in initial.items()}
            moves_n = flow.moves.to(like)
            # The scale behind both flows.
            log_scale = math.log(scale) + 2 * math.log(1 / (1 + math.exp(-GATE))) * moves_n
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
        """Return the weights of given standard normals; `mean_MD` holds M of multiplied weights, m of others."""
        parts = self.layout.split(parameters_MP)
        z, minus_log_q = self._multipliers(parts, noise_MSE[..., : self.count])
        mean_MSD = self._factors(z) * mean_MD.unsqueeze(1)
        weights_MSD = torch.addcmul(mean_MSD, scale_MD.unsqueeze(1), noise_MSE[..., self.count :])
        log_r = [self._log_r(layer, parts, z_MSn, weights_MSD) for layer, z_MSn in zip(self.layers, z, strict=True)]
        return Given(weights_MSD, mean_MSD, torch.stack([*log_r, *minus_log_q]).sum(0))

    def _multipliers(self, parts: Mapping[str, Tensor], noise_MSZ: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return z of each layer, and −log q(z) of each, float64 (M, S)."""
        multipliers, minus_log_q = [], []
        for layer, noise_MSn in zip(
            self.layers, noise_MSZ.split([one_layer.length for one_layer in self.layers], -1), strict=True
        ):
            name, log_scale_Mn = layer.name, parts[f"{layer.name}.q.log_scale"]
            first_MSn = parts[f"{name}.q.mean"].unsqueeze(1) + log_scale_Mn.exp().unsqueeze(1) * noise_MSn
            z_MSn, log_det_MS = self._flow(layer).forward(parts, first_MSn, f"{name}.q.")
            normal_MS = 0.5 * noise_MSn.double().square().sum(-1) + layer.length * _HALF_LOG
            multipliers.append(z_MSn)
            minus_log_q.append(normal_MS + log_scale_Mn.double().sum(-1, keepdim=True) + log_det_MS.double())
        return multipliers, minus_log_q

    def _log_r(self, layer: Multiplied, parts: Mapping[str, Tensor], z_MSn: Tensor, weights_MSD: Tensor) -> Tensor:
        """Return log r(z | W) of a layer, float64 (M, S)."""
        a, b, c, d, ell = (parts[f"{layer.name}.r.{name}"].unsqueeze(1) for name in "abcdl")
        y_MSn, log_det_MS = self._flow(layer).forward(parts, z_MSn, f"{layer.name}.r.")
        layer_weights = weights_MSD[..., layer.where].unflatten(-1, layer.shape).movedim(2 + layer.axis, 2).flatten(3)
        t_MS1 = torch.tanh(c.unsqueeze(2) @ layer_weights).mean(-1)
        log_scale_MSn = (ell + d * t_MS1).double()
        square_MSn = ((y_MSn - a - b * t_MS1).double() * torch.exp(-log_scale_MSn)).square()
        return (-0.5 * square_MSn - log_scale_MSn).sum(-1) - layer.length * _HALF_LOG + log_det_MS.double()

    def _factors(self, z: Sequence[Tensor]) -> Tensor:
        """Return the factor of each weight, (M, S, D): 1 for weights that are not multiplied."""
        lead, parts, end = z[0].shape[:-1], [], 0
        for layer, z_MSn in zip(self.layers, z, strict=True):
            along = [1] * len(layer.shape)
            along[layer.axis] = layer.length
            parts.append(z_MSn.new_ones(()).expand(*lead, layer.where.start - end))
            parts.append(z_MSn.view(*lead, *along).expand(*lead, *layer.shape).flatten(2))
            end = layer.where.stop
        return torch.cat([*parts, z[0].new_ones(()).expand(*lead, self.size - end)], dim=-1)
