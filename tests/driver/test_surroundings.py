"""Fits in unusual surroundings: another working directory, inference mode, one row, a network that cannot be copied."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.oracles import normal
from torch import nn

import torchbayes as tb
from torchbayes.checks import SettingError

pytestmark = pytest.mark.usefixtures("unjudged_fits")

X = normal(24, 3).float()
Y = (X[:, 0] > 0).long()


def model(*layers: nn.Module) -> tb.Model:
    return tb.Model(nn.Sequential(nn.Linear(3, 4), *layers, nn.Linear(4, 2)), tb.likelihoods.Categorical())


def test_a_change_of_the_working_directory_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    method = tb.MAP(epochs=3, batch_size=8)
    fitted = tb.fit(model(), (X, Y), method, directory="run", callbacks=(lambda _: os.chdir(tmp_path / "elsewhere"),))
    assert sorted(os.listdir(tmp_path / "elsewhere")) == []
    actual = tb.load(tmp_path / "run" / "posterior.safetensors", model())
    assert torch.equal(actual.sample(1), fitted.sample(1))


def test_a_tilde_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    posterior = tb.fit(model(), (X, Y), tb.MAP(epochs=2), directory="~/run", callbacks=())
    assert posterior.save("~/x/p.safetensors") == tmp_path / "home" / "x" / "p.safetensors"
    module = posterior.module(draws=1).save("~/x/m.safetensors")
    assert torch.equal(tb.load("~/x/p.safetensors", posterior.model).sample(1), posterior.sample(1))
    assert module.exists()
    assert tb.load_module("~/x/m.safetensors", posterior.model)(X).keys()
    assert (tmp_path / "home" / "run" / "posterior.safetensors").exists()
    assert os.listdir(tmp_path) == ["home"]


METHODS = [tb.MAP(epochs=2, plan="loop"), tb.Laplace(prior="model"), tb.VBLL(epochs=2)]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
@pytest.mark.filterwarnings("ignore")
def test_inference_mode_changes_nothing(method: Any) -> None:
    def ask(network: nn.Module, inputs: Any, targets: Any) -> Any:
        own = tb.Model(network, tb.likelihoods.Categorical())
        start = network if isinstance(method, tb.Laplace) else None
        posterior = tb.fit(own, (inputs, targets), method, start=start, callbacks=())
        return posterior, tb.predict(posterior, inputs).probs

    net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    posterior, wanted = ask(net, X, Y)
    with torch.inference_mode():
        assert torch.equal(tb.predict(posterior, X.clone()).probs, wanted)
        posterior, actual = ask(nn.Sequential(*net), X.clone(), Y.clone())
    assert torch.equal(actual, wanted)
    assert torch.equal(tb.predict(posterior, X).probs, wanted)


@pytest.mark.parametrize(("rows", "batch"), [(8, 1), (1, 8)])
def test_batch_norm_on_one_row_is_refused_by_name(rows: int, batch: int) -> None:
    with pytest.raises(SettingError, match=r"`1` is a batch norm.*one row.*`batch_size`"):
        tb.fit(model(nn.BatchNorm1d(4)), (X[:rows], Y[:rows]), tb.MAP(epochs=1, batch_size=batch), callbacks=())


class Holding(nn.Linear):
    """A layer that holds some object."""

    def __init__(self, held: Any) -> None:
        super().__init__(4, 4)
        self.held = held


class Unwilling:
    """What cannot be copied, for a reason of its own."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise AttributeError("never")


HELD = [threading.Lock(), Unwilling(), (n for n in range(2)), nn.Linear(2, 2).weight * 2]


@pytest.mark.parametrize("held", HELD, ids=lambda held: type(held).__name__)
def test_what_cannot_be_copied_is_named(held: Any) -> None:
    with pytest.raises(TypeError, match=r"cannot be copied: .*, which is `1\.held`\. .*parametrizations.*__deepcopy__"):
        model(Holding(held))
