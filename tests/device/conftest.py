"""On which devices the tests of this folder run: the CPU, one that is not there, and a GPU where there is one.

The environment variable TORCHBAYES_DEVICE picks one of them: cpu, emulated or cuda. `make gpu` picks cuda.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

from tests.device.emulated import DEVICE, Emulated, emulated

PICKED = os.environ.get("TORCHBAYES_DEVICE")
PLACES = (PICKED,) if PICKED else ("cpu", "emulated", "cuda")


@dataclass(frozen=True)
class Place:
    """Where a test runs.

    Attributes:
        device: the device.
        counts: of what the program waits for, where these are counted.
    """

    device: torch.device
    counts: Emulated | None = None


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A device, in use while the test runs."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    if request.param != "emulated":
        yield Place(torch.device(request.param))
        return
    with emulated() as counts:
        yield Place(DEVICE, counts)


@pytest.fixture
def device(place: Place) -> torch.device:
    """The device."""
    return place.device


@pytest.fixture
def counts() -> Iterator[Emulated]:
    """The counts of a device that is not there."""
    with emulated() as mode:
        yield mode
