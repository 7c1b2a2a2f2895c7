"""The catalogue: every entry leads to what it names, and a user's own entries are found by import path."""

import ast
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torchbayes as tb
from tests.catalogue import mine, rings
from torchbayes.catalogue import imports, methods
from torchbayes.catalogue.config import class_path, fit_run, load_run, read_config, write_config
from torchbayes.catalogue.data import DATA, defaults, untuned
from torchbayes.catalogue.loading import load
from torchbayes.catalogue.methods import METHODS, check_method, classes, entry_of, label_of, method_named, method_names
from torchbayes.catalogue.models import LIKELIHOODS, NETWORKS, PRIORS, build_likelihood, build_network, known
from torchbayes.catalogue.problem import Problem
from torchbayes.catalogue.usual import usual_plan
from torchbayes.data.user import as_data
from torchbayes.model.priors.axes import Axes
from torchbayes.predictive.linearised import preferred
from torchbayes.report import looks

OWN = "tests.catalogue.mine"
MOONS = Problem("two_moons", "mlp", {"hidden": [8]}, train_size=40)
COUNTS = Problem(f"{OWN}:load", "mlp", {"hidden": [8]}, data_settings={"kind": "counts"})


# --- entries


@pytest.mark.parametrize("entry", METHODS.values(), ids=METHODS)
def test_an_entry_of_a_method_is_complete(entry):
    usual = defaults("two_moons")
    settings = usual[entry.name]
    check_method(entry.name, settings)
    assert type(settings) is entry.kind
    assert entry_of("a name of its own", settings).kind is entry.kind
    assert entry.cost.endswith(".")
    assert entry.line
    needs = settings.needs  # one that begins at several modes finds as many as it needs
    assert (entry.start is not None) == (needs.start is not None and needs.modes == 1)
    for other in (entry.start, entry.first_of):
        assert other is None or other in METHODS
    if entry.first_of:
        many = usual[entry.first_of]
        assert many.members > 1
        assert replace(many, members=1) == settings


def test_members_decide_which_entry_serves_a_class():
    names = [entry_of("other", method).name for method in (tb.MAP(1), tb.MAP(2), tb.SWAG(1), tb.SWAG(3), tb.SGHMC())]
    assert names == ["single", "ensemble", "swag", "multiswag", "sghmc"]
    assert entry_of("other", mine.Mine()).label == label_of("other") == "other"
    assert entry_of("multilaplace", tb.Laplace(prior="model")).start == "ensemble"
    starts = [entry_of(name, tb.Simplex(modes=modes)).start for name in ("simplex", "other") for modes in (1, 2)]
    assert starts == ["single", None, "single", None]  # no entry has as many networks as two modes for each member need


def test_the_looks_are_those_of_the_entries():
    drawn = looks([entry.label for entry in METHODS.values()])
    for entry in METHODS.values():
        assert drawn[entry.label] == entry.look
    assert len({look.colour for look in drawn.values()}) == len(METHODS)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_a_likelihood_is_built_for_the_data_that_it_is_for(name):
    entry = LIKELIHOODS[name]
    problem = replace(COUNTS if entry.task == "regression" else MOONS, likelihood=name)
    setup = problem.setup()
    assert type(setup.model.likelihood) is entry.kind
    outputs = setup.model.network(setup.model.network.weights(), setup.data.train.inputs[:4])
    setup.model.likelihood.check(outputs, setup.data.train.targets[:4])
    # with the plan that is usual there, which must be one that can run it
    method = tb.MAP(epochs=15, batch_size=20, optimizer=tb.Adam(0.05), plan=usual_plan(problem))
    posterior = tb.fit(setup.model, tuple(setup.data.train), method, callbacks=())
    actual = tb.evaluate(posterior, tuple(setup.data.test), target_scale=setup.target_scale).metrics
    assert actual.keys() >= {"nll", "accuracy" if entry.task == "classification" else "rmse"}


def fitting(task: str, *, without: tuple[str, ...] = ()) -> str:
    """The likelihoods for a task, in words."""
    names = [name for name, entry in LIKELIHOODS.items() if entry.task == task and name not in without]
    return f"{', '.join(names[:-1])} or {names[-1]}"


COUNTING = tuple(name for name, entry in LIKELIHOODS.items() if entry.task == "regression" and entry.prepare)


@pytest.mark.parametrize(
    ("problem", "likelihood", "said"),
    [
        (COUNTS, "bernoulli", f"a regression, must be {fitting('regression')}; got 'bernoulli'"),
        (
            MOONS,
            "poisson",
            f"a classification, must be {fitting('classification')}; got 'poisson': it is for a regression",
        ),
        (
            replace(MOONS, data="digits"),
            "bernoulli",
            "must be categorical; got 'bernoulli': it is for two classes, and",
        ),
        (
            Problem("toy_sine", "mlp"),
            "poisson",
            f"must be {fitting('regression', without=COUNTING)}; got 'poisson': targets of toy",
        ),
        (Problem("toy_sine", "mlp"), "categorical", "got 'categorical': it is for a classification."),
    ],
)
def test_a_likelihood_of_other_data_is_met_with_those_that_go(problem, likelihood, said):
    with pytest.raises(ValueError, match=said):
        replace(problem, likelihood=likelihood).setup()


def test_two_classes_by_one_output_or_by_two():
    """Of a linear model the difference of two outputs is the one output, and its prior has twice the variance."""
    linear = replace(MOONS, network="linear", network_settings={}, train_size=None)
    one = replace(linear, likelihood="bernoulli", prior_scale=2**0.5).setup()
    two = linear.setup()
    assert one.model.layout.size == two.model.layout.size / 2
    method = tb.MAP(epochs=300, batch_size=200, optimizer=tb.Adam(0.3))
    probs = []
    for setup in (one, two):
        mode = tb.fit(setup.model, tuple(setup.data.train), method, callbacks=())
        laplace = tb.fit(setup.model, tuple(setup.data.train), tb.Laplace("dense", prior="model"), start=mode)
        for posterior in (mode, laplace):
            actual = tb.evaluate(preferred(posterior), tuple(setup.data.test))
            assert actual.probs is not None
            probs.append(actual.probs)
    torch.testing.assert_close(probs[0], probs[2], atol=1e-4, rtol=0)
    torch.testing.assert_close(probs[1], probs[3], atol=1e-4, rtol=0)
    assert (probs[0] - probs[1]).abs().max() > 0.01


def test_counts_are_seen_and_judged_in_raw_units():
    setup = replace(COUNTS, likelihood="poisson").setup()
    raw = load(COUNTS.data, COUNTS.data_settings)
    assert raw.target_standardise is not None
    expected = raw.target_standardise.inverse(raw.test.targets).float()
    torch.testing.assert_close(setup.data.test.targets, expected)
    assert setup.target_scale == 1.0
    posterior = tb.fit(
        setup.model, tuple(setup.data.train), tb.MAP(epochs=40, batch_size=20, optimizer=tb.Adam(0.02)), callbacks=()
    )
    actual = tb.evaluate(posterior, tuple(setup.data.test), target_scale=setup.target_scale).metrics
    rates = posterior.functions()(setup.data.test.inputs)[0].exp()
    assert actual["rmse"] == pytest.approx(float((rates - expected).square().mean().sqrt()), rel=1e-5)
    log_prob = torch.distributions.Poisson(rates).log_prob(expected.round())
    assert actual["nll"] == pytest.approx(-float(log_prob.mean()), rel=1e-5)
    assert {"nll_gaussian", "coverage"} <= actual.keys()


@pytest.mark.parametrize("name", PRIORS)
def test_a_prior_is_built_at_the_scale_of_the_problem(name):
    model = replace(MOONS, prior=name, prior_scale=0.3).setup().model
    built: list[Any] = [segment.prior for segment in model.prior.segments]
    made = PRIORS[name].kind()
    if hasattr(made, "scale"):
        kinds = {type(made)} if hasattr(made, "log_prob") else {type(made.resolve(Axes.dense((4, 3))))}
        assert {type(prior) for prior in built} == kinds
        assert {prior.scale for prior in built} == {0.3}
    assert torch.isfinite(model.log_prior(torch.full((1, model.layout.size), 0.1))).all()  # at 0 not all are


def test_networks_are_those_of_the_room_with_its_plans():
    assert known("network") == tb.networks.names()
    for name, entry in NETWORKS.items():
        shape = (3, 16, 16)
        assert type(entry.kind(shape, 2)) is type(build_network(name, shape, 2, settings={}))
    assert {name for name, entry in NETWORKS.items() if entry.kernel} == {"mlp", "tabular", "small_cnn", "lenet"}
    assert set(DATA) == set(tb.data.names())


def test_a_prior_for_each_glob_counts_the_first_that_matches():
    rules = {"1.weight": {"name": "student_t", "df": 3}, "*": "laplace"}
    model = replace(MOONS, prior=rules, prior_scale=0.5).setup().model
    weights = torch.linspace(-1, 1, model.layout.size, dtype=torch.float64)
    first = model.layout.slices["1.weight"]
    rest = torch.ones(model.layout.size, dtype=torch.bool)
    rest[first] = False
    expected = torch.distributions.StudentT(3.0, 0.0, 0.5).log_prob(weights[first]).sum()
    expected += torch.distributions.Laplace(0.0, 0.5).log_prob(weights[rest]).sum()
    torch.testing.assert_close(model.log_prior(weights), expected)


@pytest.mark.parametrize(
    ("name", "network", "likelihood"),
    [("digits", "small_cnn", "categorical"), ("two_moons", "mlp", "categorical"), ("toy_sine", "mlp", "gaussian")],
)
def test_a_data_set_needs_no_settings_of_its_own(name, network, likelihood):
    usual = untuned(name)
    assert (usual.problem.network, usual.problem.likelihood) == (network, likelihood)
    assert usual.num_data == len(load(name).train.inputs)
    assert usual.problem.setup().model.layout.size > 0
    assert {"family": usual.family, "methods": usual.methods} == {"family": "own", "methods": methods.OPTIMISED}
    # of what runs no kernel the plan is another
    assert [usual[name].plan for name in ("repulsive", "mc_dropout")] == ["loop", "loop"]


@pytest.mark.study  # `test_list_names_everything` and `test_a_fit_from_the_shell_is_that_of_the_library` of `tests/cli`
@pytest.mark.slow
def test_a_data_set_of_the_library_is_its_function_and_its_entry(tmp_path):
    """What a new one needs beside its file is a line in one table: CONTRIBUTING.md counts the files."""
    process = get_context("spawn").Process(target=rings.command, args=(tmp_path,))  # which has not read the table yet
    process.start()
    process.join(240)
    said = (tmp_path / "said.txt").read_text()
    assert process.exitcode == 0, said
    assert "two rings in 2-d" in said
    assert "accuracy" in said
    config = read_config(tmp_path / "run" / "config.yaml")
    assert {config["network"], config["likelihood"]} == {"mlp", "categorical"}


# --- runs of before


def test_a_configuration_without_the_younger_settings_is_read_and_resumed(tmp_path):
    method = tb.MAP(epochs=2, batch_size=20)
    first = fit_run(MOONS.setup(), method, tmp_path, callbacks=())
    config = read_config(tmp_path / "config.yaml")
    for name in ("data_settings", "likelihood_settings", "prior", "prior_settings", "outputs"):
        del config[name]
    write_config(tmp_path, config)
    setup, loaded = load_run(tmp_path)
    assert setup.problem == MOONS
    assert torch.equal(loaded.sample(1), first.sample(1))
    again = fit_run(MOONS.setup(), method, tmp_path, resume=True, callbacks=())
    assert torch.equal(again.sample(1), first.sample(1))
    with pytest.raises(ValueError, match="a run of another prior"):
        fit_run(replace(MOONS, prior="laplace").setup(), method, tmp_path, resume=True, callbacks=())


# --- what users bring


def test_everything_can_be_the_users_own(tmp_path):
    own = Problem(f"{OWN}:load", f"{OWN}:build", {"width": 4}, f"{OWN}:noise", 0.4, prior=f"{OWN}:narrow")
    method: Any = mine.Mine(epochs=4, plan="vmap")
    setup = own.setup()
    posterior = fit_run(setup, method, tmp_path, callbacks=())
    config = read_config(tmp_path / "config.yaml")
    assert config["method"]["class_path"] == f"{OWN}.Mine" == class_path(mine.Mine)
    assert {segment.prior for segment in setup.model.prior.segments} == {tb.priors.Normal(0.2)}
    assert setup.model.likelihood == tb.likelihoods.Gaussian(0.3)
    # the same fit by hand, on rows split and standardised by hand
    inputs, targets = mine.load()
    test = np.zeros(60, dtype=bool)
    test[np.random.default_rng(0).permutation(60)[:6]] = True
    rows = (inputs[~test] - inputs[~test].mean(0)) / inputs[~test].std(0)
    values = (targets[~test] - targets[~test].mean()) / targets[~test].std()
    torch.testing.assert_close(setup.data.train.inputs, torch.tensor(rows).float())
    torch.testing.assert_close(setup.data.train.targets[:, 0], torch.tensor(values).float())
    by_hand = tb.fit(setup.model, tuple(setup.data.train), method.base, callbacks=())
    assert torch.equal(posterior.sample(1), by_hand.sample(1))
    assert torch.equal(load_run(tmp_path, trust=True)[1].sample(1), by_hand.sample(1))


PLAIN = {
    "single": tb.MAP(),
    "ensemble": tb.MAP(members=5),
    "multiswag": tb.SWAG(members=5),
    "multiivon": tb.IVON(members=5),
    "online_laplace": tb.OnlineLaplace(),
    "mean_field": tb.VI(),
    "sgld": tb.SGLD(),
    "hmc": tb.HMC(),
}


def test_usual_settings_of_own_data_are_those_without_a_data_set():
    usual = defaults(f"{OWN}:load")
    assert (usual.problem.network, usual.problem.likelihood, usual.num_data) == ("mlp", "gaussian", 54)
    for name, python in PLAIN.items():
        assert replace(usual[name], plan="auto") == python, name
    assert usual.problem.setup().model.open_scale == 1.0  # as that of a model which is given no prior
    usual = defaults(f"{OWN}:load", {"kind": "classes"})
    assert usual.problem.likelihood == "categorical"
    assert usual.problem.setup().data.classes == ("no", "yes")


def test_classes_are_held_out_in_their_shares():
    labels = np.repeat([5, 7, 9], [50, 30, 20])
    actual = as_data("mine", (np.arange(100.0)[:, None], labels), split=1)
    assert actual.classes == ("5", "7", "9")
    assert torch.bincount(actual.test.targets).tolist() == [5, 3, 2]
    assert torch.bincount(actual.train.targets).tolist() == [45, 27, 18]
    other = as_data("mine", (np.arange(100.0)[:, None], labels), split=2)
    assert not torch.equal(actual.test.inputs, other.test.inputs)
    given = as_data("mine", ((np.eye(3), [0, 1, 2]), (np.eye(3)[:1], [2])))
    assert given.test.targets.tolist() == [2]
    assert as_data("mine", (np.zeros((30, 1, 8, 8), np.uint8), np.arange(30) % 3)).is_image


@pytest.mark.parametrize(
    ("actual", "error", "said"),
    [
        (3, TypeError, "must give"),
        ((np.eye(3), np.arange(2)), ValueError, "one target for each row"),
        ((np.full((20, 1), np.nan), np.arange(20.0)), ValueError, "20 values are not. Remove or impute"),
        ((np.array([["a"]] * 20), np.arange(20.0)), TypeError, "Encode texts as numbers"),
        ((np.eye(3), np.zeros(3)), ValueError, "too few rows"),
        ((np.eye(3), np.zeros(3, int)), ValueError, "all 3 targets of mine are 0: there is nothing to learn"),
        ((np.zeros((1001, 1)), np.arange(1001)), ValueError, "at most 1,000 classes; the targets of mine have 1,001"),
        (((np.eye(2), [0, 0]), (np.eye(2), [0, 1])), ValueError, "no training row of mine is of the class '1'"),
    ],
)
def test_arrays_that_are_no_data_are_refused(actual, error, said):
    with pytest.raises(error, match=said):
        as_data("mine", actual)


def test_methods_are_found_by_class_path_and_entry_point(monkeypatch):
    assert method_named("SWAG") is tb.SWAG
    assert method_named(f"{OWN}:Mine") is mine.Mine
    assert method_named(f"{OWN}:WIDE") is mine.WIDE
    assert method_named("Mine") is None
    points = {"Mine": EntryPoint("Mine", f"{OWN}:Mine", "torchbayes.methods")}
    points |= {"SWAG": EntryPoint("SWAG", "elsewhere:SWAG", "torchbayes.methods")}
    monkeypatch.setattr("torchbayes.catalogue.methods.registered", lambda _: points)
    monkeypatch.setattr("torchbayes.catalogue.imports.registered", lambda _: points)
    assert method_named("Mine") is mine.Mine
    assert method_named("SWAG") is tb.SWAG  # names of the library cannot be taken away
    assert method_names()["Mine"] == f"of an installed package: {OWN}:Mine"
    assert method_names()["SWAG"].startswith("Stochastic")
    assert list(classes())[:3] == ["MAP", "SWA", "SWAG"]


def test_entry_points_name_models_and_data_too(monkeypatch):
    points = {"ours": EntryPoint("ours", f"{OWN}:build", "torchbayes.networks")}
    monkeypatch.setattr("torchbayes.catalogue.imports.registered", lambda group: points if "net" in group else {})
    monkeypatch.setattr("torchbayes.catalogue.models.registered", lambda group: points if "net" in group else {})
    made = build_network("ours", (2,), 3, settings={"width": 7})
    assert [layer.out_features for layer in made.children() if isinstance(layer, nn.Linear)] == [7, 3]
    assert known("network")["ours"].startswith("of an installed package")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nowhere:build", "there is no module nowhere, which nowhere:build names. Run the command in the folder"),
        ("torch.nowhere:build", "there is no module torch.nowhere"),
        (f"{OWN}:buidl", "has no 'buidl'.*Did you mean build"),
        (f"{OWN}:WIDE.nothing", "has no 'nothing'"),
        ("a b:c", "is MODULE:ATTRIBUTE, such as my_module:build; got 'a b:c'"),
        (f"{OWN}:", "is MODULE:ATTRIBUTE"),
        ("..:x", "is MODULE:ATTRIBUTE"),
        (f"{OWN}:NUMBER", "must be a function or a class; got 3"),
        (f"{OWN}:no_network", "must return a network, a torch.nn.Module; got 3"),
        (f"{OWN}:noise", r"called with \(\(2,\), 2\), fails: TypeError"),
    ],
)
def test_a_wrong_path_of_a_network_is_said(path, said):
    with pytest.raises((ValueError, TypeError), match=said):
        build_network(path, (2,), 2, settings={})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 / 0", "ZeroDivisionError, division by zero, at line 1 of .*py. Correct the module"),
        ("import sys\nsys.exit(3)", "SystemExit, 3, at line 2"),
        ("def f(:", "SyntaxError"),
        ("import nowhere_at_all", "imports nowhere_at_all, which is not installed. Install it"),
    ],
)
def test_a_module_that_fails_when_it_is_imported_is_one_sentence(tmp_path, monkeypatch, text, said):
    name = f"broken_{abs(hash(text))}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=said) as error:
        imports.load_path(f"{name}:f")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (f"{OWN}:build", "must be the settings of a method"),
        (f"{OWN}:NUMBER", "must be the settings of a method"),
        ("torch:Tensor", "must be a method, a dataclass with init and step; got the class Tensor"),
    ],
)
def test_what_is_no_method_is_said(name, said):
    with pytest.raises(TypeError, match=said):
        method_named(name)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"likelihood": "categorcal"}, ValueError, "Did you mean categorical"),
        ({"likelihood": 3}, TypeError, "`likelihood` must be text"),
        ({"prior": "lapalce"}, ValueError, "Did you mean laplace"),
        ({"prior": 3}, TypeError, "a name, or a mapping from globs"),
        ({"prior": {"*": 3}}, TypeError, "a name, or a mapping with `name`"),
        ({"prior": {"*": {"scale": 3}}}, ValueError, r"the prior of '\*' must have a `name`"),
        ({"prior": {"*": {"name": "nromal"}}}, ValueError, "Did you mean normal"),
        ({"outputs": 0}, ValueError, "`outputs` must be a whole number of at least 1; got 0"),
        ({"prior_settings": 3}, TypeError, "`prior_settings` must be a mapping"),
    ],
)
def test_names_are_checked_before_anything_is_loaded(change, error, said):
    with pytest.raises(error, match=said):
        replace(MOONS, **change)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"likelihood_settings": {"smoothing": 1}},
            "categorical has no setting 'smoothing'. Did you mean",
        ),
        ({"prior_settings": {"dff": 3}, "prior": "student_t"}, "student_t has no setting 'dff'. Did you mean df"),
        ({"prior": {"*": "normal"}, "prior_settings": {"scale": 1}}, "Write them beside the names"),
        ({"prior": {"head.*": "normal"}}, "matches no random parameter"),
        ({"likelihood": f"{OWN}:narrow"}, "must return a likelihood"),
        ({"prior": f"{OWN}:load"}, "must return a prior"),
        ({"data_settings": {"rows": 3}}, "`two_moons` has none. Leave them out"),
    ],
)
def test_settings_that_do_not_exist_are_said(change, said):
    with pytest.raises((ValueError, TypeError), match=said):
        replace(MOONS, **change).setup()


def test_a_likelihood_takes_its_settings():
    assert build_likelihood("student_t", {"df": 3.0}) == tb.likelihoods.StudentT(3.0)
    assert build_likelihood("gaussian", {"initial": 0.2}) == tb.likelihoods.Gaussian("learned", initial=0.2)
    assert build_likelihood(f"{OWN}:noise", {"scale": 0.1}) == tb.likelihoods.Gaussian(0.1)
    assert load(f"{OWN}:load", {"rows": 20}).train.inputs.shape == (18, 3)


def test_a_method_of_the_library_is_its_file_and_its_entry() -> None:
    """What `torchbayes` has by name are the classes of the entries, and no file of one imports that of another."""
    kinds = methods.classes()
    assert set(methods.__all__) == set(kinds)
    assert all(getattr(tb, name) is kind and name in tb.__all__ for name, kind in kinds.items())
    files = {kind.__module__ for kind in kinds.values()}
    for module in files:
        tree = ast.parse(Path(sys.modules[module].__file__ or "").read_text())
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not imported & (files - {module})
