"""What a page says of the settings that held-out rows chose: those of the run, in words."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import torchbayes as tb
from tests.oracles import normal
from torchbayes.driver.run import recorded
from torchbayes.report.words import chosen_by_rows, chosen_scales, settings_chosen

X = normal(60, 2)
Y = X[:, :1] + 0.5 * normal(60, 1, seed=1)


def model(scale: float | str = "learned") -> tb.Model:
    return tb.Model(nn.Linear(2, 1).double(), tb.likelihoods.Gaussian(scale), tb.priors.Normal(1.0))


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")
def test_a_page_says_what_held_out_rows_chose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchbayes.selection.length._LONGEST", 150)  # steps of the search for the epochs
    posterior = tb.fit(model(), (X, Y), tb.Laplace("diagonal"), directory=tmp_path / "a", validation=0.5, callbacks=())
    actual = recorded(tmp_path / "a")
    assert actual is not None
    chosen = actual[1]["chosen"]
    epochs, factor = chosen["mode"]["epochs"], chosen["settings"]["prior"]
    words = [f"{epochs:,} epochs", f"a factor of {factor:.3g} on the precision of the prior"]
    assert settings_chosen(tmp_path / "a") == words
    count, rows = len(chosen["held_out"]), sum(chosen["held_out"])
    assert chosen_by_rows(tmp_path / "a").startswith(
        f"{rows} training rows, held out in {count} trial runs, chose {epochs:,}"
    )
    scale = float(posterior.model.prior.stds()[0])
    assert scale == pytest.approx(factor**-0.5)
    assert chosen_scales(posterior).endswith(f"of the posterior its prior has the scale {scale:.3g}.")


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")
def test_nothing_is_said_where_nothing_was_chosen(tmp_path: Path) -> None:
    point = tb.fit(model(), (X, Y), tb.MAP(epochs=2), directory=tmp_path / "a", callbacks=())
    assert chosen_by_rows(tmp_path / "a") == chosen_by_rows(tmp_path / "b") == chosen_scales(point) == ""
    around = tb.fit(
        model(0.5), (X, Y), tb.Laplace("diagonal", prior="model", check_mode=False), start=torch.ones(3), callbacks=()
    )
    assert isinstance(around, tb.LaplacePosterior)
    assert chosen_scales(around) == ""
    assert chosen_scales(around.with_noise(2.0)).endswith("of the posterior its noise the scale 1.")
