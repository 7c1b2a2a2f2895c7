"""The comparison: its numbers against other libraries, its files, and what resuming leaves alone."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score
from tests.pictures import unpainted

import torchbayes as tb
from torchbayes.catalogue.config import load_run, write_config
from torchbayes.catalogue.methods import label_of
from torchbayes.catalogue.problem import Problem, with_dropout
from torchbayes.comparison.compare import Comparison, _make_room, compare, configuration
from torchbayes.comparison.report import procedure
from torchbayes.comparison.scores import member, score
from torchbayes.comparison.tables import caption, table
from torchbayes.data import corrupt_data, out_of_distribution
from torchbayes.posteriors import Functions, locks

# a few epochs do not train
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*than under a constant:torchbayes.ProblemWarning"),
    pytest.mark.filterwarnings("ignore:.*the noise explains what the mean could:torchbayes.ProblemWarning"),
]


def optimised(ensemble, multiswag):
    """Four methods of two fits; so few epochs end at no mode for Laplace."""
    return {
        "single": replace(ensemble, members=1),
        "ensemble": ensemble,
        "swag": replace(multiswag, members=1),
        "multiswag": multiswag,
    }


def some(comparison, *names, **changes):
    """The same comparison of fewer methods."""
    return replace(comparison, methods={name: comparison.methods[name] for name in names}, **changes)


DIGITS = Comparison(
    Problem("digits", "mlp", {"hidden": [16]}, train_size=200),
    optimised(
        tb.MAP(2, epochs=4, batch_size=50, optimizer=tb.SGD(0.1), plan="vmap"),
        tb.SWAG(2, epochs=4, batch_size=50, optimizer=tb.SGD(0.1), per_epoch=2, rank=3, plan="vmap"),
    ),
    corruptions=("gaussian_noise", "contrast"),
    rows=60,
    draws=4,
)
SINE = Comparison(
    Problem("toy_sine", "mlp", {"hidden": [8]}, "gaussian"),
    optimised(tb.MAP(2, epochs=5, plan="vmap"), tb.SWAG(2, epochs=6, rank=2, plan="vmap")),
    draws=4,
)


def no_bar(items, what):
    assert what
    return items


@pytest.fixture
def _plain(monkeypatch):
    unpainted(monkeypatch)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    home = tmp_path_factory.mktemp("digits")
    with pytest.MonkeyPatch.context() as patch:
        unpainted(patch)
        return home, compare(DIGITS, home, callbacks=())


def test_clean_numbers_agree_with_scikit_learn(digits):
    _, actual = digits
    inputs, targets = actual.setup.data.test
    for outcome in actual.outcomes.values():
        outputs = outcome.functions(inputs).double()
        probs = outputs.softmax(-1).mean(0).numpy()
        assert outcome.clean.metrics["accuracy"] == pytest.approx(accuracy_score(targets, probs.argmax(1)))
        assert outcome.clean.metrics["nll"] == pytest.approx(log_loss(targets, probs, labels=range(10)), rel=1e-5)


def test_corrupted_numbers_are_means_over_corruptions(digits):
    _, actual = digits
    outcome = actual.outcomes["multiswag"]
    expected = []
    for name in DIGITS.corruptions:
        inputs, targets = corrupt_data(actual.setup.data, name, 5, seed=0, limit=60)
        probs = outcome.functions(inputs).double().softmax(-1).mean(0)
        expected.append(log_loss(targets, probs.numpy(), labels=range(10)))
    assert outcome.at(5, "nll") == pytest.approx(np.mean(expected), rel=1e-5)
    first = outcome.clean.log_prob[:60]
    assert outcome.severity("nll")[0] == [pytest.approx(-float(first.double().mean()))] * 2


def test_foreign_images_are_told_apart_as_scikit_learn_says(digits):
    _, actual = digits
    outcome = actual.outcomes["ensemble"]
    expected = []
    for images in out_of_distribution(actual.setup.data, limit=60, seed=0).values():
        inside, outside = (
            torch.special.entr(outcome.functions(x).double().softmax(-1).mean(0)).sum(-1)
            for x in (actual.setup.data.test.inputs, images)
        )
        labels = [0] * len(inside) + [1] * len(outside)
        expected.append(roc_auc_score(labels, torch.cat([inside, outside]).numpy()))
    assert outcome.auroc() == pytest.approx(np.mean(expected), abs=1e-4)


@pytest.mark.usefixtures("no_pictures")
def test_single_and_swag_are_the_first_members(digits):
    _, actual = digits
    single, ensemble = actual.outcomes["single"], actual.outcomes["ensemble"]
    assert single.clean.metrics["nll"] == pytest.approx(ensemble.members[0]["nll"], rel=1e-6)
    assert torch.equal(single.functions.weights_SD[0], ensemble.functions.weights_SD[0])
    alone = compare(some(DIGITS, "swag"), digits[0] / "alone", callbacks=())
    # a member of a stack and a run of its own differ by the rounding of stacked products
    assert alone.outcomes["swag"].clean.metrics["nll"] == pytest.approx(
        actual.outcomes["swag"].clean.metrics["nll"], rel=1e-3
    )


def test_a_member_is_a_row_of_every_tensor():
    setup = SINE.problem.setup()
    for method in (SINE.methods["ensemble"], SINE.methods["multiswag"]):
        posterior = tb.fit(setup.model, tuple(setup.data.train), method, callbacks=())
        one = member(posterior, 1)
        assert one.members == 1
        for name, tensor in posterior.tensors().items():
            assert torch.equal(one.tensors()[name], tensor[1:2])


def test_everything_is_left_in_the_directory(digits):
    home, actual = digits
    pictures = {path.stem for path in home.glob("*.png")}
    assert pictures == {
        *(f"severity_{metric}" for metric in ("nll", "accuracy", "confidence")),
        *("glance", "rows", "reliability", "reliability_corrupted", "entropy", "uncertain_images"),
    }
    page = actual.report.read_text()
    assert page.count('src="data:image/png;base64,') == len(pictures)
    assert "http://" not in page
    assert "https://" not in page
    numbers = json.loads((home / "results.json").read_text())["methods"]
    for name, outcome in actual.outcomes.items():
        assert numbers[name]["clean"] == outcome.clean.metrics
        assert numbers[name]["severity"]["5"]["nll"] == outcome.at(5, "nll")


def test_the_table_has_what_was_measured(digits):
    _, actual = digits
    made = table(actual.outcomes)
    assert made.columns[:5] == ["method", "accuracy", "NLL", "Brier", "ECE"]
    assert made.rows[1][2] == actual.outcomes["ensemble"].clean.metrics["nll"]
    assert made.rows[3][-1] == actual.outcomes["multiswag"].auroc()
    members = [m["nll"] for m in actual.outcomes["ensemble"].members]
    assert f"mean {np.mean(members):.3f}" in caption(actual.setup, actual.outcomes)
    assert "cross-validation" not in procedure(
        actual.setup, DIGITS, actual.outcomes
    )  # these are not the chosen settings


@pytest.mark.usefixtures("no_pictures")
def test_an_interrupted_comparison_goes_on_where_it_was(tmp_path):
    def stop(event):
        if event.epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(SINE, tmp_path / "a", callbacks=(stop,))
    compare(SINE, tmp_path / "a", resume=True, callbacks=())
    compare(SINE, tmp_path / "b", callbacks=())
    before, text = [(tmp_path / name / "results.json").read_bytes() for name in "ab"]
    assert json.loads(before) == json.loads(text)
    # finished fits are taken as they are
    with pytest.raises(ValueError, match="Add --resume"):
        compare(SINE, tmp_path / "a", callbacks=())
    epochs = []
    compare(SINE, tmp_path / "a", resume=True, callbacks=(epochs.append,), track=no_bar)
    assert epochs == []
    assert (tmp_path / "a" / "results.json").read_bytes() == before


@pytest.mark.usefixtures("no_pictures")
def test_overwriting_replaces_the_fits(tmp_path):
    compare(replace(SINE, seed=1), tmp_path, callbacks=())
    actual = compare(SINE, tmp_path, overwrite=True, callbacks=())
    config = (tmp_path / "fits" / "ensemble" / "config.yaml").read_text()
    assert "seed: 0" in config
    assert json.loads((tmp_path / "results.json").read_text())["methods"]["single"]["clean"] == (
        actual.outcomes["single"].clean.metrics
    )


def test_no_lock_file_is_open_while_earlier_fits_are_removed(tmp_path, monkeypatch):
    """NFS keeps the folder of a file that is open."""
    home, open_, remove = tmp_path / "run", [], shutil.rmtree
    write_config(home, {})
    for folder in (home / "fits" / "a", home / ".fits.removed" / "b"):
        folder.mkdir(parents=True)

    def looked_at(folder):
        open_.extend(lock.directory for lock in locks._HELD if lock._handle is not None)
        remove(folder)

    monkeypatch.setattr(shutil, "rmtree", looked_at)
    _make_room(home, SINE, overwrite=True)
    assert open_ == []
    assert [path.name for path in home.iterdir()] == ["config.yaml"]


@pytest.mark.usefixtures("_plain")
def test_a_regression_is_scored_in_the_targets_own_units(tmp_path):
    actual = compare(SINE, tmp_path, callbacks=())
    data = actual.setup.data
    assert data.target_standardise is not None
    outcome = actual.outcomes["ensemble"]
    raw = data.target_standardise.inverse(data.test.targets).double()
    predictive = tb.predict(outcome.functions, data.test.inputs)
    mean = data.target_standardise.inverse(predictive.mean).double()
    assert outcome.clean.metrics["rmse"] == pytest.approx(float((mean - raw).square().mean().sqrt()), rel=1e-5)
    scale = actual.setup.target_scale
    inner = predictive.log_prob(data.test.targets).double().mean() - np.log(scale)
    assert outcome.clean.metrics["nll"] == pytest.approx(-float(inner), rel=1e-5)
    assert {path.stem for path in tmp_path.glob("*.png")} == {"glance", "rows", "band"}
    assert table(actual.outcomes).columns == ["method", "RMSE", "MAE", "R²", "NLL", "in 95 % interval"]


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # too short a run to learn anything
def test_a_plane_is_drawn(tmp_path):
    problem = Problem("two_moons", "mlp", {"hidden": [8]})
    actual = compare(some(SINE, "single", "multiswag", problem=problem), tmp_path, callbacks=())
    assert {path.stem for path in tmp_path.glob("*.png")} == {"glance", "rows", "surface", "reliability"}
    assert all(path.stat().st_size > 10_000 for path in tmp_path.glob("*.png"))  # painted, unlike those of others here
    assert actual.outcomes["single"].numbers()["draws"] == 1
    assert actual.outcomes["multiswag"].numbers()["draws"] == 4


def test_functions_are_drawn_once_with_the_seed():
    setup = SINE.problem.setup()
    posterior = tb.fit(setup.model, tuple(setup.data.train), SINE.methods["multiswag"], callbacks=())
    outcomes = score(setup, {"multiswag": posterior}, replace(SINE, seed=5), track=no_bar)
    functions = outcomes["multiswag"].functions
    assert isinstance(functions, Functions)
    assert torch.equal(functions.weights_SD, posterior.sample(4, seed=5))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"corruptions": ("fogg",)}, "Did you mean fog"),
        ({"rows": 0}, "at least one row"),
        ({"draws": 5}, "multiple of MultiSWAG's 2 members; got 5. Try 4 or 6"),
        ({"draws": 1}, "got 1. Try 2"),
    ],
)
def test_what_cannot_be_compared_is_said_before_fitting(change, said):
    with pytest.raises(ValueError, match=said):
        replace(SINE, **change)


@pytest.mark.parametrize(
    ("methods", "error", "said"),
    [
        ({"swag": tb.SWAG}, TypeError, "must be settings, not a class; got the class SWAG. Write SWAG()"),
        ({"swag": 3}, TypeError, "must be the settings of a method"),
        ({"swag": tb.Adam()}, TypeError, "must be the settings of a method"),
        ({"swag": tb.MAP()}, TypeError, "'swag' stands for SWAG in `methods`; got settings of MAP"),
        ({"wide": tb.SWAG(), "Wide": tb.SWAG(rank=3)}, ValueError, "'wide' and 'Wide' differ by case or signs alone"),
        ({"a b": tb.SWAG(), "a-b": tb.SWAG(rank=3)}, ValueError, "'a b' and 'a-b' differ by case or signs alone"),
        ({"../up": tb.SWAG()}, ValueError, "must be letters, digits, spaces"),
        ({"": tb.SWAG()}, ValueError, "must be letters, digits, spaces"),
        ({3: tb.SWAG()}, ValueError, "must be letters, digits, spaces"),
        ({"seed": tb.SWAG()}, ValueError, "'seed' is the name of an option"),
        ({"reference": tb.SWAG()}, ValueError, "'reference' is the name of an option"),
        ((tb.SWAG(),), TypeError, "`methods` must be a mapping from names to settings"),
        ({"broad": tb.SWAG(3)}, ValueError, "multiple of broad's 3 members; got 4. Try 3 or 6"),
    ],
)
def test_methods_that_cannot_be_compared_are_said(methods, error, said):
    with pytest.raises(error, match=said):
        replace(SINE, methods=methods)


def test_methods_are_the_usual_ones_where_none_are_named():
    actual = Comparison(SINE.problem)
    assert list(actual.methods) == [
        "single",
        "laplace",
        "ensemble",
        "swag",
        "multiswag",
        "sgld",
        "sghmc",
        "csghmc",
        "hmc",
    ]
    assert actual.starts == {}
    beside = [name for name in Comparison(DIGITS.problem).methods if name not in actual.methods]
    assert beside == ["mean_field", "ivon", "mc_dropout"]
    assert actual.compared_with == "hmc"
    assert replace(actual, reference="sgld").compared_with == "sgld"
    assert replace(actual, reference="runs/long").compared_with == "reference"


@pytest.mark.usefixtures("no_pictures")
def test_a_method_that_needs_dropout_gets_it_where_the_network_can_have_it(tmp_path):
    mc_dropout = tb.MCDropout(2, epochs=4, batch_size=50, plan="loop")
    methods = {"single": DIGITS.methods["single"], "mc_dropout": mc_dropout, "my own": replace(mc_dropout, members=1)}
    actual = compare(replace(DIGITS, methods=methods, corruptions=()), tmp_path, callbacks=())
    for name in ("mc_dropout", "my own"):
        loaded, posterior = load_run(tmp_path / "fits" / name)
        assert loaded.problem.network_settings == {"hidden": [16], "dropout": 0.1}
        assert [m.p for m in posterior.model.network.module.modules() if isinstance(m, torch.nn.Dropout)] == [0.1]
    assert load_run(tmp_path / "fits" / "single")[0].problem.network_settings == {"hidden": [16]}
    assert actual.outcomes["mc_dropout"].clean.metrics["nll"] > 0


@pytest.mark.parametrize(
    ("network", "settings", "rate"),
    [
        ("mlp", {"dropout": 0.3}, 0.3),
        ("mlp", {"dropout": 0.0}, None),  # said to have none
        ("linear", {}, None),  # has no hidden units
        ("small_cnn", {}, 0.1),
    ],
)
def test_dropout_that_is_given_stays_and_other_networks_are_left_alone(network, settings, rate):
    setup = with_dropout(Problem("digits", network, settings, train_size=200).setup())
    modules = setup.model.network.module.modules()
    rates = {module.p for module in modules if isinstance(module, torch.nn.Dropout | torch.nn.Dropout2d)}
    assert rates == (set() if rate is None else {rate})


def test_a_fit_serves_only_what_has_its_settings():
    ensemble, multiswag = SINE.methods["ensemble"], SINE.methods["multiswag"]
    wide = replace(multiswag, averaging_lr=0.3)
    names = {"wide": replace(wide, members=1), "two wide": wide, "other": replace(ensemble, members=1, epochs=3)}
    actual = replace(SINE, methods={**SINE.methods, **names})
    served = {name: actual.fit_of(name)[0] for name in actual.methods}
    assert served == {
        "single": "ensemble",
        "ensemble": "ensemble",
        "swag": "multiswag",
        "multiswag": "multiswag",
        "wide": "two wide",
        "two wide": "two wide",
        "other": "other",
    }


def test_what_a_method_starts_at_is_fitted_though_it_is_not_compared():
    laplace = tb.Laplace(prior="model")
    alone = replace(SINE, methods={"laplace": laplace})
    assert list(alone.starts) == ["single"]
    beside = replace(SINE, methods={"my laplace": laplace, "ensemble": SINE.methods["ensemble"]})
    assert beside.starts == {"single": SINE.methods["single"]}
    assert beside.fit_of("single")[0] == "ensemble"
    assert configuration(alone)["starts"]["single"]["class_path"] == "torchbayes.MAP"
    assert "starts" not in configuration(beside)
    assert replace(SINE, methods={"multilaplace": laplace}).starts["ensemble"].members == 5


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.filterwarnings("ignore:.*not at a mode")
def test_one_method_is_compared_several_times_with_other_settings(tmp_path):
    swag = SINE.methods["swag"]
    methods = {
        "swag": swag,
        "wide swag": replace(swag, averaging_lr=0.3),
        "ensemble": SINE.methods["ensemble"],
        "multilaplace": tb.Laplace(structure="diagonal", prior="model"),
        "nuts": tb.NUTS(2, 12, 4, step_size=0.002, max_doublings=2),
    }
    actual = compare(replace(SINE, methods=methods, reference="nuts"), tmp_path, callbacks=())
    assert list(actual.outcomes) == list(methods)
    for name in ("swag", "wide swag"):
        by_hand = tb.fit(actual.setup.model, tuple(actual.setup.data.train), methods[name], callbacks=())
        functions = actual.outcomes[name].functions
        assert isinstance(functions, Functions)
        assert torch.equal(functions.weights_SD, by_hand.sample(4, seed=0))
    assert (tmp_path / "fits" / "wide swag" / "posterior.safetensors").exists()
    names = [str(row[0]) for row in table(actual.outcomes).rows]
    assert [name.removesuffix(" !") for name in names] == [
        "SWAG",
        "wide swag",
        "deep ensemble",
        "MultiLaplace",
        "NUTS",
    ]
    problems = [bool(outcome.problems) for outcome in actual.outcomes.values()]
    assert [name.endswith(" !") for name in names] == problems
    page = actual.report.read_text()
    for name, outcome in actual.outcomes.items():
        assert (f"Warning: {label_of(name)} should not be trusted" in page) == bool(outcome.problems)
    assert "those of NUTS" in caption(actual.setup, actual.outcomes)
    assert actual.outcomes["swag"].fidelity.clean["wasserstein1"] > 0
    said = procedure(actual.setup, replace(SINE, methods=methods), actual.outcomes)
    assert "MultiLaplace: diagonal curvature around the deep ensemble." in said
    assert "SWAG and wide swag average 4 drawn functions." in said


def test_the_configuration_holds_every_setting():
    actual = configuration(DIGITS)
    assert actual["network_settings"] == {"hidden": [16]}
    assert actual["corruptions"] == ["gaussian_noise", "contrast"]
    assert actual["methods"]["single"] == {"first_of": "ensemble"}
    assert actual["methods"]["multiswag"]["class_path"] == "torchbayes.SWAG"
    assert actual["methods"]["multiswag"]["init_args"]["optimizer"] == {
        "class_path": "torchbayes.SGD",
        "init_args": {"lr": 0.1, "momentum": 0.9, "nesterov": False},
    }
    assert "problem" not in actual
