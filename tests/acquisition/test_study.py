"""Studies: the rounds by hand, an interrupted one that goes on, classes and duplicates, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import torchbayes as tb
from tests.oracles import assert_close, normal
from torchbayes import acquisition
from torchbayes.acquisition import Plan, Sizes, study
from torchbayes.acquisition.rounds import curves

INPUTS = normal(80, 2).float()
LABELS = (INPUTS[:, 0] > 0).long() + 2 * (INPUTS[:, 1] > 1).long()  # the last classes are rare
TEST = (normal(50, 2, seed=1).float(), torch.arange(50) % 4)
METHOD = tb.MAP(members=3, epochs=30, optimizer=tb.Adam(0.08), plan="native")
SIZES = Sizes(first=6, acquire=4, rounds=2)


def model() -> tb.Model:
    return tb.Model(lambda: tb.networks.mlp((2,), 4, hidden=(5,)), tb.likelihoods.Categorical())


def run(**settings: Any) -> acquisition.Study:
    plan = Plan(**{"sizes": SIZES, "scores": ("bald", "margin"), "seeds": 2} | settings.pop("plan", {}))
    return study(model(), (INPUTS, LABELS), METHOD, test=TEST, plan=plan, callbacks=(), **settings)


def test_rounds_are_those_by_hand():
    done = run(plan={"seeds": 1})
    first = [each for each in done.rounds if each.number == 0]
    assert [each.way for each in first] == ["bald", "margin", "random"]
    assert first[0].metrics == first[1].metrics == first[2].metrics  # all begin with the same rows
    assert [each.labelled for each in done.rounds] == [6, 10, 14] * 3
    order = torch.randperm(80, generator=_first(0)).tolist()
    known, left = order[:6], sorted(order[6:])
    posterior = tb.fit(model(), (INPUTS[known], LABELS[known]), METHOD, seed=0, callbacks=())
    by_hand = tb.acquire(posterior, INPUTS[left], 4)
    assert list(first[0].taken) == [left[k] for k in by_hand.indices]
    assert first[0].metrics == tb.evaluate(posterior, TEST).metrics
    assert not done.rounds[2].taken
    places, values = done.curves("accuracy")
    assert places == [6, 10, 14]
    assert_close(values["bald"][:, 0], [each.metrics["accuracy"] for each in done.rounds[:3]])


def _first(seed: int) -> torch.Generator:
    from torchbayes.randomness.seeds import Purpose, generator

    return generator(Purpose.FIRST_ROWS, seed)


@pytest.mark.parametrize("warm", [False, True])
def test_an_interrupted_study_goes_on_bit_for_bit(tmp_path: Path, warm: bool):
    settings: dict[str, Any] = {"warm": warm, "seeds": 1, "scores": ("bald",)}
    whole, stopped, count = run(plan=settings), tmp_path / "stopped", 0

    class StopError(RuntimeError):
        """Stands for a killed process."""

    def stop(event: tb.Event) -> None:
        nonlocal count
        count += 1
        if count == 2 * 30 + 17:  # in the third fit
            raise StopError

    plan = Plan(SIZES, **settings)
    with pytest.raises(StopError):
        study(model(), (INPUTS, LABELS), METHOD, test=TEST, plan=plan, directory=stopped, callbacks=[stop])
    assert run(plan=settings, directory=stopped, resume=True).rounds == whole.rounds
    more = run(plan=settings | {"sizes": Sizes(6, 4, 3)}, directory=stopped, resume=True)
    assert [each for each in more.rounds if each.number < 2] == [each for each in whole.rounds if each.number < 2]


def test_a_directory_is_of_one_study(tmp_path: Path):
    run(plan={"seeds": 1, "scores": ("bald",), "sizes": Sizes(6, 4, 1)}, directory=tmp_path)
    with pytest.raises(ValueError, match="already holds a study"):
        run(directory=tmp_path)
    with pytest.raises(ValueError, match="rounds of another `first`"):
        run(plan={"sizes": Sizes(5, 4, 2)}, directory=tmp_path, resume=True)
    plan = Plan(Sizes(6, 4, 1), ("bald",), seeds=1)
    other = tb.Model(lambda: tb.networks.mlp((2,), 4, hidden=(6,)), tb.likelihoods.Categorical())
    for name, change in {
        "model": {"model": other},
        "targets": {"pool": (INPUTS, LABELS.flip(0))},
        "test": {"test": (TEST[0], TEST[1].flip(0))},
        "target_scale": {"plan": replace(plan, target_scale=2.0)},
    }.items():
        settings = {"model": model(), "pool": (INPUTS, LABELS), "test": TEST, "plan": plan} | change
        with pytest.raises(ValueError, match=f"rounds of another `{name}`"):
            study(**settings, method=METHOD, directory=tmp_path, resume=True, callbacks=())


def test_classes_that_are_hardly_chosen_and_repeated_rows_are_told():
    labels, twice = torch.cat([LABELS * 0, LABELS * 0 + 1]), torch.cat([INPUTS, INPUTS])
    plan = Plan(Sizes(4, 30, 1), ("entropy",), seeds=1)
    repeated = "80 of the 160 rows of the pool repeat another one"
    with pytest.warns(UserWarning, match=repeated), pytest.warns(UserWarning, match="entropy hardly chose class 1"):
        done = study(model(), (twice, labels), METHOD, test=TEST, plan=plan, callbacks=())
    assert done.duplicates == 80
    assert done.classes["pool"] == (80, 80)
    assert sum(done.classes["entropy"]) == 30
    chosen = [place % 80 for each in done.rounds if each.way == "entropy" for place in each.taken]
    assert len({*chosen}) == 30  # none twice, and none that repeats one that was known
    from torchbayes.acquisition.study import _imbalances

    actual = [*_imbalances({"bald": (28, 2), "random": (30, 0), "pool": (50, 50)})]
    assert actual == ["bald hardly chose class 1: 2 rows of class 1, where its share of the pool is 15"]
    assert not [*_imbalances({"bald": (26, 4), "pool": (50, 50)})]


def test_curves_are_of_the_places_that_all_have():
    rounds = [acquisition.Round(w, n, 5 * n, {"nll": n + s}, (), s) for w in "ab" for s in (0, 1) for n in range(3)]
    places, values = curves(rounds[:-1], "nll")
    assert places == [0, 5]
    assert_close(values["b"], [[0.0, 1.0], [1.0, 2.0]])


def test_numbers_have_studies_too():
    regression = tb.Model(lambda: tb.networks.mlp((2,), 1, hidden=(5,)), tb.likelihoods.Gaussian(0.3))
    plan = Plan(Sizes(6, 1, 2), ("variance", "batchbald"), seeds=1)
    rows, test = (INPUTS, INPUTS[:, :1]), (TEST[0], TEST[0][:, :1])
    done = study(regression, rows, METHOD, test=test, plan=plan, callbacks=())
    assert done.classes == {}
    assert {*done.ways} == {"variance", "batchbald", "random"}
    assert done.curves("rmse")[1]["variance"].isfinite().all()


def test_a_pool_that_is_too_small_is_refused():
    plan = Plan(Sizes(60, 30, 1))
    with pytest.raises(ValueError, match="the pool has 80 rows, fewer than the 60 at the start and 30 of a round"):
        study(model(), (INPUTS, LABELS), METHOD, test=TEST, plan=plan, callbacks=())
    done, chains = run(plan={"seeds": 1, "scores": ("bald",)}), tb.SGLD(2, 400, 200, 20, step_size=1e-3)
    with pytest.raises(ValueError, match="no metric called 'rmse'"):
        done.curves("rmse")
    with pytest.raises(ValueError, match="`warm` needs a network to begin at"):
        study(model(), (INPUTS, LABELS), chains, test=TEST, plan=Plan(SIZES, warm=True), callbacks=())
