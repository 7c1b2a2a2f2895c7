"""Low-rank adapters whose first factor is a scale for each row: A = diag(s) V (Samplawski et al. 2025).

The r numbers s of a layer are few enough to be random by themselves: `BLoB` then puts a normal distribution on each,
which is ScalaBL, and trains V and the other factor B along with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from torchbayes.checks import check_kind

SCALES = "lora_scales"  # the name of s


class ScaledRows(nn.Module):
    """x -> (V x) ∘ s, (..., I) to (..., r), in the place of the layer x -> A x of an adapter.

    Attributes:
        lora_scales: s, (r,).
        directions: V, (r, I); its rows are of length 1 at first.
    """

    def __init__(self, scales: Tensor, directions: Tensor) -> None:
        super().__init__()
        self.lora_scales, self.directions = nn.Parameter(scales), nn.Parameter(directions)

    def reset_parameters(self) -> None:
        """Draw s and V anew, those of an A whose entries are uniform within 1/√I of 0, as for a linear layer."""
        first_RI = torch.empty_like(self.directions)
        nn.init.kaiming_uniform_(first_RI, a=math.sqrt(5))
        _, scales_R, right_RI = _parts(first_RI)
        with torch.no_grad():
            self.lora_scales.copy_(scales_R)
            self.directions.copy_(right_RI)

    @property
    def weight(self) -> Tensor:
        """A, (r, I), as the layer that this is in the place of has it."""
        return self.lora_scales.unsqueeze(1) * self.directions

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (V x) ∘ s."""
        return nn.functional.linear(inputs, self.directions) * self.lora_scales


def scale_rows(network: nn.Module) -> nn.Module:
    """Give a scale to each row of the factors A of the adapters of a network, which changes, and return it.

    With A = U diag(s) Vᵀ by singular values, s and Vᵀ take the place of A, and B U that of B: the function is the same.

    Args:
        network: with linear layers in places named `lora_A` and `lora_B`, alone or under the names of adapters, as PEFT
            makes them.

    Returns:
        The network.

    Raises:
        TypeError: if it is no module.
        ValueError: if it has no such layers, or one has a higher rank than inputs.
    """
    check_kind(nn.Module, "a module with adapters", network=network)
    pairs = [*_pairs(network)]
    if not pairs:
        raise ValueError(
            "`network` has no linear layers in places named `lora_A` and `lora_B`. Give one with adapters, such as "
            "peft.get_peft_model(network, peft.LoraConfig())."
        )
    parts = [_parts(first.weight) for _, first, _ in pairs]  # all, before anything is changed
    for (put, first, second), (left_RR, scales_R, right_RI) in zip(pairs, parts, strict=True):
        with torch.no_grad():
            second.weight.copy_(second.weight.double() @ left_RR)
        put(ScaledRows(scales_R, right_RI).requires_grad_(first.weight.requires_grad))
    return network


def _pairs(network: nn.Module) -> Iterator[tuple[Callable[[nn.Module], None], nn.Linear, nn.Linear]]:
    """Yield what puts a layer in the place of each A, the layer A, and B."""
    for module in network.modules():
        first, second = getattr(module, "lora_A", None), getattr(module, "lora_B", None)
        if isinstance(first, nn.Linear) and isinstance(second, nn.Linear):
            yield partial(setattr, module, "lora_A"), first, second
        elif isinstance(first, nn.ModuleDict) and isinstance(second, nn.ModuleDict):
            for name in [*first]:
                if isinstance(layer := first[name], nn.Linear) and isinstance(other := second[name], nn.Linear):
                    yield partial(first.__setitem__, name), layer, other


def _parts(weight_RI: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return U (r, r), s (r,) and Vᵀ (r, I) of a matrix, computed in float64.

    Raises ValueError if it has more rows than columns.
    """
    if weight_RI.shape[0] > weight_RI.shape[1]:
        raise ValueError(
            f"an adapter has rank {weight_RI.shape[0]}, more than its layer's {weight_RI.shape[1]} inputs. Lower it."
        )
    left_RR, scales_R, right_RI = torch.linalg.svd(weight_RI.detach().double(), full_matrices=False)
    return left_RR, scales_R.to(weight_RI), right_RI.to(weight_RI)
