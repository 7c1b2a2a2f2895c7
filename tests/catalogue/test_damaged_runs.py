"""Attacks on whole runs, each from a seed: nothing crashes, hangs, writes outside the run, or gives other numbers."""

import json
import random
import shutil
import warnings
from collections import Counter

import pytest
import yaml

import torchbayes as tb
from tests.damage import DAMAGES, WEIGHTS
from torchbayes.catalogue.config import CONFIG, fit_run, load_run, write_config
from torchbayes.catalogue.problem import Problem
from torchbayes.cli import main

pytestmark = pytest.mark.filterwarnings("ignore")  # a short fit has problems

ROWS = "a,b,y\n" + "".join(f"{(7 * i) % 13},{(5 * i) % 11},{(3 * i) % 7}.5\n" for i in range(60))
SEEDS = range(4100, 4124)
# absurd settings, as somebody writes them who writes the checksum too
ABSURD = {
    "network_settings": [{"hidden": [2**63]}, {"hidden": [10**12]}, {"hidden": [-1]}, {"hidden": "x"}, {"hidden": []},
                         {"hidden": [1.5]}, {"no": 1}, {"activation": "__import__"}, {"hidden": [[8]]}],
    "prior_scale": [0.0, -1.0, float("nan"), float("inf"), 1e308, 10**400, "x", None, [1]],
    "temperature": [0.0, -1.0, float("nan"), 10**400, "x"],
    "split": [-1, 2**63, 10**30, 1.5, "x"],
    "train_size": [0, -1, 2**63, 10**30, "x"],
    "threads": [0, -1, 2**63, "x"],
    "outputs": [0, -1, 2**63, 10**12, "x"],
    "device": ["cuda:99", "meta", "../x", 3, ""],
    "likelihood": ["nothing", "", 3, None, "a:b:c", "os:system", "../x"],
    "likelihood_settings": [{"scale": -1.0}, {"scale": 10**400}, {"no": 1}, "x", [1]],
    "prior": ["nothing", 3, {"*": 3}, {"*": {"name": "os:system"}}, {"[": "normal"}, {}],
    "prior_settings": [{"scale": -1.0}, {"no": 1}, 3],
    "data": ["/dev/zero", "/", "/no/such.csv", "a\0b", "", 3, "os:getcwd", "x" * 5000],
    "data_settings": [{"no": 1}, {"encoding": "no"}, {"task": 3}, {"leave_out": "a"}, {"categorical": [1]}, 3],
    "target": ["no", 3, ""],
    "method": [None, 3, "x", {}, {"class_path": "os.system"}, {"init_args": 3}],
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run on a table, with the metrics of its test rows, and another one of the same settings but the seed."""
    home = tmp_path_factory.mktemp("runs")
    (home / "x.csv").write_text(ROWS)
    problem = Problem(
        str(home / "x.csv"),
        "mlp",
        {"hidden": [4]},
        "gaussian",
        target="y",
        likelihood_settings={"scale": 0.5},
        threads=1,
    )
    setup = problem.setup()
    for seed, name in enumerate(("own", "other")):
        with warnings.catch_warnings(action="ignore"):
            fit_run(setup, tb.SWAG(2, 4, rank=2, plan="loop"), home / name, seed=seed, callbacks=())
    return home


def scores(run):
    setup, posterior = load_run(run)
    with setup.problem.threading():
        return tb.evaluate(posterior, tuple(setup.data.test), draws=4).metrics


def ended(run, expected):
    """How opening and scoring a run ends: the same, warned, said in words that name it, or badly, and how."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            actual = scores(run)
        except (ValueError, TypeError, OSError) as error:
            said = str(error)
            return "said" if said and len(said) < 1500 else f"raw: {said[:200]}"
        except Exception as error:
            return f"raw: {type(error).__name__}: {error}"
    same = actual == expected
    return "same" if same else "told" if told else "silent"


@pytest.fixture
def place(runs, tmp_path):
    """A copy of the run in a folder of its own, and what lies around it."""
    shutil.copytree(runs / "own", tmp_path / "around" / "run")
    (tmp_path / "around" / "precious").write_text("precious")
    return tmp_path / "around"


def test_damaged_files_of_a_run_are_told_or_harmless(runs, place):
    expected, tally, wrong = scores(runs / "own"), Counter(), []
    names = sorted(path.name for path in (runs / "own").iterdir())
    assert {CONFIG, "data.json", "config.json", "posterior.safetensors"} <= set(names)
    for seed in SEEDS:
        chance = random.Random(seed)
        name = chance.choice(names)
        path, own, other = place / "run" / name, runs / "own" / name, runs / "other" / name
        how = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        if name == CONFIG and how == "edit":
            how = "swap"
        path.write_bytes(DAMAGES[how](own.read_bytes(), chance, other.read_bytes()))
        outcome = ended(place / "run", expected)
        tally[outcome.partition(":")[0]] += 1
        if outcome == "silent" or outcome.startswith("raw"):
            wrong.append(f"{seed} {name} {how}: {outcome}")
        path.write_bytes(own.read_bytes())
        assert sorted(path.name for path in (place / "run").iterdir()) == names
    assert not wrong
    assert tally["said"] > len(SEEDS) / 4, tally


def test_files_of_another_run_are_not_taken_for_its_own(runs, place):
    expected = scores(runs / "own")
    for name in ("posterior.safetensors", "config.json", CONFIG):
        shutil.copyfile(runs / "other" / name, place / "run" / name)
        outcome = ended(place / "run", expected)
        # settings that differ by the seed alone are the same problem
        assert outcome == ("same" if name == CONFIG else "said"), (name, outcome)
        shutil.copyfile(runs / "own" / name, place / "run" / name)


@pytest.mark.parametrize("name", ABSURD)
def test_absurd_settings_end_in_one_line(runs, place, capsys, name):
    config = yaml.safe_load((runs / "own" / CONFIG).read_text())
    around = sorted(path.name for path in place.iterdir())
    wrong = []
    for value in ABSURD[name]:
        write_config(place / "run", {**config, name: value})
        code = main(["evaluate", str(place / "run"), "--draws", "4", "--json"])
        said = capsys.readouterr()
        if code == 0:
            assert json.loads(said.out), value
        elif code != 2 or len(said.err.strip().splitlines()) > 2:
            wrong.append((value, code, said.err[-300:]))
    assert not wrong
    assert sorted(path.name for path in place.iterdir()) == around
    assert (place / "precious").read_text() == "precious"
