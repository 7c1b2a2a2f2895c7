"""Seeds: independent streams of random numbers that depend on nothing but integers.

Every random number of a fit is a function of (seed, member, purpose, step). A run can therefore be resumed without
storing generator states, and a member draws the same numbers wherever and with whomever it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_MASK = (1 << 64) - 1


def mix(*integers: int) -> int:
    """Return a well-mixed 63-bit seed of a tuple of integers (SplitMix64 finaliser, Steele et al. 2014)."""
    value = 0
    for integer in integers:
        value = (value + (integer & _MASK) + 0x9E3779B97F4A7C15) & _MASK
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
        value ^= value >> 31
    return value >> 1


def member_seeds(seed: int, members: int) -> list[int]:
    """Return the seeds of M members; the first is `seed` itself.

    Member m of a fit with `seed` is the fit of one member with `member_seeds(seed, M)[m]`.

    Args:
        seed: seed of the whole fit.
        members: M.

    Returns:
        M integers.
    """
    return [seed, *(mix(seed, member) for member in range(1, members))]


def generator(*integers: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a new generator seeded by a tuple of integers."""
    return torch.Generator(device=device).manual_seed(mix(*integers))


@contextmanager
def seeded(seed: int, device: torch.device | str = "cpu") -> Iterator[None]:
    """Run code that draws from PyTorch's global generators under a seed, and restore the generators afterwards.

    Needed for what offers no generator argument: initialisers and dropout.
    """
    device = torch.device(device)
    before = torch.default_generator.get_state()
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        torch.default_generator.manual_seed(seed)
        if cuda is not None:
            torch.cuda.manual_seed(seed)
        yield
    finally:
        torch.default_generator.set_state(before)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda, device)
