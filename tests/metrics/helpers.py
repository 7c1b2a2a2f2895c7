"""Small data shared by the tests of the metrics."""

import torch
from torch import Tensor


def random_probs(*shape: int, seed: int = 0, sharpness: float = 2.0) -> Tensor:
    """Softmax of Gaussian logits, float64."""
    generator = torch.Generator().manual_seed(seed)
    return (sharpness * torch.randn(*shape, generator=generator, dtype=torch.float64)).softmax(-1)


def random_normal(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers, float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_classes(num_rows: int, num_classes: int, seed: int = 1) -> Tensor:
    """Uniform classes, int64."""
    return torch.randint(num_classes, (num_rows,), generator=torch.Generator().manual_seed(seed))


def labels_drawn_from(probs_BK: Tensor, seed: int = 2) -> Tensor:
    """One class per row, drawn with the row's own probabilities: perfectly calibrated by construction."""
    return torch.multinomial(probs_BK, 1, generator=torch.Generator().manual_seed(seed)).squeeze(1)
