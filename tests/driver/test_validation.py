"""How long to train, chosen by held-out rows: against a search by hand, and on data of every form."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import torchbayes as tb
from torchbayes.driver import progress
from torchbayes.methods.optimise.length import FACTOR
from torchbayes.methods.schedules import Constant
from torchbayes.native.seeds import Purpose, generator

FEATURES = 4
METHODS = [tb.MAP(members=2), tb.SWA(), tb.SWAG(rank=2)]
ignored = pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")


def net(width: int = 20, *, norm: bool = False) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [nn.Linear(FEATURES, width), *([nn.BatchNorm1d(width)] if norm else []), nn.Tanh()]
        return nn.Sequential(*layers, nn.Linear(width, 1)).double()


def model(**settings: Any) -> tb.Model:
    return tb.Model(net(**settings), tb.likelihoods.Gaussian("learned"))


def table(rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, FEATURES, generator=random).double()
    noise = torch.randn(rows, 1, generator=random).double()
    return inputs, inputs[:, :1] - inputs[:, 1:2] ** 2 / 2 + 0.5 * noise


def fit(data: Any, method: Any, **about: Any) -> Any:
    return tb.fit(about.pop("model", None) or model(), data, method, callbacks=(), **about)


def chosen(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "config.json").read_text())["chosen"]


def nll_after(epochs: int, data: Any, held_out: Any, adam: Any) -> float:
    found = fit(data, tb.MAP(epochs=epochs, schedule=Constant(), optimizer=adam), seed=3)
    return tb.evaluate(found, held_out).metrics["nll"]


@ignored
def test_the_epochs_are_those_of_a_search_by_hand(tmp_path: Path) -> None:
    data, held_out, adam = table(60), table(40, seed=1), tb.Adam(0.03)
    fit(data, tb.MAP(epochs=20, optimizer=adam), seed=3, validation=held_out, directory=tmp_path)
    seen = chosen(tmp_path)
    nlls = [nll_after(epochs, data, held_out, adam) for epochs in range(1, 21)]
    first = next(e for e, nll in enumerate(nlls, 1) if nll <= min(nlls) + 0.02)
    assert seen["best_epoch"] == first
    assert seen["nll"] == pytest.approx(nlls[first - 1], rel=1e-12)
    assert seen["held_out"] == [40]
    assert seen["settings"] == {"epochs": min(20, max(4, -int(-FACTOR * first // 1)))}
    assert 1 < first < 20  # else the search had nothing to find


@ignored
@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_the_run_has_all_rows_and_the_chosen_epochs(method: Any, tmp_path: Path) -> None:
    import dataclasses

    data = table(120)
    found = fit(data, method, directory=tmp_path)
    epochs = chosen(tmp_path)["settings"]["epochs"]
    same = fit(data, dataclasses.replace(method, epochs=epochs))
    for name, tensor in found.tensors().items():
        assert torch.equal(tensor, same.tensors()[name])
    assert json.loads((tmp_path / "config.json").read_text())["method"]["epochs"] == epochs


@ignored
def test_every_row_is_held_out_once_where_rows_are_few(tmp_path: Path) -> None:
    fit(table(100), tb.MAP(), directory=tmp_path)
    assert chosen(tmp_path)["held_out"] == [20] * 5
    order = torch.randperm(100, generator=generator(Purpose.HELD_OUT, 0))
    assert order.sort()[0].tolist() == list(range(100))


@ignored
def test_set_epochs_are_those_of_the_run(tmp_path: Path) -> None:
    data = table(100)
    fit(data, tb.MAP(epochs=5), directory=tmp_path)
    assert "chosen" not in json.loads((tmp_path / "config.json").read_text())


@ignored
def test_noise_is_that_of_new_rows() -> None:
    # 200 epochs suffice for this network to interpolate 40 rows, and the noise scale collapses
    data, new = table(40), table(2000, seed=1)
    free, long = fit(data, tb.MAP()), fit(data, tb.MAP(epochs=2000))
    nlls = [tb.evaluate(found, new).metrics["nll"] for found in (free, long)]
    assert nlls[0] < 2 < nlls[1]


@ignored
def test_a_resumed_run_keeps_its_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, method = table(60), tb.MAP()
    whole = fit(data, method, directory=tmp_path / "whole")
    tb.fit(model(), data, method, directory=tmp_path / "cut", callbacks=[lambda event: event.epoch == 2])
    monkeypatch.setattr(tb.MAP, "chosen", None)  # a second choice would raise
    again = fit(data, method, directory=tmp_path / "cut", resume=True)
    assert torch.equal(again.weights_MD, whole.weights_MD)


@ignored
@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (0.25, 0.5, "its validation is 0.25, now 0.5"),
        (0.25, None, "its validation is 0.25, now None"),
        (None, 0.25, "its validation is None, now 0.25"),
        (table(8), 0.25, r"its validation is {'rows': 8}, now 0.25"),
        (table(8), table(9), "its validation.rows is 8, now 9"),
    ],
    ids=["share", "no more", "new", "own", "others"],
)
@pytest.mark.parametrize("method", [tb.MAP(), tb.MAP(epochs=5)], ids=["chosen", "set"])
def test_a_resumed_run_is_asked_for_the_same_validation(
    before: Any, now: Any, said: str, method: tb.MAP, tmp_path: Path
) -> None:
    data = table(60)
    whole = tb.fit(model(), data, method, directory=tmp_path, validation=before, callbacks=())
    with pytest.raises(ValueError, match=said):
        tb.fit(model(), data, method, directory=tmp_path, resume=True, validation=now, callbacks=())
    again = tb.fit(model(), data, method, directory=tmp_path, resume=True, validation=before, callbacks=())
    assert torch.equal(again.tensors()["weights_MD"], whole.tensors()["weights_MD"])


@ignored
def test_the_first_run_says_what_it_is(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "FIRST", 0.0)  # seconds before the first line
    monkeypatch.setattr(progress, "LONGEST", 0.0)
    tb.fit(model(), table(60), tb.MAP())
    first, *_, last = capsys.readouterr().err.splitlines()
    assert re.fullmatch(
        r"  MAP, finding the number of epochs, 0:00:\d\d: 1 of \d+ epochs at most: NLL of held-out rows [\d.]+", first
    )
    assert last.startswith("  MAP, 0:00:")
    tb.fit(model(), table(60), tb.MAP(), callbacks=())
    assert not capsys.readouterr().err


@ignored
@pytest.mark.parametrize("workers", [0, 1])
def test_loaders_hold_rows_out(workers: int, tmp_path: Path) -> None:
    loader = DataLoader(TensorDataset(*table(80)), batch_size=16, shuffle=True, num_workers=workers)
    fit(loader, tb.MAP(epochs=6), validation=0.25, directory=tmp_path)
    assert chosen(tmp_path)["held_out"] == [20] * 4


@ignored
def test_batch_norm_weighted_rows_and_starts(tmp_path: Path) -> None:
    data = table(80)
    fit(data, tb.MAP(epochs=6), model=model(norm=True), validation=0.2)
    weighted = tb.Model(net(), tb.likelihoods.Weighted(tb.likelihoods.Gaussian("learned")))
    fit((data[0], (data[1], torch.ones(80).double())), tb.MAP(epochs=6), model=weighted, validation=0.2)
    fit(data, tb.MAP(epochs=6), start=fit(data, tb.MAP(epochs=2)), validation=0.2)


@ignored
@pytest.mark.parametrize("rows", [1, 2, 19, 20, 21])
def test_few_rows(rows: int, tmp_path: Path) -> None:
    fit(table(rows), tb.MAP(optimizer=tb.SGD(0.01)), directory=tmp_path)
    assert ("chosen" in json.loads((tmp_path / "config.json").read_text())) == (rows >= 20)


@ignored
def test_a_list_of_batches_is_trained_for_the_usual_epochs(tmp_path: Path) -> None:
    batches = [tuple(part[at : at + 20] for part in table(60)) for at in (0, 20, 40)]
    fit(batches, tb.MAP(optimizer=tb.SGD(0.01)), directory=tmp_path)
    assert "chosen" not in json.loads((tmp_path / "config.json").read_text())
    with pytest.raises(ValueError, match="cannot be held out"):
        fit(batches, tb.MAP(), validation=0.1)
    fit(batches, tb.MAP(epochs=4), validation=table(20, seed=1))


@ignored
def test_a_run_that_diverges_at_once_says_so_itself() -> None:
    inputs, targets = table(60)
    with pytest.raises(tb.DivergedError, match="learning rate"):
        fit((inputs, targets * 1e200), tb.MAP(optimizer=tb.SGD(1e6)))


@pytest.mark.parametrize(
    ("validation", "method", "error", "match"),
    [
        (0.0, tb.MAP(), ValueError, "validation"),
        (1.0, tb.MAP(), ValueError, "below 1"),
        (float("nan"), tb.MAP(), ValueError, "validation"),
        (1, tb.MAP(), TypeError, "share"),
        (True, tb.MAP(), TypeError, "share"),
        (0.001, tb.MAP(), ValueError, "holds out 0"),
        (0.1, tb.SGLD(), ValueError, "does not train"),
        (0.1, tb.HMC(), ValueError, "does not train"),
        ("rows", tb.MAP(), TypeError, "share"),
    ],
)
def test_what_is_no_validation_is_refused(validation: Any, method: Any, error: Any, match: str) -> None:
    with pytest.raises(error, match=match):
        fit(table(60), method, validation=validation)
