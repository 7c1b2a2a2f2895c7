"""Posteriors as plain modules: what `predict` gives with the same draws, exported, compiled, moved and saved."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributions, nn
from torch._dynamo.testing import CompileCounter

import torchbayes as tb
from tests.covering import some_of
from tests.laws.cases import CLASSES, NETWORKS, POSTERIORS, model_of, normal, rows_of
from tests.oracles import assert_close
from torchbayes.linalg import Diagonal
from torchbayes.model.likelihoods import quantiles

ROWS, DRAWS = 6, 4
ENDS = {"lower": 0.025, "upper": 0.975}
OF_CLASSES = ["probs", "entropy", "mutual_information", "expected_entropy"]
OF_NUMBERS = ["mean", "variance", "epistemic", "aleatoric", *ENDS]


def expected(name: str, prediction: tb.Predictive) -> Tensor:
    return prediction.quantile(ENDS[name]) if name in ENDS else getattr(prediction, name)


def assert_predicts(module: Callable[..., Any], prediction: tb.Predictive, inputs: Any, names: list[str]) -> None:
    actual = module(inputs)
    assert list(actual) == names
    for name, tensor in actual.items():
        assert_close(tensor, expected(name, prediction), rtol=1e-9, atol=1e-12)


def gaussian(model: tb.Model, members: int = 2) -> tb.Gaussian:
    mean_MD = model.starting_weights(range(members))[0]
    return tb.Gaussian(model, mean_MD, Diagonal(torch.full_like(mean_MD, 0.05)), statistics_known=True)


def double(net: nn.Module) -> nn.Module:
    torch.manual_seed(3)
    return net.double()


def dense(outputs: int = CLASSES) -> nn.Module:
    return double(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, outputs)))


def convolutional() -> nn.Module:
    layers = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(12, CLASSES)
    net = double(nn.Sequential(*layers))
    net.get_submodule("1").running_mean.copy_(normal(3))  # type: ignore[union-attr]
    return net


class Transformer(nn.Module):
    """Tokens, attention with padding, and a class for each row or each token."""

    def __init__(self, each: bool = False) -> None:
        super().__init__()
        self.each, self.embed = each, nn.Embedding(9, 8)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, CLASSES)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        states = self.embed(tokens)
        states = self.norm(states + self.attend(states, states, states, key_padding_mask=mask, need_weights=False)[0])
        return self.head(states if self.each else states.mean(1))


def tokens(rows: int = ROWS, length: int = 5) -> Tensor:
    return torch.arange(rows * length).view(rows, length) ** 2 % 9


NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "dense": (dense, lambda rows: normal(rows, 4)),
    "convolutional": (convolutional, lambda rows: normal(rows, 1, 4, 4)),
    "transformer": (lambda: double(Transformer()), tokens),
}


def averaged(name: str, likelihood: Any = None) -> tuple[tb.Gaussian, nn.Module, Callable[[int], Tensor]]:
    make, inputs = NETS[name]
    posterior = gaussian(tb.Model(make(), likelihood or tb.likelihoods.Categorical()))
    return posterior, posterior.module(DRAWS, seed=5), inputs


@pytest.mark.parametrize(("kind", "network"), some_of(POSTERIORS, NETWORKS, one_in=3))
def test_every_posterior_gives_what_predict_gives(kind: str, network: str) -> None:
    model, (inputs, _) = model_of(network), rows_of(network)
    posterior = POSTERIORS[kind](model, 2).calibrated(lambda: [inputs])
    draws = 2 * posterior.members
    module, prediction = posterior.module(draws, seed=3), tb.predict(posterior, inputs, draws=draws, seed=3)
    assert_predicts(module, prediction, inputs, OF_CLASSES)


# graphs of the dense network are below, and `test_it_is_compiled` traces the convolutional one
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.study if n != "transformer" else ()) for n in NETS])
def test_it_is_exported_with_a_dynamic_batch(name: str) -> None:
    posterior, module, inputs = averaged(name)
    exported = torch.export.export(module, (inputs(ROWS),), dynamic_shapes=({0: torch.export.Dim("rows", min=1)},))
    called = {node.target for node in exported.graph.nodes if node.op == "call_function"}
    assert all(getattr(each, "namespace", each.__module__) in {"aten", "_operator"} for each in called)
    for rows in (1, ROWS, 11):
        prediction = tb.predict(posterior, inputs(rows), draws=DRAWS, seed=5)
        assert_predicts(exported.module(), prediction, inputs(rows), OF_CLASSES)


# `test_it_is_exported_with_a_dynamic_batch` pins that its graph calls PyTorch's own operations alone
@pytest.mark.study
def test_an_exported_module_stands_alone(tmp_path: Path) -> None:
    _, module, inputs = averaged("dense")
    torch.export.save(torch.export.export(module, (inputs(ROWS),)), tmp_path / "average.pt2")
    torch.save(inputs(ROWS), tmp_path / "inputs.pt")
    script = (
        "import sys; sys.modules['torchbayes'] = None; import torch; at = torch.load('inputs.pt'); "
        "torch.save(torch.export.load('average.pt2').module()(at)['probs'], 'probs.pt')"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    assert_close(torch.load(tmp_path / "probs.pt"), module(inputs(ROWS))["probs"])


# what is traced of a network with attention is its graph of `test_it_is_exported_with_a_dynamic_batch`
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.study if n != "convolutional" else ()) for n in NETS]
)
def test_it_is_compiled(name: str) -> None:
    posterior, module, inputs = averaged(name)
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    prediction = tb.predict(posterior, inputs(ROWS), draws=DRAWS, seed=5)
    assert_predicts(compiled, prediction, inputs(ROWS), OF_CLASSES)


@pytest.mark.parametrize("name", ["dense", "convolutional"])
def test_one_network_is_compiled_for_all_draws(name: str) -> None:
    operations = {}
    for draws in (2, 6):
        counter = CompileCounter()
        posterior, _, inputs = averaged(name)
        module = posterior.module(draws, seed=5)
        plain = module(inputs(ROWS))
        module.compile(backend=counter)
        torch._dynamo.reset()
        compiled = module(inputs(ROWS))
        assert_predicts(module, tb.predict(posterior, inputs(ROWS), draws=draws, seed=5), inputs(ROWS), OF_CLASSES)
        for entry, value in plain.items():
            assert_close(compiled[entry], value)
        operations[draws] = counter.op_count
        for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            assert_close(other(inputs(ROWS))["probs"], plain["probs"])
    assert operations[2] == operations[6] > 0


# `test_averages_of_numbers_go_to_onnx` takes the dense network there, and `test_it_is_exported_with_a_dynamic_batch`
# pins the graphs of all three.
@pytest.mark.slow
@pytest.mark.study
@pytest.mark.parametrize("name", NETS)
@pytest.mark.filterwarnings("ignore")
def test_it_goes_to_onnx(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    _, module, inputs = averaged(name)
    module.float()
    at = inputs(ROWS).float() if inputs(1).is_floating_point() else inputs(ROWS)
    names, shapes = list(module(at)), ({0: torch.export.Dim("rows", min=1)},)
    program = torch.onnx.export(module, (at,), dynamo=True, dynamic_shapes=shapes, output_names=names, verbose=False)
    program.save(tmp_path / "average.onnx")  # type: ignore[union-attr]
    session = runtime.InferenceSession(tmp_path / "average.onnx")
    actual = session.run(names, {session.get_inputs()[0].name: at[:2].numpy()})
    for tensor, own in zip(actual, module(at[:2]).values(), strict=True):
        assert_close(torch.as_tensor(tensor), own, rtol=1e-4, atol=1e-5)


# outputs, and the level that is exported: quantiles of each kind once
EVERY_LIKELIHOOD: list[tuple[Any, int, list[str], float | None]] = [
    (tb.likelihoods.Gaussian(0.3), 1, OF_NUMBERS, None),
    (tb.likelihoods.Gaussian((0.3, 0.5)), 2, OF_NUMBERS, None),
    (tb.likelihoods.Gaussian("learned", outputs=2), 2, OF_NUMBERS, None),
    (tb.likelihoods.HeteroscedasticGaussian(), 2, OF_NUMBERS, 0.95),
    (tb.likelihoods.Poisson(), 1, OF_NUMBERS, 0.95),
    (tb.likelihoods.StudentT(5.0), 1, OF_NUMBERS[:4], 0.95),
    (tb.likelihoods.Bernoulli(), 1, OF_CLASSES, 0.95),
    (tb.likelihoods.Weighted(tb.likelihoods.Gaussian(0.3)), 1, OF_NUMBERS, None),
    (lambda f: distributions.Laplace(f, 0.5, validate_args=False), 1, OF_NUMBERS, 0.95),
    (lambda f: distributions.Categorical(probs=f.sigmoid(), validate_args=False), 3, OF_CLASSES, 0.95),
]
NAMES = ("likelihood", "outputs", "names", "level")


@pytest.mark.parametrize(NAMES, EVERY_LIKELIHOOD)
def test_every_likelihood(likelihood: Any, outputs: int, names: list[str], level: float | None) -> None:
    posterior, inputs = gaussian(tb.Model(dense(outputs), likelihood)), normal(ROWS, 4)
    prediction = tb.predict(posterior, inputs, draws=DRAWS)
    assert_predicts(posterior.module(DRAWS), prediction, inputs, names)
    assert_predicts(posterior.module(DRAWS, level=None), prediction, inputs, names[:4])


# The modules that are exported are those above, and the graphs of four are seen below, one with quantiles of normals.
# One here is a distribution that the user made.
EXPORTED = [
    pytest.param(*case, marks=() if place == 9 else pytest.mark.study) for place, case in enumerate(EVERY_LIKELIHOOD)
]


@pytest.mark.parametrize(NAMES, EXPORTED)
def test_every_likelihood_is_exported(likelihood: Any, outputs: int, names: list[str], level: float | None) -> None:
    posterior, inputs = gaussian(tb.Model(dense(outputs), likelihood)), normal(ROWS, 4)
    module, prediction = posterior.module(DRAWS, level=level), tb.predict(posterior, inputs, draws=DRAWS)
    names = OF_NUMBERS[:4] if level is None else names
    exported = torch.export.export(module, (inputs,), dynamic_shapes=({0: torch.export.Dim("rows")},))
    assert_predicts(exported.module(), prediction, inputs, names)


OF_REGRESSION = [
    (tb.likelihoods.Gaussian(0.3), 1, 0.95),
    (tb.likelihoods.Gaussian("learned", outputs=2), 2, 0.5),
    (tb.likelihoods.HeteroscedasticGaussian(), 2, 0.95),
    (tb.likelihoods.Poisson(), 1, None),
]


@pytest.mark.parametrize(
    ("likelihood", "outputs", "level"),
    [*(pytest.param(*one, marks=pytest.mark.study) for one in OF_REGRESSION[:2]), *OF_REGRESSION[2:]],
)
def test_graphs_of_numbers_have_no_special_functions_but_the_error_function(
    likelihood: Any, outputs: int, level: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantiles, "_HALVES", 3)  # each has the operations of the others
    posterior, inputs = gaussian(tb.Model(dense(outputs), likelihood)), normal(ROWS, 4)
    exported = torch.export.export(posterior.module(2, level=level), (inputs,))
    used = {str(node.target) for node in exported.graph.nodes if node.op == "call_function"}
    assert not {name for name in used if "erfinv" in name or "gamma" in name}


# `test_graphs_of_numbers_have_no_special_functions_but_the_error_function` pins what may be in the other graphs.
# Bisection repeats a few of their operations so often that it takes most of the time.
SHORT_ONE = [*(pytest.param(*one, marks=pytest.mark.study) for one in OF_REGRESSION[:3]), OF_REGRESSION[3]]


@pytest.mark.slow
@pytest.mark.parametrize(("likelihood", "outputs", "level"), SHORT_ONE)
@pytest.mark.filterwarnings("ignore")
def test_averages_of_numbers_go_to_onnx(likelihood: Any, outputs: int, level: float | None, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    module = gaussian(tb.Model(dense(outputs), likelihood)).module(2, level=level).float()
    at = normal(ROWS, 4).float()
    names, shapes = list(module(at)), ({0: torch.export.Dim("rows", min=1)},)
    program = torch.onnx.export(module, (at,), dynamo=True, dynamic_shapes=shapes, output_names=names, verbose=False)
    program.save(tmp_path / "average.onnx")  # type: ignore[union-attr]
    session = runtime.InferenceSession(tmp_path / "average.onnx")
    actual = session.run(names, {session.get_inputs()[0].name: at[:2].numpy()})
    for tensor, own in zip(actual, module(at[:2]).values(), strict=True):
        assert_close(torch.as_tensor(tensor), own, rtol=1e-4, atol=1e-5)


def test_draws_that_nearly_agree_keep_their_mutual_information() -> None:
    model = tb.Model(dense(), tb.likelihoods.Categorical())
    weights_MD = model.starting_weights([0])[0] + 1e-7 * normal(4, model.layout.size)
    posterior, inputs = tb.Point(model, weights_MD), normal(ROWS, 4)
    expected = tb.predict(posterior, inputs).mutual_information
    assert 0 < float(expected.max()) < 1e-12
    assert_close(posterior.module()(inputs)["mutual_information"], expected, rtol=1e-6, atol=0)


def test_outputs_at_places() -> None:
    posterior = gaussian(tb.Model(double(Transformer(each=True)), tb.likelihoods.Categorical()))
    for length in (3, 5):  # as a loader pads each batch by itself
        prediction = tb.predict(posterior, at := tokens(length=length), draws=2)
        assert_predicts(posterior.module(2), prediction, at, OF_CLASSES)
    net = double(nn.Conv2d(2, CLASSES, 3, padding=1))
    pixels, images = gaussian(tb.Model(net, tb.likelihoods.Categorical(class_axis=1))), normal(2, 2, 4, 5)
    assert pixels.module(2)(images)["probs"].shape == (2, 4, 5, CLASSES)
    assert_predicts(pixels.module(2), tb.predict(pixels, images, draws=2), images, OF_CLASSES)


def test_inputs_in_parts() -> None:
    posterior = gaussian(tb.Model(double(Transformer()), tb.likelihoods.Categorical()))
    mask = tokens() > 6
    for inputs in ({"tokens": tokens(), "mask": mask}, (tokens(), mask)):
        assert_predicts(posterior.module(2), tb.predict(posterior, inputs, draws=2), inputs, OF_CLASSES)


def test_inputs_are_not_written_to() -> None:
    net = double(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, CLASSES)))
    posterior, inputs = gaussian(tb.Model(net, tb.likelihoods.Categorical())), normal(ROWS, 4)
    posterior.module(2)(inputs)
    assert torch.equal(inputs, normal(ROWS, 4))


class Noting(nn.Linear):
    """Notes where its inputs are."""

    seen: list[int]

    def forward(self, input: Tensor) -> Tensor:
        self.seen.append(input.data_ptr())
        return super().forward(input)


def test_inputs_that_are_not_written_to_are_not_copied() -> None:
    """But for the first call, which finds out."""
    net, inputs = nn.Sequential(Noting(4, 5), nn.Tanh(), nn.Linear(5, CLASSES)), normal(ROWS, 4).float()
    net[0].seen = []  # type: ignore[assignment]
    whole = tb.Model(net, tb.likelihoods.Categorical())
    last = tb.Model(net, tb.likelihoods.Categorical(), random="2.*")
    closed = tb.Linearised(tb.Gaussian(last, last.given_weights()[None], Diagonal(torch.ones(1, last.layout.size))))
    for module in (tb.Point(whole, whole.given_weights().expand(3, -1)).module(), closed.module()):
        module(inputs)
        layer = next(part for part in module._network.module.modules() if isinstance(part, Noting))
        layer.seen.clear()
        module(inputs)
        assert set(layer.seen) == {inputs.data_ptr()}


def test_one_draw_is_the_network() -> None:
    model = tb.Model(net := dense(1), tb.likelihoods.Gaussian(0.5))
    actual = tb.Point(model, model.given_weights().unsqueeze(0)).module()(inputs := normal(ROWS, 4))
    with torch.no_grad():
        assert_close(actual["mean"], net(inputs))
    assert_close(actual["variance"], torch.full((ROWS, 1), 0.25))
    assert_close(actual["epistemic"], torch.zeros(ROWS, 1))
    assert_close(actual["upper"] - actual["mean"], 0.5 * 1.959963984540054 * torch.ones(ROWS, 1, dtype=torch.float64))


def test_levels() -> None:
    posterior, inputs = gaussian(tb.Model(dense(1), tb.likelihoods.Gaussian(0.3))), normal(ROWS, 4)
    half = posterior.module(DRAWS, level=0.5)(inputs)
    assert_close(half["lower"], tb.predict(posterior, inputs, draws=DRAWS).quantile(0.25))
    assert list(posterior.module(DRAWS, level=None)(inputs)) == OF_NUMBERS[:4]
    with pytest.raises(ValueError, match="`level` must lie between 0 and 1; got 1"):
        posterior.module(DRAWS, level=1.0)
    with pytest.raises(ValueError, match=r"multiple of the 2 members; got 3\. Try 2 or 4"):
        posterior.module(3)


def test_state_and_copies_and_dtypes() -> None:
    posterior, module, inputs = averaged("convolutional")
    other, at = posterior.module(DRAWS, seed=6), inputs(ROWS)
    assert not list(module.parameters())
    assert module.state_dict()["draws.0.weight"].shape == (DRAWS, 3, 1, 3, 3)
    assert not torch.equal(other(at)["probs"], module(at)["probs"])
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(at)["probs"], module(at)["probs"])
    assert torch.equal(copy.deepcopy(module)(at)["probs"], module(at)["probs"])
    single = copy.deepcopy(module).to(torch.float32)
    assert single(at.float())["probs"].dtype == torch.float32
    assert_close(single(at.float())["probs"].double(), module(at)["probs"], rtol=1e-4, atol=1e-5)
    assert module.to("cpu").train()(at).keys() == single(at.float()).keys()  # batch norm stays in evaluation mode
    module.state_dict()["draws.0.weight"].zero_()
    assert_close(posterior.module(DRAWS, seed=5)(at)["probs"], tb.predict(posterior, at, draws=DRAWS, seed=5).probs)


def test_files(tmp_path: Path) -> None:
    posterior, module, inputs = averaged("convolutional")
    path = module.save(tmp_path / "run" / "module.safetensors")  # type: ignore[operator]
    model = tb.Model(convolutional(), tb.likelihoods.Categorical(), tb.priors.Normal(3.0))
    assert torch.equal(tb.load_module(path, model)(inputs(ROWS))["entropy"], module(inputs(ROWS))["entropy"])
    with pytest.raises(ValueError, match="made under another model: its likelihood is"):
        tb.load_module(path, tb.Model(convolutional(), tb.likelihoods.Categorical(ignore_index=1)))
    with pytest.raises(ValueError, match="does not fit this model"):
        tb.load_module(path, tb.Model(dense(), tb.likelihoods.Categorical()))
    with pytest.raises(ValueError, match="holds a 'gaussian', not a module"):
        tb.load_module(posterior.save(tmp_path / "posterior.safetensors"), model)
    with pytest.raises(ValueError, match="holds a 'module', not a posterior"):
        tb.load(path, model)
    path.write_bytes(path.read_bytes()[:-8] + bytes(8))
    with pytest.raises(ValueError, match="is damaged"):
        tb.load_module(path, model)
