"""`reproduce`: seeds are run once, settings are not mixed, and the page says what was found."""

import json
from dataclasses import dataclass, make_dataclass, replace

import numpy as np
import pytest

import torchbayes_experiments as experiments
from torchbayes.report import Picture, Table, figures
from torchbayes_experiments import Experiment, Findings, Verdict, below, get, names, reproduce


@dataclass(frozen=True)
class Recipe:
    shift: float = -1.0
    kinds: tuple[str, ...] = ("a", "b")


@pytest.fixture
def calls():
    return []


@pytest.fixture
def experiment(calls):
    def run(recipe, seed, directory):
        calls.append(seed)
        assert directory.name == f"seed_{seed}"
        if len(calls) == 2 and recipe.shift == -2:
            raise KeyboardInterrupt
        return {"difference": recipe.shift + 0.01 * seed}

    def summarise(results):
        values = [r["difference"] for r in results]
        drawn = figures.severity_curves({"MAP": np.ones((6, 1))}, "NLL")
        table = Table(["seed", "difference"], [[i, v] for i, v in enumerate(values)], "The differences.")
        return Findings(Verdict.of([below("a below b", values)]), (table,), (Picture("Curves", drawn, "How to read."),))

    return Experiment(
        name="made_up",
        claim="A is below B.",
        source="Nobody 2020",
        expected="Below.",
        differences="None.",
        recipes={"small": Recipe(), "paper": Recipe(shift=-2.0)},
        cost={"small": "nothing", "paper": "nothing"},
        run=run,
        summarise=summarise,
    )


def test_a_finished_seed_is_not_run_again(experiment, calls, tmp_path):
    reproduce(experiment, seeds=2, directory=tmp_path)
    first = (tmp_path / "seed_0" / "results.json").read_bytes()
    reproduce(experiment, seeds=3, directory=tmp_path)
    assert calls == [0, 1, 2]
    assert (tmp_path / "seed_0" / "results.json").read_bytes() == first
    actual = json.loads((tmp_path / "results.json").read_text("utf-8"))
    assert [record["results"]["difference"] for record in actual["seeds"]] == pytest.approx([-1, -0.99, -0.98])
    assert actual["verdict"]["outcome"] == "holds"
    assert actual["verdict"]["reason"].endswith(" Provisional: 3 of 5 seeds.")
    assert "Provisional: 3 of 5 seeds." in (tmp_path / "page.md").read_text("utf-8")


def test_an_interrupted_experiment_continues(experiment, calls, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        reproduce(experiment, scale="paper", seeds=2, directory=tmp_path)
    assert not (tmp_path / "page.md").exists()
    reproduce(experiment, scale="paper", seeds=2, directory=tmp_path)
    assert calls == [0, 1, 1]


def test_one_seed_is_inconclusive(experiment, tmp_path):
    reproduce(experiment, seeds=1, directory=tmp_path)
    actual = json.loads((tmp_path / "results.json").read_text("utf-8"))
    assert actual["verdict"]["outcome"] == "inconclusive"
    assert actual["seeds"][0]["results"]["difference"] == -1


def test_results_of_other_settings_are_not_mixed_in(experiment, calls, tmp_path):
    reproduce(experiment, seeds=1, directory=tmp_path)
    other = replace(experiment, recipes={"small": Recipe(shift=-1.5)})
    with pytest.raises(ValueError, match=r"holds results of other settings \(shift -1.0, now -1.5\)"):
        reproduce(other, seeds=1, directory=tmp_path)
    with pytest.raises(ValueError, match=r"scale 'small', now 'paper'"):
        reproduce(experiment, scale="paper", seeds=1, directory=tmp_path)
    assert calls == [0]


def test_results_outlive_the_name_of_the_class_of_their_settings(experiment, calls, tmp_path):
    page = reproduce(experiment, seeds=2, directory=tmp_path).with_name("page.md").read_text("utf-8")
    fields = [(name, type(value), value) for name, value in vars(Recipe()).items()]
    renamed = replace(experiment, recipes={"small": make_dataclass("Settings", fields, frozen=True)()})
    assert reproduce(renamed, seeds=2, directory=tmp_path).with_name("page.md").read_text("utf-8") == page
    assert calls == [0, 1]
    reproduce(renamed, seeds=1, directory=tmp_path / "new")
    assert (tmp_path / "new" / "recipe.json").read_bytes() == (tmp_path / "recipe.json").read_bytes()


def test_the_page_carries_everything(experiment, tmp_path):
    path = reproduce(experiment, seeds=2, directory=tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / "report.html"
    markdown = (path.parent / "page.md").read_text("utf-8")
    assert (path.parent / "figure_1.png").read_bytes().startswith(b"\x89PNG")
    for text in (markdown, path.read_text("utf-8")):
        for piece in ("A is below B. (Nobody 2020)", "Holds. Its one part holds.", "Below.", "None.", "a below b"):
            assert piece in text
        for piece in ("How to read.", "−0.990", "2 seeds: 0 s in all (0 s, 0 s)", "shift: -1.0", "matplotlib"):
            assert piece in text
    assert "![How to read.](figure_1.png)" in markdown
    assert "| 1 | −0.990 |" in markdown


def test_the_default_directory_is_named_after_the_experiment(experiment, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert reproduce(experiment, seeds=1) == tmp_path / "experiments" / "made_up-small" / "report.html"


def test_every_module_of_a_family_is_an_experiment_of_its_name():
    assert set(experiments.NAMES) == {get(name).name for name in names()} == set(names())
    assert len(names()) >= 15


def test_names_scales_and_seeds_are_checked(experiment, tmp_path):
    assert {"multiswag_corruption", "uci_table", "hmc_reference", "hmc_mixing"} <= set(names())
    for name in names():
        assert get(name).claim == names()[name]
        assert {"small", "paper"} <= set(get(name).recipes) == set(get(name).cost) <= {"small", "quick", "paper"}
    with pytest.raises(ValueError, match=r"no experiment called 'uci_tabel'. Did you mean uci_table\?"):
        reproduce("uci_tabel", directory=tmp_path)
    with pytest.raises(ValueError, match="`scale` of made_up must be one of small, paper; got 'big'"):
        reproduce(experiment, scale="big", directory=tmp_path)
    with pytest.raises(ValueError, match="`seeds` must be at least 1; got 0"):
        reproduce(experiment, seeds=0, directory=tmp_path)
    assert list(tmp_path.iterdir()) == []
