"""How much memory a run takes, roughly and before it begins, and what to do where there is not enough."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from torchbayes.checks import free_memory, size_of
from torchbayes.lora.settings import Settings

_COPIES = 4  # of an adapter: weights, gradient, and two moments of Adam
_KEPT = 17  # numbers that a layer keeps of a token for the way back, per hidden unit; a Llama keeps 16
_BITS = 0.55  # bytes of a weight in 4 bits, with the scales of its block


class Needed(NamedTuple):
    """Bytes that a run takes."""

    base: float
    adapters: float
    activations: float  # of one batch

    @property
    def total(self) -> float:
        """All of them."""
        return sum(self)


def needed(empty: nn.Module, settings: Settings, *, length: int, members: int = 1) -> Needed:
    """Return what a run takes, from a base without values: weights, adapters, and one batch of that many tokens."""
    linear = [layer for layer in empty.modules() if getattr(layer, "weight", None) is not None]
    counted = {id(each): each for each in empty.parameters()}
    width = _bytes(settings, next(iter(counted.values())).dtype)
    matrices = {id(layer.weight) for layer in linear if isinstance(layer, nn.Linear)}
    pretrained: Any = empty  # of Hugging Face
    output = getattr(pretrained.get_output_embeddings(), "weight", None)
    small = matrices - {id(output)} if settings.load_in_4bit else set()
    base = sum(each.numel() * (_BITS if key in small else width) for key, each in counted.items())
    config = pretrained.config.get_text_config()
    hidden, layers = int(config.hidden_size), int(config.num_hidden_layers)
    pairs = 3 * settings.rank * hidden * layers * 2  # queries and values, on narrower sides too
    activations = _KEPT * width * settings.batch_size * length * hidden * layers
    return Needed(base, 4.0 * _COPIES * members * pairs, activations)


def check_fits(empty: nn.Module, settings: Settings, device: str, *, length: int, members: int = 1) -> None:
    """Raise ValueError, before weights are read, if a run does not fit in the free memory of a device."""
    takes, free = needed(empty, settings, length=length, members=members), free_memory(device)
    if takes.total > free:
        raise ValueError(
            f"{settings.base} would take about {size_of(takes.total)} on {device}: {size_of(takes.base)} for its "
            f"weights, {size_of(takes.adapters)} for adapters and {size_of(takes.activations)} for a batch of "
            f"{settings.batch_size} questions of {length:,} tokens; {size_of(free)} are free. "
            f"{advice(settings)}"
        )


def advice(settings: Settings) -> str:
    """Return what takes less memory than these settings, in one sentence."""
    ways = [f"batch_size={settings.batch_size // 2}"] if settings.batch_size > 1 else []
    if settings.dtype in {"auto", "float32"} and not settings.load_in_4bit:
        ways.append("dtype=bfloat16, which halves weights saved in float32")
    if not settings.load_in_4bit:
        ways.append("load_in_4bit=true, for a quarter of those in bfloat16")
    ways += [] if settings.max_length is None else ["shorter prompts"]
    return f"Try {'; '.join([*ways, 'or a smaller base'])}."


@contextmanager
def explained(settings: Settings, device: str) -> Iterator[None]:
    """Say what would fit where a GPU runs out of memory: a RuntimeError."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        if device != "cpu":
            torch.cuda.empty_cache()
        raise RuntimeError(
            f"there is not enough memory on {device} for {settings.base} and a batch of {settings.batch_size} "
            f"questions. {advice(settings)} What was done is kept: go on with `resume`."
        ) from error


def _bytes(settings: Settings, saved: torch.dtype) -> int:
    return (saved if settings.dtype == "auto" else getattr(torch, settings.dtype)).itemsize
