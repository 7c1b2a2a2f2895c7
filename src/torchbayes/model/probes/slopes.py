"""Whether the gradient of a network is that of its outputs.

Of a few layers it is not. Linear layers of 8 bits (bitsandbytes) round activations to 255 numbers and differentiate as
if they did not. So do straight-through estimators, and others take a norm of their weights for a constant. A minimum
may be found with such a gradient. Dynamics that should keep an energy do not keep it, and their step sizes and error
estimates mean nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torchbayes.checks import SettingError
from torchbayes.model.network import Network, taking
from torchbayes.model.probes.gradients import changed, noise
from torchbayes.native.process import differentiable

_STEPS = (1e-3, 1e-4)  # of differences, in units of each parameter's root mean square; rounding shows in small ones
_COLUMNS = 4  # random combinations of the outputs
_TOLERANCE = 0.1  # of a slope, which kinks of rectifiers may change by a few per cent
_ROUNDING = 10.0  # units in the last place of the outputs, by which their differences are off


def refuse_other_slopes(network: Network, inputs: Any) -> None:
    """Raise SettingError if outputs change otherwise than autograd's gradient says, along a random direction.

    It compares the slopes of random combinations r of the outputs f, at weights w near the given ones and along v:

        r · J v,   and   r · (f(w + t v) − f(w − t v)) / 2 t

    for some t, the best of which decides.
    """
    centre = changed(network.initial, 0)
    along = {name: tensor - centre[name] for name, tensor in changed(centre, 1).items()}
    with differentiable(), taking(inputs):
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in centre.items()}
        outputs = network(leaves, inputs)
        if not outputs.requires_grad or not outputs.isfinite().all():
            return  # which is reported with the density
        columns = noise(_COLUMNS * outputs.numel(), outputs, 0).view(_COLUMNS, -1)
        slopes = torch.stack([_slope(column.view_as(outputs), outputs, leaves, along) for column in columns])
        differences = torch.stack([columns @ _difference(network, inputs, centre, along, step) for step in _STEPS])
    rounding = _ROUNDING * torch.finfo(network.dtype).eps * outputs.detach().norm() * columns.norm()
    errors, sizes = (differences - slopes).norm(dim=1), differences.norm(dim=1)
    bounds = _TOLERANCE * sizes + rounding / differences.new_tensor(_STEPS)
    if not sizes.isfinite().all() or bool((errors <= bounds).any()):
        return
    best = int((errors / sizes).argmin())
    raise SettingError(
        f"the gradient of the network is not that of its outputs: along a random direction they change by "
        f"{float(sizes[best]):.3g} where autograd says {float(slopes.norm()):.3g}, and differ by "
        f"{float(errors[best]):.3g}. Layers of 8 bits do this, which round activations, and layers that detach a "
        f"factor. Energies then mean nothing. Load the network without rounding, or use a method that needs no "
        f"energies, such as SGHMC, IVON or SWAG."
    )


def _slope(column: Tensor, outputs: Tensor, leaves: Mapping[str, Tensor], along: Mapping[str, Tensor]) -> Tensor:
    """Return r · J v."""
    total = (column * outputs).sum()
    gradients = torch.autograd.grad(total, [*leaves.values()], retain_graph=True, allow_unused=True)
    pairs = zip(gradients, along.values(), strict=True)
    return sum((g * v).sum() for g, v in pairs if g is not None) + torch.zeros_like(total)


def _difference(
    network: Network, inputs: Any, centre: Mapping[str, Tensor], along: Mapping[str, Tensor], step: float
) -> Tensor:
    """Return (f(w + t v) − f(w − t v)) / 2 t, flat."""
    ends = [network({n: w + side * step * along[n] for n, w in centre.items()}, inputs) for side in (1, -1)]
    return ((ends[0] - ends[1]) / (2 * step)).detach().flatten()
