"""The pairs of factors of low-rank adapters among the random weights of a model.

An adapter (LoRA; Hu et al. 2022) adds s B A x to what a frozen layer W x returns, A (r, I) and B (O, r). The product
does not change where A becomes G A and B becomes B G⁻¹. `rotated` takes the G whose columns of B are orthogonal:

    B = U diag(d) Vᵀ,    B ← U diag(d),    A ← Vᵀ A

so that noise in row k of A moves the outputs in the direction u_k, with the factor d_k.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchbayes.checks import SettingError
from torchbayes.model.layout import Layout
from torchbayes.networks.adapters import SCALES

# parts of names by which libraries call A and B
NAMES = (("lora_A", "lora_B"), ("lora_embedding_A", "lora_embedding_B"), ("lora_down", "lora_up"))


class Factors(NamedTuple):
    """Where A and B of an adapter lie in the flat vector."""

    name: str  # that of A
    first: slice  # of A
    second: slice  # of B
    rank: int  # r

    def split(self, weights_D: Tensor) -> tuple[Tensor, Tensor]:
        """Return views of A (r, I) and B (O, r) in weights (D,)."""
        return weights_D[self.first].view(self.rank, -1), weights_D[self.second].view(-1, self.rank)


def scales_of(layout: Layout) -> list[slice]:
    """Return where the scales of rows lie, those of `networks.scale_rows`; an empty list if there are none."""
    return [layout.slices[name] for name in layout.names if name.split(".")[-1] == SCALES]


def factors_of(layout: Layout) -> list[Factors]:
    """Return the adapters among random weights, found by the names of their factors.

    Filters are factors too: A (r, C, h, w) and B (O, r, 1, 1).

    Raises SettingError if there are none, the other factor of one is not random, or rows have scales of their own.
    """
    if scales_of(layout):
        raise SettingError(
            "the rows of the adapters have scales of their own (`networks.scale_rows`), so no random weights are the "
            "factor A itself. Give the network without scales, or take BLoB()."
        )
    pairs = []
    for name, shape in layout.shapes.items():
        other = next((_renamed(name, *names) for names in NAMES if names[0] in name.split(".")), None)
        if other is None:
            continue
        if other not in layout.shapes:
            raise SettingError(f"{name!r} is a factor of an adapter, whose other factor {other!r} is not random.")
        if math.prod(layout.shapes[other][1:]) != shape[0]:
            raise SettingError(
                f"the factors {name!r} and {other!r} of an adapter must be (r, I) and (O, r); they are {shape} and "
                f"{layout.shapes[other]}."
            )
        pairs.append(Factors(name, layout.slices[name], layout.slices[other], shape[0]))
    if not pairs:
        called = ", ".join(" and ".join(map(repr, names)) for names in NAMES)
        raise SettingError(
            f"no random weights are a pair of factors of an adapter, which are called {called}. Give a network with "
            f"adapters, such as peft.get_peft_model(network, peft.LoraConfig()), and Model(…, random='*lora*')."
        )
    return pairs


def rotated(adapters: list[Factors], weights_D: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights (D,) of the same function in which the columns of each B are orthogonal, and lengths (D,).

    For a weight in row k of A the length is d_k, that of column k of B; it is 0 for all other weights. Singular values
    are taken in float64. Those below the rounding error of the largest are 0, and so are their columns.
    """
    weights_D, lengths_D = weights_D.clone(), torch.zeros_like(weights_D)
    for adapter in adapters:
        first_RI, second_OR = adapter.split(weights_D)
        left_OK, values_K, right_KR = torch.linalg.svd(second_OR.double(), full_matrices=False)
        values_K = values_K * (values_K > values_K[:1] * torch.finfo(weights_D.dtype).eps * max(second_OR.shape))
        known = len(values_K)
        turned_KI = right_KR @ first_RI.double()
        first_RI.zero_()[:known] = turned_KI.to(first_RI)
        second_OR.zero_()[:, :known] = (left_OK * values_K).to(second_OR)
        adapter.split(lengths_D)[0][:known] = values_K.unsqueeze(1).to(lengths_D)
    return weights_D, lengths_D


def _renamed(name: str, old: str, new: str) -> str:
    return ".".join(new if segment == old else segment for segment in name.split("."))
