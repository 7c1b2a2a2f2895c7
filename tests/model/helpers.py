"""Small networks in float64 for the tests of the model."""

from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace

import torch
from torch import Tensor, nn


def mlp(widths: Sequence[int] = (3, 5, 2)) -> nn.Sequential:
    """A tanh MLP."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.Tanh()]
    return nn.Sequential(*layers[:-1]).double()


class ConvNorm(nn.Module):
    """Convolution, batch norm, dropout of nothing, and a linear head: (B, 1, 4, 4) to (B, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2, momentum=0.3), nn.Tanh())
        self.head = nn.Linear(32, 3)
        self.double()

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images).flatten(1))


class Tied(nn.Module):
    """An autoencoder whose two layers share one square matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(3, 3)
        self.decoder = nn.Linear(3, 3)
        self.decoder.weight = self.encoder.weight
        self.double()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.decoder(self.encoder(inputs).tanh())


class Tokens(nn.Module):
    """A classifier in the Hugging Face manner: keyword arguments in, an object with logits out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 3)
        self.double()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        mask = attention_mask.unsqueeze(-1).double()
        return SimpleNamespace(logits=self.head((self.embed(input_ids) * mask).sum(1) / mask.sum(1)))


def tokens(rows: int) -> dict[str, Tensor]:
    """Inputs of `Tokens`: sentences of 5 words, padded to different lengths."""
    ids = torch.arange(rows * 5).view(rows, 5) * 3 % 7
    return {"input_ids": ids, "attention_mask": (torch.arange(5) <= torch.arange(rows).unsqueeze(1) % 5).long()}


def snapshot(module: nn.Module) -> dict[str, Tensor]:
    """Everything a module holds: state, gradients and modes."""
    held = {f"state {n}": t.clone() for n, t in module.state_dict().items()}
    held |= {f"grad {n}": p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}
    held |= {f"requires {n}": torch.tensor(p.requires_grad) for n, p in module.named_parameters()}
    return held | {f"mode {n}": torch.tensor(m.training) for n, m in module.named_modules()}
