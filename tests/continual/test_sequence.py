"""Sequences: what is carried, written, resumed and refused."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import torchbayes as tb
from tests.covering import with_studies
from tests.laws.cases import normal
from torchbayes.continual.coresets import Coreset
from torchbayes.continual.transfer import matrices
from torchbayes.linalg import Diagonal
from torchbayes.networks import MultiHead, for_head
from torchbayes.posteriors.posterior import Posterior
from torchbayes.randomness.seeds import Purpose, seeded


def rows(count: int, seed: int) -> tuple[Tensor, Tensor]:
    inputs = normal(count, 4, seed=seed, dtype=torch.float32)
    return inputs, (inputs[:, seed % 4] > 0).long()


TASKS = [tb.Task(rows(60, t), rows(40, 4 * 5 + t), f"axis {t}") for t in range(3)]
HEADED = [tb.Task(for_head(task.train, t), for_head(task.test, t)) for t, task in enumerate(TASKS)]
METHODS = {
    "vi": tb.VI(epochs=6, batch_size=20, kl_weight=1.0),
    "ivon": tb.IVON(epochs=6, batch_size=20),
    "bsam": tb.BSAM(epochs=6, batch_size=20),
    "swag": tb.SWAG(epochs=6, batch_size=20, rank=0, per_epoch=3),
    "map": tb.MAP(epochs=4, batch_size=20),
    "swa": tb.SWA(epochs=4, batch_size=20),
    "diagonal": tb.Laplace("diagonal"),
    "kronecker": tb.Laplace("kronecker"),
    "ekfac": tb.Laplace("ekfac"),
}
pytestmark = [
    pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning"),  # of runs that are short
    pytest.mark.usefixtures("unjudged_fits"),
]


def model() -> tb.Model:
    with seeded(Purpose.FACTORY, 1):
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    return tb.Model(net, tb.likelihoods.Categorical(), tb.priors.Normal(1.0))


def headed(prior: Any = None) -> tb.Model:
    with seeded(Purpose.FACTORY, 1):
        net = MultiHead(nn.Sequential(nn.Linear(4, 8), nn.Tanh()), [nn.Linear(8, 2) for _ in range(3)])
    return tb.Model(net, tb.likelihoods.Categorical(), prior or tb.priors.Normal(1.0))


def options(method: Any) -> dict[str, Any]:
    return {"seeker": tb.MAP(epochs=4, batch_size=20)} if isinstance(method, tb.Laplace) else {}


def tensors(posterior: Posterior) -> dict[str, Tensor]:
    return posterior.tensors()


def same(one: tb.Learned, other: tb.Learned) -> None:
    pairs = zip([*one.posteriors, *one.predictors], [*other.posteriors, *other.predictors], strict=True)
    for mine, theirs in pairs:
        assert all(torch.equal(t, tensors(theirs)[n]) for n, t in tensors(mine).items())
    assert one.scores.keys() == other.scores.keys()
    for name, scores_TT in one.scores.items():
        torch.testing.assert_close(scores_TT, other.scores[name], rtol=0, atol=0, equal_nan=True)


# the others carry what these do
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.study] * (n in {"swa", "bsam", "ekfac"})) for n in METHODS]
)
def test_every_method_that_carries_something_learns_a_sequence(name: str) -> None:
    method = METHODS[name]
    actual = tb.sequence(model(), TASKS, method, **options(method))
    accuracy = actual.scores["accuracy"]
    assert accuracy.shape == (3, 3)
    assert torch.isnan(accuracy[0, 2])
    assert torch.isfinite(accuracy.tril()).all()
    assert list(actual.names) == ["axis 0", "axis 1", "axis 2"]
    carries = method.onward.carries
    assert (actual.posteriors[1].model.prior.joint is not None) == (carries == "prior")
    if carries == "prior":
        mean_D = actual.posteriors[0].gaussian.mean_MD[0]  # type: ignore[attr-defined]
        assert torch.equal(actual.posteriors[1].model.prior.joint.loc_D, mean_D)  # type: ignore[union-attr]


CENTRES = tb.coresets.KCentre(5)


@pytest.mark.parametrize(
    ("name", "coreset"),
    with_studies(
        [("map", None), ("diagonal", CENTRES)],
        ("vi", "map", "diagonal"),
        (None, CENTRES),
    ),
)
def test_an_interrupted_sequence_goes_on_as_if_it_had_not_been(
    name: str, coreset: Coreset | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = METHODS[name]
    settings: dict[str, Any] = {"coreset": coreset}
    settings |= options(method)
    whole = tb.sequence(model(), TASKS, method, **settings)
    real, left = tb.fit, [4 if name == "diagonal" else 2]

    def stopping(*args: Any, **more: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return real(*args, **more)

    monkeypatch.setattr("torchbayes.continual.learning.fit", stopping)
    with pytest.raises(KeyboardInterrupt):
        tb.sequence(model(), TASKS, method, directory=tmp_path, **settings)
    monkeypatch.undo()
    same(tb.sequence(model(), TASKS, method, directory=tmp_path, resume=True, **settings), whole)
    same(tb.sequence(model(), TASKS, method, directory=tmp_path, resume=True, **settings), whole)


def test_tasks_can_be_added_later(tmp_path: Path) -> None:
    method = METHODS["vi"]
    tb.sequence(model(), TASKS[:2], method, directory=tmp_path)
    with pytest.raises(ValueError, match="already holds a sequence"):
        tb.sequence(model(), TASKS, method, directory=tmp_path)
    with pytest.raises(ValueError, match="belongs to another run: its seed is 0, now 1"):
        tb.sequence(model(), TASKS, method, directory=tmp_path, resume=True, seed=1)
    other = tb.Task(TASKS[0].train, TASKS[1].test, TASKS[0].name)
    with pytest.raises(ValueError, match="belongs to another run: its checksums_of_test_rows is"):
        tb.sequence(model(), [other, *TASKS[1:]], method, directory=tmp_path, resume=True)
    actual = tb.sequence(model(), iter(TASKS), method, directory=tmp_path, resume=True)
    same(actual, tb.sequence(model(), TASKS, method))
    text = (tmp_path / "sequence.json").read_text()
    (tmp_path / "sequence.json").write_text(text.replace("0.", "1.", 1))
    with pytest.raises(ValueError, match="scores are then taken anew"):
        tb.sequence(model(), TASKS, method, directory=tmp_path, resume=True)
    (tmp_path / "sequence.json").unlink()
    same(tb.sequence(model(), TASKS, method, directory=tmp_path, resume=True), actual)
    path = tmp_path / "task_2" / "fit" / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match="checkpoint"):
        tb.sequence(model(), TASKS, method, directory=tmp_path, resume=True)


@pytest.mark.parametrize("name", ["vi", pytest.param("ivon", marks=pytest.mark.study), "map"])
def test_a_task_leaves_the_heads_of_others_as_they_were(name: str) -> None:
    actual = tb.sequence(headed(tb.priors.Normal(0.5)), HEADED, METHODS[name])
    where = actual.posteriors[0].model.layout.slices

    def of(t: int, head: int, what: str = "mean_MD") -> Tensor:
        posterior: Any = actual.posteriors[t]
        own = posterior.weights_MD if name == "map" else posterior.mean_MD
        own = posterior.covariance.diagonal() if what == "variance" else own
        return torch.cat([own[0, where[f"heads.{head}.{part}"]] for part in ("weight", "bias")])

    assert torch.equal(of(0, 0), of(2, 0))
    assert torch.equal(of(1, 1), of(2, 1))
    assert not torch.equal(of(0, 1), of(1, 1))
    if name != "map":
        assert torch.equal(of(0, 0, "variance"), of(2, 0, "variance"))
        for head in (1, 2):  # not used yet, so they are as the prior has them
            assert torch.equal(of(0, head), torch.zeros(18))
            assert torch.equal(of(0, head, "variance"), torch.full((18,), 0.25))
        assert (of(2, 2, "variance") < 0.25).any()


def test_rows_go_through_their_own_head() -> None:
    net = MultiHead(nn.Linear(4, 8), [nn.Linear(8, 2), nn.Linear(8, 2)])
    inputs = normal(5, 4, dtype=torch.float32)
    heads = torch.tensor([0, 1, 1, 0, 1])
    expected = torch.stack([net.heads[int(h)](net.body(x)) for h, x in zip(heads, inputs, strict=True)])
    torch.testing.assert_close(net(inputs, heads), expected)
    (same_inputs, actual), targets = for_head((inputs, heads), 1)
    assert same_inputs is inputs
    assert targets is heads
    assert actual.tolist() == [1] * 5


def test_centres_are_the_farthest_rows() -> None:
    inputs = normal(40, 3, seed=5)
    actual = tb.coresets.KCentre(6, first=3).choose(40, lambda: inputs, seed=0).tolist()
    expected = [3]
    while len(expected) < 6:  # by the definition
        distances = [min(float((x - inputs[c]).norm()) for c in expected) for x in inputs]
        expected.append(max(range(40), key=lambda n: distances[n]))
    assert actual == expected
    equal = tb.coresets.KCentre(3).choose(4, lambda: torch.ones(4, 2), seed=0).tolist()
    assert equal == [0, 1, 2]
    one, other = (tb.coresets.Random(9).choose(40, lambda: inputs, seed=s).tolist() for s in (1, 2))
    assert len({*one}) == len({*other}) == 9
    assert one != other


def test_scores_are_those_of_the_definitions() -> None:
    table = [[0.9, 0.5, math.nan], [0.8, 0.85, 0.4], [0.6, 0.7, 0.95]]
    cells = {(t, s): {"accuracy": v} for t, row in enumerate(table) for s, v in enumerate(row) if not math.isnan(v)}
    untrained = {"accuracy": torch.tensor([0.1, 0.2, 0.3])}
    actual = tb.Learned((), (), ("a", "b", "c"), matrices(cells, 3), untrained)
    torch.testing.assert_close(actual.average(), torch.tensor([0.9, 0.825, 0.75]).double())
    assert actual.backward_transfer() == pytest.approx(((0.6 - 0.9) + (0.7 - 0.85)) / 2)
    assert actual.forward_transfer() == pytest.approx(((0.5 - 0.2) + (0.4 - 0.3)) / 2)
    with pytest.raises(ValueError, match="`metric`"):
        actual.average("rmse")


@pytest.mark.parametrize("kind", [TensorDataset, "loader"])
def test_rows_of_data_sets_can_be_set_aside(kind: Any) -> None:
    def of(data: tuple[Tensor, Tensor]) -> Any:
        dataset = TensorDataset(*data)
        return DataLoader(dataset, batch_size=20, shuffle=True) if kind == "loader" else dataset

    tasks = [tb.Task(of(task.train), of(task.test)) for task in TASKS[:2]]
    actual = tb.sequence(model(), tasks, tb.MAP(epochs=2, batch_size=20), coreset=tb.coresets.Random(7))
    assert torch.isfinite(actual.scores["accuracy"]).all()
    assert not torch.equal(tensors(actual.predictors[1])["weights_MD"], tensors(actual.posteriors[1])["weights_MD"])


def once() -> Iterator[Any]:
    yield TASKS[0].train


@pytest.mark.parametrize(
    ("tasks", "method", "more", "said"),
    [
        (TASKS, tb.HMC(), {}, "HMC cannot be the prior of the next task"),
        (TASKS, tb.SGLD(), {}, "SGLD cannot be the prior"),
        (TASKS, tb.VI("radial"), {}, "VI cannot be the prior"),
        (TASKS, tb.OnlineLaplace(), {}, "OnlineLaplace cannot be"),
        (TASKS, tb.VI(members=2), {}, "with 2 members gives a mixture"),
        ([], tb.MAP(), {}, "at least one task"),
        (TASKS[0].train, tb.MAP(), {}, "task 1 is a tensor"),
        (TASKS[0].train[0], tb.MAP(), {}, "list of data"),
        ([TASKS[0], rows(0, 1)], tb.MAP(), {}, "empty"),
        ([TASKS[0], None], tb.MAP(), {}, "data"),
        ([TASKS[0], (normal(5, 7, dtype=torch.float32), torch.zeros(5).long())], tb.MAP(), {}, "network"),
        ([TASKS[0], (rows(9, 1)[0], torch.full((9,), 5))], tb.MAP(), {}, "class"),
        ([TASKS[0], (torch.full((9, 4), math.nan), torch.zeros(9).long())], tb.MAP(), {}, "NaN"),
        ([TASKS[0], once()], tb.MAP(), {}, "only once"),
        (TASKS, tb.MAP(), {"coreset": tb.coresets.Random(60)}, "axis 0 has 60"),
        (TASKS, tb.MAP(), {"coreset": 3}, "coresets.Random"),
        ([[TASKS[0].train]], tb.MAP(), {"coreset": tb.coresets.Random(3)}, "cannot be set aside"),
        (TASKS, tb.Laplace(), {"seeker": tb.HMC()}, "must find networks"),
        (TASKS, tb.MAP(), {"resume": True}, "needs the `directory`"),
    ],
)
def test_what_cannot_be_learned_is_refused_before_anything_is(
    tasks: Any, method: Any, more: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchbayes.continual.learning.fit", lambda *_, **__: pytest.fail("something was fitted"))
    with pytest.raises((TypeError, ValueError), match=said):
        tb.sequence(model(), tasks, method, **more)


def test_a_task_may_be_judged_on_what_it_learns_from() -> None:
    same_rows = rows(30, 1)
    actual = tb.sequence(model(), [tb.Task(same_rows, same_rows), tb.Task(same_rows)], tb.MAP(epochs=2))
    assert actual.scores["accuracy"].shape == (2, 2)
    torch.testing.assert_close(actual.scores["accuracy"][:, 0], actual.scores["accuracy"][:, 1])


def test_tasks_of_one_row_and_several_networks() -> None:
    actual = tb.sequence(model(), [rows(1, 0), rows(1, 1)], tb.MAP(members=3, epochs=2))
    assert actual.posterior.members == 3
    assert actual.scores["accuracy"].shape == (2, 2)


def test_a_weight_that_does_not_vary_cannot_be_a_prior() -> None:
    method = tb.SWAG(epochs=4, per_epoch=2, batch_size=20, optimizer=tb.SGD(lr=0.01, momentum=0.0))
    free = headed(tb.priors.Flat())
    with pytest.raises(ValueError, match=r"no spread for .*heads\.1\.weight"):
        tb.sequence(free, HEADED, method)


def test_variational_inference_begins_at_a_gaussian() -> None:
    mean_MD, variance_MD = normal(1, 58, dtype=torch.float32), torch.linspace(0, 1e-3, 58).unsqueeze(0)
    start = tb.Gaussian(model(), mean_MD, Diagonal(variance_MD))
    method = tb.VI(epochs=1, optimizer=tb.Adam(1e-9), kl_weight=1.0, batch_size=100)
    actual: Any = tb.fit(model(), TASKS[0].train, method, start=start)
    torch.testing.assert_close(actual.mean_MD, mean_MD)
    own = torch.tensor(0.02**2)
    expected = torch.where(variance_MD > 0, variance_MD.minimum(own), own)
    torch.testing.assert_close(actual.covariance.diagonal(), expected)
    with pytest.raises(ValueError, match="point posterior"):
        tb.fit(model(), TASKS[0].train, tb.MAP(epochs=1), start=start)
