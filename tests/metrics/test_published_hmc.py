"""The published predictions of full-batch HMC (Izmailov et al., 2021) have the accuracy and NLL stated for them."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from torchbayes.metrics import accuracy, agreement, ece, ece_mass, nll, total_variation

DATA = Path(os.environ.get("TORCHBAYES_DATA") or Path(__file__).parents[3] / "shared" / "data") / "hmc_reference"
pytestmark = pytest.mark.skipif(
    not DATA.is_dir(), reason="published HMC predictions not found: set TORCHBAYES_DATA to a folder with hmc_reference/"
)


def load(name: str) -> tuple[Tensor, Tensor]:
    with np.load(DATA / f"{name}_probs.npz") as arrays:
        return torch.from_numpy(arrays["probs"]), torch.from_numpy(arrays["labels"])


@pytest.mark.parametrize(
    ("name", "stated_accuracy", "stated_nll"), [("cifar10", 0.9144, 0.2773), ("imdb", 0.8756, 0.2950)]
)
def test_accuracy_and_nll_are_as_stated(name: str, stated_accuracy: float, stated_nll: float):
    probs_BK, targets_B = load(name)
    log_prob_B = probs_BK.gather(1, targets_B.long()[:, None]).squeeze(1).log()
    assert accuracy(probs_BK, targets_B).item() == pytest.approx(stated_accuracy, abs=5e-5 + 1e-12)
    assert nll(log_prob_B).item() == pytest.approx(stated_nll, abs=5e-5)


@pytest.mark.parametrize("name", ["cifar10", "imdb"])
def test_both_binnings_see_the_same_miscalibration(name: str):
    probs_BK, targets_B = load(name)
    assert ece(probs_BK, targets_B).item() == pytest.approx(ece_mass(probs_BK, targets_B).item(), abs=0.01)


def test_the_reference_agrees_with_itself():
    probs_BK, _ = load("cifar10")
    assert [agreement(probs_BK, probs_BK).item(), total_variation(probs_BK, probs_BK).item()] == [1.0, 0.0]
