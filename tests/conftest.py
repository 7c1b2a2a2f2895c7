"""What all tests share: reproducible modules, and a guard of PyTorch's global random numbers."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _reproducible_modules():
    """Seed the global generator that PyTorch's own initialisers draw from."""
    torch.manual_seed(0)


@pytest.fixture
def untouched_rng():
    """Fail the test when it moves the global generator."""
    before = torch.default_generator.get_state()
    yield
    assert torch.equal(torch.default_generator.get_state(), before), "the global random number generator was moved"
