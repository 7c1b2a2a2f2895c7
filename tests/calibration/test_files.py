"""Files of calibrators: what is damaged, or something else, is refused."""

from __future__ import annotations

import random

import pytest
import torch

import torchbayes as tb
from tests.damage import DAMAGES

CALIBRATOR = tb.calibration.LogLinear(torch.eye(3), torch.zeros(3), 1.5, 0.01)


@pytest.mark.parametrize("seed", range(8))
def test_damage_is_said(tmp_path, seed):
    path = CALIBRATOR.save(tmp_path / "calibrator.safetensors")
    whole, chance = path.read_bytes(), random.Random(seed)
    damaged = chance.choice([*DAMAGES.values()])(whole, chance, whole)
    if damaged == whole:
        return
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"calibrator\.safetensors"):
        tb.calibration.load(path)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError):
        tb.calibration.load(tmp_path / "none.safetensors")
    model = tb.Model(torch.nn.Linear(2, 1), tb.likelihoods.Gaussian())
    path = tb.Point(model, torch.zeros(1, 3)).save(tmp_path / "point.safetensors")
    with pytest.raises(ValueError, match="not a calibrator"):
        tb.calibration.load(path)
    with pytest.raises(ValueError, match="calibrator"):
        tb.load(CALIBRATOR.save(tmp_path / "calibrator.safetensors"), model)


def test_a_file_replaces_the_calibrator(tmp_path):
    read = tb.calibration.load(CALIBRATOR.save(tmp_path / "calibrator.safetensors"))
    assert isinstance(read, tb.calibration.LogLinear)
    assert (read.temperature, read.uniform) == (1.5, 0.01)
    assert torch.equal(read.weight, CALIBRATOR.weight)
