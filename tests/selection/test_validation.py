"""How long to train, chosen by held-out rows: against a search by hand, and on data of every form."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import torchbayes as tb
from torchbayes.driver import progress
from torchbayes.driver.loop import Begin
from torchbayes.methods.choices import Epochs
from torchbayes.methods.optimise import descent as descents
from torchbayes.methods.optimise.learned import most_probable
from torchbayes.methods.schedules import Constant
from torchbayes.model.sources.sources import as_source
from torchbayes.posteriors.point import Point
from torchbayes.randomness.seeds import Purpose, generator, member_seeds
from torchbayes.selection import choose
from torchbayes.selection.length import FACTOR, choose_epochs
from torchbayes.selection.trials import Chosen, Fold, Search, folds_of, mean_nll

FEATURES = 4
SHORT: dict[str, Any] = {"epochs": 40, "optimizer": tb.Adam(0.03)}  # at a rate that is good after a few epochs
METHODS = [tb.MAP(members=2, **SHORT), tb.SWA(**SHORT), tb.SWAG(rank=2, **SHORT)]
untold = pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")


def ignored(test: Any) -> Any:
    """Let problems of short runs be neither looked for nor told."""
    return pytest.mark.usefixtures("unjudged_fits")(untold(test))


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


def normal_of(outputs: Tensor) -> torch.distributions.Normal:
    return torch.distributions.Normal(outputs[..., 0], outputs[..., 1].exp())


UNLIKE = (table(20, seed=1)[0], -table(20, seed=1)[1])  # rows of another law, by which few epochs are best


@pytest.fixture
def _searched_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the search for the epochs end after a hundred steps."""
    monkeypatch.setattr("torchbayes.selection.length._LONGEST", 100)


def fit(data: Any, method: Any, **about: Any) -> Any:
    return tb.fit(about.pop("model", None) or model(), data, method, callbacks=(), **about)


def soon(event: tb.Event) -> bool:
    """Stop a run whose length and settings are all that is asked for."""
    return event.epoch == 2


def chosen(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "config.json").read_text())["chosen"]


def begin(posterior: Any, directory: Path, *, seed: int = 0) -> Tensor:
    """Return where members begin: fresh, but for the noise, which is at least what held-out rows ask for."""
    weights_MD, _ = posterior.model.starting_weights(member_seeds(seed, posterior.members))
    weights_MD[:, -1] = weights_MD[:, -1].clamp_min(chosen(directory)["learned"][0])
    return weights_MD


def nll_after(epochs: int, data: Any, held_out: Any, adam: Any) -> float:
    actual = fit(data, tb.MAP(epochs=epochs, schedule=Constant(), optimizer=adam), seed=3)
    residuals = held_out[1] - tb.predict(actual, held_out[0]).mean
    return 0.5 * math.log(2 * math.pi * math.e * float(residuals.square().mean()))  # under the best noise


@ignored
def test_the_epochs_are_those_of_a_search_by_hand(tmp_path: Path) -> None:
    data, held_out, adam = table(60), table(40, seed=1), tb.Adam(0.03)
    fit(data, tb.MAP(epochs=20, optimizer=adam), seed=3, validation=held_out, directory=tmp_path)
    seen = chosen(tmp_path)
    nlls = [nll_after(epochs, data, held_out, adam) for epochs in range(1, 21)]
    first = next(e for e, nll in enumerate(nlls, 1) if nll <= min(nlls) + 0.005)
    assert seen["best_epoch"] == first
    assert seen["nll"] == pytest.approx(nlls[first - 1], abs=1e-5)
    assert seen["held_out"] == [40]
    assert seen["settings"] == {"epochs": min(20, max(4, FACTOR * first))}
    assert 1 < first < 20  # else the search had nothing to find


def nll_of_draws(posterior: Any, rows: Any, draws: int) -> float:
    each = [posterior.functions(1, seed=seed) for seed in range(draws)]
    seen = torch.stack([tb.predict(one, rows[0]).log_prob(rows[1]) for one in each])
    return -float((seen.logsumexp(0) - math.log(draws)).mean())


@ignored
@pytest.mark.parametrize(
    ("method", "draws", "lr"),
    [
        (tb.SWA, 1, 0.003),
        (tb.SWAG, 16, 0.3),
        *(pytest.param(*case, marks=pytest.mark.study) for case in ((tb.SWA, 1, 0.3), (tb.SWAG, 16, 0.003))),
    ],
)
def test_the_averaging_rate_is_that_of_a_search_by_hand(method: Any, draws: int, lr: float, tmp_path: Path) -> None:
    """At a rate so large that weights are thrown about the narrow average is the better one."""
    data, held_out, adam = table(60), table(40, seed=1), tb.Adam(lr)
    actual = fit(data, method(epochs=20, optimizer=adam), seed=3, validation=held_out, directory=tmp_path)
    seen, epochs = chosen(tmp_path), chosen(tmp_path)["settings"]["epochs"]
    tried = [dict(averaging_lr=share * lr, burn_in=begin) for share, begin in ((0.5, 0.5), (0.1, 0.75))]
    start = begin(actual, tmp_path, seed=3)
    by_hand = [fit(data, method(epochs=epochs, optimizer=adam, **each), seed=3, start=start) for each in tried]
    rows = as_source(model(), held_out, 40).some(40)
    noises = [most_probable(posterior.centre, rows, 40) for posterior in by_hand]
    by_hand = [posterior.with_learned(noise) for posterior, noise in zip(by_hand, noises, strict=True)]
    nlls = [nll_of_draws(posterior, held_out, draws) for posterior in by_hand]
    torch.testing.assert_close(torch.tensor([one["nll"] for one in seen["tried"]]), torch.tensor(nlls))
    best = nlls.index(min(nlls))
    assert seen["settings"] == {"epochs": epochs, **tried[best]}
    torch.testing.assert_close(actual.functions(1).weights_SD, by_hand[best].functions(1).weights_SD)


@ignored
def test_only_open_settings_of_averaging_are_chosen(tmp_path: Path) -> None:
    fit(table(60), tb.SWA(averaging_lr=0.01, **SHORT), validation=0.5, directory=tmp_path / "rate")
    assert set(chosen(tmp_path / "rate")["settings"]) == {"epochs"}
    fit(table(60), tb.SWA(burn_in=0.3, **SHORT), validation=0.5, directory=tmp_path / "start")
    assert set(chosen(tmp_path / "start")["settings"]) == {"epochs", "averaging_lr"}


@ignored
@pytest.mark.parametrize(
    "method",
    [METHODS[0], pytest.param(METHODS[1], marks=pytest.mark.study), METHODS[2]],
    ids=lambda method: type(method).__name__,
)
def test_the_run_has_all_rows_and_the_chosen_epochs(method: Any, tmp_path: Path) -> None:
    import dataclasses

    data = table(60)
    actual = fit(data, method, validation=0.5, directory=tmp_path)
    settings = chosen(tmp_path)["settings"]
    assert settings["epochs"] < SHORT["epochs"]
    same = fit(data, dataclasses.replace(method, **settings), start=begin(actual, tmp_path))
    same = same.with_learned(chosen(tmp_path)["noise"])
    for name, tensor in actual.tensors().items():
        assert torch.equal(tensor, same.tensors()[name])
    assert json.loads((tmp_path / "config.json").read_text())["method"]["epochs"] == settings["epochs"]


@ignored
@pytest.mark.usefixtures("_searched_soon")
# epochs of one step each, the fewest that leave two snapshots: 6 - round(4.5), 4 - round(2.0), 16 - round(14.4)
@pytest.mark.parametrize(("settings", "epochs"), [({}, 6), ({"averaging_lr": 0.01}, 4), ({"burn_in": 0.9}, 16)])
def test_a_run_of_few_rows_is_long_enough_for_its_snapshots(settings: Any, epochs: int, tmp_path: Path) -> None:
    fit(table(60), tb.SWAG(**settings), validation=UNLIKE, directory=tmp_path)
    assert chosen(tmp_path)["settings"]["epochs"] == epochs


@ignored
def test_every_row_is_held_out_once_where_rows_are_few(tmp_path: Path) -> None:
    fit(table(100), tb.MAP(epochs=2), validation=0.2, directory=tmp_path)
    assert chosen(tmp_path)["held_out"] == [20] * 5
    order = torch.randperm(100, generator=generator(Purpose.HELD_OUT, 0))
    assert order.sort()[0].tolist() == list(range(100))


def folds_and_begin() -> tuple[Any, Begin]:
    folds = folds_of(model(), as_source(model(), table(60), 128), 0.2, seed=0)
    return folds, Begin(model().given_weights()[None], {}, [0])


@ignored
def test_first_runs_take_turns_at_one_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights and slots are each run's own."""
    seen: dict[str, set[int]] = {"gradient_MD": set(), "weights_MD": set()}
    step = descents.descend

    def noted(density: Any, run: Any, batch: Any, **settings: Any) -> Any:
        for name, places in seen.items():
            places.add(getattr(run, name).data_ptr())
        return step(density, run, batch, **settings)

    monkeypatch.setattr(descents, "descend", noted)
    search = Search(model(), tb.MAP(epochs=2), *folds_and_begin())
    choose_epochs(Epochs(search.method), search)
    assert [len(places) for places in seen.values()] == [1, 5]


@ignored
def test_set_epochs_are_those_of_the_run(tmp_path: Path) -> None:
    data = table(100)
    fit(data, tb.MAP(epochs=5), directory=tmp_path)
    assert "chosen" not in json.loads((tmp_path / "config.json").read_text())


# `test_the_epochs_are_those_of_a_search_by_hand` pins the epochs, by which noise does not collapse
@pytest.mark.study
@ignored
@pytest.mark.usefixtures("_searched_soon")
def test_noise_is_that_of_new_rows() -> None:
    # 200 epochs suffice for this network to interpolate 40 rows, and the noise scale collapses
    data, new = table(40), table(2000, seed=1)
    free, long = (fit(data, tb.MAP(epochs=epochs, optimizer=tb.Adam(0.02))) for epochs in (None, 500))
    nlls = [tb.evaluate(actual, new).metrics["nll"] for actual in (free, long)]
    assert nlls[0] < 2 < nlls[1]


@ignored
@pytest.mark.usefixtures("_searched_soon")
def test_a_resumed_run_keeps_its_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, method = table(60), tb.MAP()
    half: dict[str, Any] = {"validation": UNLIKE}
    whole = fit(data, method, directory=tmp_path / "whole", **half)
    tb.fit(model(), data, method, directory=tmp_path / "cut", callbacks=[lambda event: event.epoch == 2], **half)
    monkeypatch.setattr(choose, "choose_epochs", None)  # a second choice would raise
    again = fit(data, method, directory=tmp_path / "cut", resume=True, **half)
    assert torch.equal(again.weights_MD, whole.weights_MD)


OTHERWISE: dict[str, tuple[Any, Any, str]] = {
    "share": (0.25, 0.5, "its validation is 0.25, now 0.5"),
    "no more": (0.25, None, "its validation is 0.25, now None"),
    "new": (None, 0.25, "its validation is None, now 0.25"),
    "own": (table(8), 0.25, r"its validation is {'rows': 8}, now 0.25"),
    "others": (table(8), table(9), "its validation.rows is 8, now 9"),
}


@ignored
@pytest.mark.parametrize(
    ("before", "now", "said", "method"),
    [
        *((*OTHERWISE[name], tb.MAP(epochs=5)) for name in OTHERWISE),
        # their length is chosen, as that of `test_a_resumed_run_keeps_its_choice` is
        *(
            pytest.param(*OTHERWISE[n], tb.MAP(optimizer=tb.Adam(0.03)), marks=pytest.mark.study)
            for n in ("new", "own")
        ),
    ],
    ids=[*OTHERWISE, "new, chosen", "own, chosen"],
)
@pytest.mark.usefixtures("_searched_soon")
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
    tb.fit(model(), table(60), tb.MAP(**SHORT), validation=0.5)
    first, *_, last = capsys.readouterr().err.splitlines()
    assert re.fullmatch(
        r"  MAP, choosing settings by held-out rows, 0:00:\d\d: 1 of \d+ at most: NLL of held-out rows [\d.]+", first
    )
    assert last.startswith("  MAP, 0:00:")
    tb.fit(model(), table(60), tb.MAP(**SHORT), validation=0.5, callbacks=())
    assert not capsys.readouterr().err


@ignored
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.study)])  # rows are read alike
def test_loaders_hold_rows_out(workers: int, tmp_path: Path) -> None:
    loader = DataLoader(TensorDataset(*table(80)), batch_size=16, shuffle=True, num_workers=workers)
    fit(loader, tb.MAP(epochs=1), validation=0.5, directory=tmp_path)
    assert chosen(tmp_path)["held_out"] == [40] * 2


@ignored
def test_batch_norm_weighted_rows_and_starts(tmp_path: Path) -> None:
    data = table(80)
    fit(data, tb.MAP(epochs=6), model=model(norm=True), validation=0.5)
    weighted = tb.Model(net(), tb.likelihoods.Weighted(tb.likelihoods.Gaussian("learned")))
    fit((data[0], (data[1], torch.ones(80).double())), tb.MAP(epochs=6), model=weighted, validation=0.5)
    fit(data, tb.MAP(epochs=6), start=fit(data, tb.MAP(epochs=2)), validation=0.5)


@ignored
# one row is that of `test_laplace_of_few_rows_without_a_start`, whose mode is sought so too
@pytest.mark.parametrize("rows", [pytest.param(1, marks=pytest.mark.study), 19, 20])
def test_few_rows(rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchbayes.selection.length._LONGEST", 100)
    tb.fit(model(), table(rows), tb.MAP(optimizer=tb.SGD(0.01)), directory=tmp_path, callbacks=[soon])
    config = json.loads((tmp_path / "config.json").read_text())
    assert ("chosen" in config) == (rows >= 20)
    assert rows < 20 or config["chosen"]["held_out"] == [4] * 5


@ignored
@pytest.mark.parametrize(
    ("rows", "method", "likelihood"),
    [
        (3, tb.MAP(), tb.likelihoods.HeteroscedasticGaussian()),
        (12, tb.MAP(), tb.likelihoods.Custom(normal_of)),
        pytest.param(12, tb.SWAG(), tb.likelihoods.HeteroscedasticGaussian(), marks=pytest.mark.study),
    ],
)
def test_few_rows_with_noise_of_their_own_are_not_fitted_without_noise(rows: int, method: Any, likelihood: Any) -> None:
    """Without held-out rows the NLL is in the ten thousands; that of the table's moments is 1.7."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(FEATURES, 50), nn.ReLU(), nn.Linear(50, 2)).double()
    (inputs, targets), (new, scored) = table(rows), table(1000, seed=1)
    posterior = fit((inputs, targets[:, 0]), method, model=tb.Model(network, likelihood))
    assert tb.evaluate(posterior, (new, scored[:, 0])).metrics["nll"] < 5


@ignored
def test_a_list_of_batches_is_trained_for_the_usual_epochs(tmp_path: Path) -> None:
    batches = [tuple(part[at : at + 20] for part in table(60)) for at in (0, 20, 40)]
    tb.fit(model(), batches, tb.MAP(optimizer=tb.SGD(0.01)), directory=tmp_path, callbacks=[soon])
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
        (0.1, tb.SGLD(step_size=1e-4), ValueError, "nothing for held-out rows to choose"),
        (0.1, tb.HMC(), ValueError, "nothing for held-out rows to choose"),
        (2, tb.Laplace(), TypeError, "must be a share"),
        ("rows", tb.MAP(), TypeError, "share"),
    ],
)
def test_what_is_no_validation_is_refused(validation: Any, method: Any, error: Any, match: str) -> None:
    with pytest.raises(error, match=match):
        fit(table(60), method, validation=validation)


@untold
@pytest.mark.usefixtures("_searched_soon")
def test_laplace_without_a_start_is_that_around_map_under_the_chosen_prior(tmp_path: Path) -> None:
    data, held_out = table(60), table(40, seed=1)
    actual = fit(data, tb.Laplace(), seed=3, validation=held_out, directory=tmp_path)
    seen = chosen(tmp_path)
    mode = fit(data, tb.MAP(**seen["mode"]), seed=3, start=begin(actual, tmp_path, seed=3))
    assert torch.equal(actual.mean_MD, mode.weights_MD)
    around = fit(data, tb.Laplace(prior="model", check_mode=False), start=mode)
    nlls = []
    for one in seen["tried"]:
        wide = around.with_strength(around.strength_D * one["prior"])
        nlls.append(tb.evaluate(tb.predict(tb.Linearised(wide), held_out[0]), held_out[1]).metrics["nll"])
    torch.testing.assert_close(torch.tensor([one["nll"] for one in seen["tried"]]), torch.tensor(nlls))
    good = [one["prior"] for one, nll in zip(seen["tried"], nlls, strict=True) if nll <= min(nlls) + 0.005]
    assert seen["settings"] == {"prior": good[0], "check_mode": False}
    torch.testing.assert_close(actual.strength_D[:-1], around.strength_D[:-1] * good[0])
    assert actual.strength_D[-1] == 1  # the noise keeps its prior
    assert not actual.problems


@ignored
@pytest.mark.usefixtures("_searched_soon")
def test_several_members_of_laplace_without_a_start_are_those_of_an_ensemble(tmp_path: Path) -> None:
    actual = fit(table(60), tb.Laplace(members=2), validation=UNLIKE, directory=tmp_path)
    start = begin(actual, tmp_path)
    modes = fit(table(60), tb.MAP(members=2, **chosen(tmp_path)["mode"]), start=start)
    assert torch.equal(actual.mean_MD, modes.weights_MD)
    assert not torch.equal(*actual.mean_MD)


@ignored
@pytest.mark.usefixtures("_searched_soon")
def test_laplace_without_a_start_keeps_its_choice_when_resumed(tmp_path: Path) -> None:
    data, held_out = table(60), UNLIKE
    actual = fit(data, tb.Laplace(), directory=tmp_path, validation=held_out)
    before = (tmp_path / "config.json").read_bytes()
    again = fit(data, tb.Laplace(), directory=tmp_path, resume=True, validation=held_out)
    assert torch.equal(actual.mean_MD, again.mean_MD)
    assert torch.equal(actual.strength_D, again.strength_D)
    assert (tmp_path / "config.json").read_bytes() == before
    with pytest.raises(ValueError, match=f"^{tmp_path} already holds a run"):
        fit(data, tb.Laplace(), directory=tmp_path)


def test_later_choices_begin_with_the_noise_that_was_chosen() -> None:
    search = Search(model(), tb.MAP(), *folds_and_begin()).having(Chosen({}, {}, learned=[5.0]))
    assert search.begin.weights_MD[:, -1].tolist() == [5.0] * len(search.begin.seeds)


def test_held_out_rows_count_as_often_as_their_weights_say() -> None:
    (inputs, targets), counts, gaussian = table(60), torch.arange(60) % 4, tb.likelihoods.Gaussian(0.5)
    repeated = inputs.repeat_interleave(counts, 0), targets.repeat_interleave(counts, 0)
    weighted = tb.likelihoods.Weighted(gaussian), (inputs, (targets, counts.double()))
    nlls = []
    for likelihood, rows in (weighted, (gaussian, repeated)):
        own = tb.Model(net(), likelihood)
        source = as_source(own, rows, 20)
        point = Point(own, own.given_weights().unsqueeze(0))
        nlls.append(mean_nll([point], [Fold(source, source.some(source.num_data))]))
    assert nlls[0] == pytest.approx(nlls[1])


class Stop(Exception):
    """Raised by a callback, as Ctrl-C would be."""


@ignored
@pytest.mark.usefixtures("_searched_soon")
def test_laplace_without_a_start_goes_on_with_the_training_that_was_interrupted(tmp_path: Path) -> None:
    data, method, held_out, at = table(60), tb.Laplace(members=2, prior="model"), UNLIKE, 3
    whole = fit(data, method, directory=tmp_path / "whole", validation=held_out)
    folder, epochs = tmp_path / "run", list[int]()
    about: dict[str, Any] = {"directory": folder, "validation": held_out}

    def stop(event: tb.Event) -> None:
        epochs.append(event.epoch)
        if len(epochs) == at:
            raise Stop

    with pytest.raises(Stop):
        tb.fit(model(), data, method, callbacks=[stop], **about)
    assert not (folder / "config.json").exists()
    actual = tb.fit(model(), data, method, resume=True, callbacks=[lambda e: epochs.append(e.epoch)], **about)
    assert epochs[at] == 2  # from the checkpoint after the first step
    torch.testing.assert_close(actual.sample(4), whole.sample(4), rtol=0, atol=0)
    trained = len((folder / "start" / "log.jsonl").read_text().splitlines())
    seen = list[int]()
    tb.fit(model(), data, method, resume=True, callbacks=[lambda e: seen.append(e.epoch)], **about)
    assert seen == []  # neither training nor a pass
    assert len((folder / "start" / "log.jsonl").read_text().splitlines()) == trained


@ignored
@pytest.mark.usefixtures("_searched_soon")
def test_an_older_run_without_its_training_trains_again(tmp_path: Path) -> None:
    data, method, held_out = table(60), tb.Laplace(prior="model"), UNLIKE
    actual = fit(data, method, directory=tmp_path, validation=held_out)
    shutil.rmtree(tmp_path / "start")
    again = fit(data, method, directory=tmp_path, resume=True, validation=held_out)
    assert torch.equal(actual.mean_MD, again.mean_MD)


@ignored
@pytest.mark.usefixtures("_searched_soon")
@pytest.mark.parametrize("prior", ["model", "layer"])
def test_laplace_without_a_start_keeps_a_prior_that_was_asked_for(prior: Any, tmp_path: Path) -> None:
    fit(table(60), tb.Laplace(prior=prior), validation=UNLIKE, directory=tmp_path)
    assert chosen(tmp_path)["settings"] == ({"check_mode": False} if prior == "model" else {})  # which needs no mode
    assert chosen(tmp_path)["mode"]["epochs"] >= 4


@ignored
@pytest.mark.parametrize("rows", [1, pytest.param(25, marks=pytest.mark.study)])  # others have 60
def test_laplace_of_few_rows_without_a_start(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tb.MAP, "usual_steps", 50)
    assert torch.isfinite(fit(table(rows), tb.Laplace()).mean_MD).all()


@ignored
def test_laplace_of_ready_made_batches_without_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tb.MAP, "usual_steps", 50)
    inputs, targets = table(60)
    batches = list(zip(inputs.split(20), targets.split(20), strict=True))
    assert fit(batches, tb.Laplace()).members == 1


@ignored
@pytest.mark.usefixtures("_searched_soon")
def test_laplace_of_classes_without_a_start(tmp_path: Path) -> None:
    inputs, targets = table(60)
    labels = (targets[:, 0] > 0).long()
    several = tb.Model(
        nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 2)).double(), tb.likelihoods.Categorical()
    )
    actual = fit((inputs, labels), tb.Laplace(), model=several, validation=0.5, directory=tmp_path)
    assert tb.evaluate(actual, (inputs, labels)).metrics["accuracy"] > 0.7
    assert len(chosen(tmp_path)["tried"]) == 13


@pytest.mark.parametrize("prior", [0.0, -1.0, float("nan"), "wide"])
def test_a_factor_that_is_none_is_refused(prior: Any) -> None:
    with pytest.raises(ValueError, match="prior"):
        tb.Laplace(prior=prior)


@pytest.mark.usefixtures("_searched_soon")
def test_laplace_in_a_subspace_looks_for_its_mode_there() -> None:
    one = model()
    space = tb.Subspace.random(one, torch.zeros(one.layout.size).double(), 2)
    actual = fit(table(20), tb.Laplace(), model=one, space=space, validation=0.5)  # so few that their length is chosen
    outside = actual.sample(2) - space.lift(space.coordinates(actual.sample(2)))
    assert outside.abs().max() < 1e-9


# `test_laplace_without_a_start_is_that_around_map_under_the_chosen_prior` says that its mode is that of MAP
@pytest.mark.parametrize(
    "method", [tb.MAP(), pytest.param(tb.Laplace(), marks=pytest.mark.study)], ids=lambda m: type(m).__name__
)
def test_few_weights_reach_their_posterior_whatever_held_out_rows_say(method: Any) -> None:
    """One weight and 20 rows, half of which are held out in turn: the exact mean."""
    random = torch.Generator().manual_seed(0)
    inputs = torch.randn(20, 1, generator=random).double()
    targets = 1.3 * inputs + 0.5 * torch.randn(20, 1, generator=random).double()
    precision = 1 + float(inputs.square().sum()) / 0.25
    mean = float((inputs * targets).sum()) / 0.25 / precision
    model = tb.Model(nn.Linear(1, 1, bias=False).double(), tb.likelihoods.Gaussian(0.5), tb.priors.Normal(1.0))
    actual: Any = tb.fit(model, (inputs, targets), method, callbacks=(), validation=0.5)
    weights_MD = actual.mean_MD if isinstance(method, tb.Laplace) else actual.weights_MD
    assert abs(float(weights_MD[0, 0]) - mean) < 0.4 * precision**-0.5
