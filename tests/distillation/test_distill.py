"""Students against teachers that are known, on the rows where they asked, and where students are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from tests.oracles import assert_close, normal
from torchbayes import distillation
from torchbayes.networks import mlp
from torchbayes.posteriors.files import read_tensors, write_tensors

pytestmark = [
    pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning"),  # of students that are trained for a moment
    pytest.mark.filterwarnings("ignore:members start at what initialisers give"),
]
_SHORT = tb.MAP(epochs=2)
_LONG = tb.MAP(epochs=1500, optimizer=tb.Adam(0.01))
_INPUTS = normal(30, 3).float()


def ensemble(model: tb.Model, members: int = 4) -> tb.Point:
    """Return an ensemble of untrained networks."""
    weights_MD, buffers_M = model.starting_weights(tb.member_seeds(0, members))
    return tb.Point(model, weights_MD, buffers_M=buffers_M or None, statistics_known=True)


def classifier(outputs: int = 4) -> tb.Model:
    """Return a model of classes."""
    return tb.Model(mlp(3, outputs, hidden=(8,)), tb.likelihoods.Categorical())


@pytest.mark.slow
# Four functions have no Gaussian logits: there the mutual information is a compromise with the variances of the logits.
@pytest.mark.parametrize(("head", "apart"), [("gaussian", 0.15), ("dirichlet", 0.05)])
def test_an_interpolating_student_repeats_its_teacher(head: Any, apart: float) -> None:
    inputs = 2 * normal(6, 3)
    model = tb.Model(mlp(3, 4, hidden=(8,)).double(), tb.likelihoods.Categorical())
    teacher = ensemble(model)
    network = mlp(3, 8 if head == "gaussian" else 4, hidden=(40,)).double()
    student = tb.distill(teacher, inputs, network, head=head, mixtures=0, method=_LONG)
    learned, taught = student.predict(inputs), tb.predict(teacher, inputs)
    assert_close(learned.probs, taught.probs, rtol=0, atol=0.01)
    assert_close(learned.mutual_information, taught.mutual_information, rtol=apart, atol=2e-3)
    assert_close(learned.entropy - learned.expected_entropy, learned.mutual_information, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("rows", "mixtures", "held_out"), [(30, None, 17 * 30), (30, 0, None), (600, None, None)])
def test_few_inputs_are_judged_by_asking_the_teacher_at_others(
    monkeypatch: pytest.MonkeyPatch, rows: int, mixtures: int | None, held_out: int | None
) -> None:
    given: dict[str, Any] = {}

    def recorded(model: tb.Model, pair: Any, method: tb.MAP, *, validation: Any, seed: int) -> Any:
        given.update(pair=pair, validation=validation)
        return tb.fit(model, pair, method, seed=seed, callbacks=())

    monkeypatch.setattr("torchbayes.distillation.distill.fit", recorded)
    teacher, inputs = ensemble(classifier()), normal(rows, 3).float()
    tb.distill(teacher, inputs, method=_SHORT, mixtures=mixtures)
    assert torch.equal(given["pair"][0][:rows], inputs)
    assert len(given["pair"][0]) == rows * (5 if mixtures is None else 1)
    assert (given["validation"] and len(given["validation"][0])) == held_out


@pytest.mark.slow
def test_a_linear_gaussian_regression_is_repeated() -> None:
    inputs, noise, prior = normal(12, 1), 0.3, 1.5
    targets = 0.7 * inputs + noise * normal(12, 1, seed=1)
    line = nn.Linear(1, 1, bias=False).double()
    precision = inputs.square().sum() / noise**2 + prior**-2
    slope = float((inputs * targets).sum() / noise**2 / precision)
    line.weight.data.fill_(slope)
    model = tb.Model(line, tb.likelihoods.Gaussian(noise), tb.priors.Normal(prior))
    teacher = tb.fit(model, (inputs, targets), tb.Laplace(structure="dense"), start=line, callbacks=())
    student = tb.distill(teacher, inputs, mlp(1, 3, hidden=(40,)).double(), mixtures=0, method=_LONG)
    learned = student.predict(inputs)
    assert_close(learned.mean, slope * inputs, rtol=0, atol=0.02)
    assert_close(learned.aleatoric, torch.full_like(inputs, noise**2), rtol=0.06)
    assert_close(learned.epistemic, inputs.square() / precision, rtol=0, atol=5e-3)


_MODELS: dict[str, Callable[[], tb.Model]] = {
    "classes": classifier,
    "labels": lambda: tb.Model(mlp(3, 2, hidden=(8,)), tb.likelihoods.Bernoulli()),
    "numbers": lambda: tb.Model(mlp(3, 2, hidden=(8,)), tb.likelihoods.Gaussian("learned", outputs=2)),
    "own noise": lambda: tb.Model(mlp(3, 2, hidden=(8,)), tb.likelihoods.HeteroscedasticGaussian()),
    "counts": lambda: tb.Model(mlp(3, 1, hidden=(8,)), tb.likelihoods.Poisson()),
    "batch norm": lambda: tb.Model(
        nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4)), tb.likelihoods.Categorical()
    ),
    "frozen body": lambda: tb.Model(
        nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4)), tb.likelihoods.Categorical(), random="2.weight"
    ),
}


@pytest.mark.parametrize("name", _MODELS)
def test_module_and_file_repeat_the_student(name: str, tmp_path: Path) -> None:
    model = _MODELS[name]()
    student = tb.distill(ensemble(model), _INPUTS, method=_SHORT)
    predictive, module = student.predict(_INPUTS), student.module()
    for key, value in module(_INPUTS).items():
        if hasattr(predictive, key):
            assert_close(value, getattr(predictive, key), rtol=1e-4, atol=1e-5)
    again = distillation.load(student.save(tmp_path / "student.safetensors"), model)
    assert torch.equal(again.predict(_INPUTS).outputs_SBK, predictive.outputs_SBK)
    loaded = tb.load_module(module.save(tmp_path / "module.safetensors"), student.model)
    assert all(torch.equal(loaded(_INPUTS)[key], value) for key, value in module(_INPUTS).items())
    exported = torch.export.export(module, (_INPUTS[:4],), dynamic_shapes=({0: torch.export.Dim("rows", min=1)},))
    for key, value in exported.module()(_INPUTS).items():
        assert_close(value, module(_INPUTS)[key], rtol=1e-4, atol=1e-5)


class _Tokens(nn.Module):
    """One output for each token, of tokens given by name."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.last = nn.Embedding(11, 6), nn.Linear(6, 4)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits (B, T, 4)."""
        return self.last(self.embedding(ids))


@pytest.mark.parametrize("head", ["gaussian", "dirichlet"])
def test_places_of_a_row_have_predictions_of_their_own(head: Any) -> None:
    ids = torch.randint(11, (20, 5), generator=torch.Generator().manual_seed(0))
    model = tb.Model(_Tokens(), tb.likelihoods.Categorical(ignore_index=-100))
    student = tb.distill(ensemble(model), {"ids": ids}, head=head, method=_SHORT)
    assert student.predict({"ids": ids}).mutual_information.shape == (20, 5)
    labels = torch.full((20, 5), -100)
    labels[:, 1] = 2
    scored = tb.evaluate(student, ({"ids": ids}, labels))
    assert_close(scored.metrics["nll"], -student.predict({"ids": ids}).probs[:, 1, 2].log().mean(), rtol=1e-5)


def test_pixels_with_classes_on_axis_one() -> None:
    images = normal(12, 3, 4, 4).float()
    model = tb.Model(nn.Conv2d(3, 5, 3, padding=1), tb.likelihoods.Categorical(class_axis=1))
    student = tb.distill(ensemble(model), images, method=_SHORT)
    assert student.predict(images).probs.shape == (12, 4, 4, 5)


def test_the_same_seed_gives_the_same_student() -> None:
    teacher = ensemble(classifier())
    first, second, other = (
        tb.distill(teacher, _INPUTS, method=_SHORT, seed=seed).predict(_INPUTS).probs for seed in (3, 3, 4)
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_a_student_takes_the_place_of_a_posterior() -> None:
    teacher, labels = ensemble(classifier()), torch.arange(30) % 4
    student = tb.distill(teacher, _INPUTS, method=_SHORT)
    predictive = student.predict(_INPUTS)
    assert_close(tb.uncertainty(student, _INPUTS).mutual_information, predictive.mutual_information)
    assert_close(tb.evaluate(student, (_INPUTS, labels)).log_prob, predictive.log_prob(labels))
    sets = tb.conformal.calibrate(student, (_INPUTS, labels), coverage=0.8).sets(predictive)
    assert sets.shape == (30, 4)
    assert "gaussian" in repr(student)
    again = tb.distill(student, _INPUTS, method=_SHORT)  # a student teaches too
    assert again.predict(_INPUTS).probs.shape == (30, 4)


def test_fidelity_of_the_teacher_to_itself_and_of_halves() -> None:
    teacher, labels = ensemble(classifier(), 8), torch.arange(30) % 4
    student = tb.distill(teacher, _INPUTS, method=_SHORT)
    report = student.fidelity({"inputs": _INPUTS, "scored": (_INPUTS, labels)})
    taught, learned = tb.predict(teacher, _INPUTS), student.predict(_INPUTS)
    numbers = report.numbers["inputs"]
    assert_close(numbers["tv"], 0.5 * (taught.probs - learned.probs).abs().sum(-1).mean(), rtol=1e-5)
    mutual, known = learned.mutual_information, taught.mutual_information
    assert_close(numbers["mi_ratio"], mutual.mean() / known.mean(), rtol=1e-5)
    variances = [each.outputs_SBK.softmax(-1).var(0, correction=0).sum(-1) for each in (learned, taught)]
    assert_close(numbers["variance_ratio"], variances[0].mean() / variances[1].mean(), rtol=1e-5)
    ranks = torch.stack([mutual.argsort().argsort(), known.argsort().argsort()]).double()
    assert_close(numbers["mi_rank"], torch.corrcoef(ranks)[0, 1])
    weights_SD = teacher.sample(8)
    halves = [tb.predict(tb.Functions(teacher.model, each), _INPUTS).probs for each in weights_SD.chunk(2)]
    floor = 0.5 * (halves[0] - halves[1]).abs().sum(-1).mean()
    assert_close(report.numbers["inputs (floor)"]["tv"], floor, rtol=1e-5)
    assert_close(report.numbers["scored"]["nll"], -learned.log_prob(labels).double().mean(), rtol=1e-5)
    assert_close(report.numbers["scored (teacher)"]["nll"], -taught.log_prob(labels).double().mean(), rtol=1e-5)
    assert report.latency_ratio == report.latency["teacher"] / report.latency["student"] > 0
    assert f"{1000 * report.latency['teacher']:.3g} ms by the teacher" in report.text()
    assert "| inputs (floor) |" in report.text()
    page: Any = report
    assert "inputs (floor)" in page._repr_html_()


def test_fidelity_of_numbers() -> None:
    teacher = ensemble(_MODELS["numbers"](), 8)
    student = tb.distill(teacher, _INPUTS, method=_SHORT)
    numbers = student.fidelity({"inputs": _INPUTS}).numbers["inputs"]
    taught, learned = tb.predict(teacher, _INPUTS), student.predict(_INPUTS)
    assert_close(numbers["gap"], ((learned.mean - taught.mean).abs() / taught.variance.sqrt()).mean(), rtol=1e-5)
    assert_close(numbers["epistemic_ratio"], learned.epistemic.mean() / taught.epistemic.mean(), rtol=1e-5)


def _tied() -> tb.Model:
    network = nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 11, bias=False))
    network[1].weight = network[0].weight
    return tb.Model(network, tb.likelihoods.Categorical())


_TOKENS = torch.arange(20).view(10, 2) % 11
_REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "one function": (lambda: tb.distill(ensemble(classifier(), 1), _INPUTS), "single function"),
    "one row": (lambda: tb.distill(ensemble(classifier()), _INPUTS[:1]), "at least 2 rows"),
    "NaN": (lambda: tb.distill(ensemble(classifier()), _INPUTS * torch.nan), "must be finite"),
    "members": (lambda: tb.distill(ensemble(classifier()), _INPUTS, method=tb.MAP(members=2)), "one member"),
    "outputs": (lambda: tb.distill(ensemble(classifier()), _INPUTS, mlp(3, 4)), "must give 8 outputs; it gives 4"),
    "tied": (lambda: tb.distill(ensemble(_tied()), _TOKENS), "shares its weights"),
    "mixed": (lambda: tb.distill(ensemble(_tied()), _TOKENS, mixtures=2), "cannot be mixed"),
    "beta": (lambda: tb.distill(ensemble(_MODELS["labels"]()), _INPUTS, head="dirichlet"), "is for the Categorical"),
}


@pytest.mark.parametrize("name", _REFUSED)
def test_what_is_refused(name: str) -> None:
    call, message = _REFUSED[name]
    with pytest.raises(ValueError, match=message):
        call()


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    model = classifier()
    student = tb.distill(ensemble(model), _INPUTS, method=_SHORT)
    path = student.save(tmp_path / "student.safetensors")
    with pytest.raises(ValueError, match="does not fit this model"):
        distillation.load(path, tb.Model(mlp(3, 4, hidden=(9,)), tb.likelihoods.Categorical()))
    with pytest.raises(ValueError, match="made under another model"):
        distillation.load(path, tb.Model(mlp(3, 4, hidden=(8,)), tb.likelihoods.Poisson()))
    with pytest.raises(ValueError, match="Leave it out"):
        distillation.load(path, model, mlp(3, 8))
    with pytest.raises(ValueError, match="not a student"):
        distillation.load(ensemble(model).save(tmp_path / "point.safetensors"), model)
    with pytest.raises(ValueError, match="does not hold its teacher"):
        distillation.load(path, model).fidelity({"inputs": _INPUTS})
    tensors, header = read_tensors(path)
    vast = {**header, "build": {**header["build"], "size": 10**15}}  # which would not fit in memory
    with pytest.raises(ValueError, match="its weights are not those of the network that it describes"):
        distillation.load(write_tensors(tmp_path / "vast.safetensors", tensors, vast), model)
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(ValueError, match="damaged"):
        distillation.load(path, model)


# The dense network stands for all, as in tests/posteriors/modules/test_modules.py.
@pytest.mark.slow
@pytest.mark.parametrize(("name", "head"), [("classes", "gaussian"), ("classes", "dirichlet"), ("numbers", "gaussian")])
@pytest.mark.filterwarnings("ignore")
def test_a_student_goes_to_onnx(name: str, head: Any, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    module = tb.distill(ensemble(_MODELS[name]()), _INPUTS, head=head, method=_SHORT).module(level=None)
    names, shapes = list(module(_INPUTS)), ({0: torch.export.Dim("rows", min=1)},)
    program: Any = torch.onnx.export(
        module, (_INPUTS,), dynamo=True, dynamic_shapes=shapes, output_names=names, verbose=False
    )
    program.save(tmp_path / "student.onnx")
    session = runtime.InferenceSession(tmp_path / "student.onnx")
    given = session.run(names, {session.get_inputs()[0].name: _INPUTS[:2].numpy()})
    for value, expected in zip(given, module(_INPUTS[:2]).values(), strict=True):
        assert_close(torch.as_tensor(value), expected, rtol=1e-4, atol=1e-5)
