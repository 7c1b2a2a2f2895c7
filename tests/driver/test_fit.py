"""The driver: what it refuses, how it fails, what it writes, which callbacks it calls."""

from __future__ import annotations

import json
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.laws.cases import (
    METHODS,
    VARIANTS,
    assert_same_tensors,
    losses,
    made,
    model_of,
    normal,
    rows_of,
    with_variants_as_studies,
)
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler, TensorDataset

import torchbayes as tb
from torchbayes.methods.protocol import Method

INPUTS, TARGETS = rows_of()
pytestmark = pytest.mark.usefixtures("unjudged_fits")

SHORT = {"epochs": 4, "batch_size": 6, "plan": "loop"}


def spoiled(tensor: Tensor, value: float) -> Tensor:
    tensor = tensor.clone()
    tensor[-1] = value
    return tensor


def short(**settings: Any) -> tb.MAP:
    return tb.MAP(**{**SHORT, **settings})


def regression(outputs: int = 1) -> tb.Model:
    return tb.Model(nn.Linear(4, outputs).double(), tb.likelihoods.Gaussian(0.5))


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ((INPUTS[:0], TARGETS[:0]), ValueError, "the data are empty"),
        (TensorDataset(INPUTS[:0], TARGETS[:0]), ValueError, "the data are empty"),
        ([], ValueError, "the data are empty"),
        ((spoiled(INPUTS, float("nan")), TARGETS), ValueError, "inputs must be finite; 4 of 96 values"),
        ((spoiled(INPUTS, float("inf")), TARGETS), ValueError, "inputs must be finite; 4 of 96 values"),
        ((INPUTS, spoiled(TARGETS, 3)), ValueError, r"must lie in 0\.\.2.*got 3"),
        ((INPUTS, spoiled(TARGETS, -1)), ValueError, r"must lie in 0\.\.2.*got -1"),
        ((INPUTS, TARGETS.double()), TypeError, r"int64; got torch.float64. Use targets.long\(\)"),
        ((INPUTS, TARGETS[:-1]), ValueError, "equally many rows; got 24, 23"),
        ((INPUTS, TARGETS[:5]), ValueError, "equally many rows"),
        ((INPUTS, TARGETS.unsqueeze(1)), ValueError, r"must have shape \(8,\); got \(8, 1\)"),
        ((INPUTS[:, :3], TARGETS), ValueError, r"cannot take inputs of shape \(8, 3\)"),
        (iter([(INPUTS, TARGETS)]), TypeError, "only once"),
        ((batch for batch in [(INPUTS, TARGETS)]), TypeError, "only once"),
        ([INPUTS], TypeError, "cannot find inputs and targets in a batch of type Tensor"),
        (7, TypeError, "`data` must be a tuple"),
        (DataLoader(TensorDataset(INPUTS, TARGETS), sampler=SubsetRandomSampler([0, 1, 0])), TypeError, "SubsetRandom"),
        (DataLoader(TensorDataset(INPUTS, TARGETS), sampler=SubsetRandomSampler([])), ValueError, "the data are empty"),
    ],
)
def test_data_that_do_not_fit_are_refused(data: Any, error: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=message):
        tb.fit(model_of(), data, short(), directory=tmp_path / "run", callbacks=())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("targets", "error", "message"),
    [
        (spoiled(normal(24), float("nan")), ValueError, "targets must be finite; 1 of 24"),
        (normal(24, 2), ValueError, r"must have shape \(8, 1\)"),
        (TARGETS, TypeError, r"floating point; got torch.int64. Use targets.float\(\)"),
    ],
)
def test_regression_targets_that_do_not_fit_are_refused(targets: Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        tb.fit(regression(), (INPUTS, targets), short(), callbacks=())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"members": 0}, "`members` must be a whole number of at least 1; got 0"),
        ({"epochs": 0}, "`epochs`"),
        ({"epochs": 1.5}, "`epochs` must be a whole number of at least 1; got 1.5"),
        ({"batch_size": -1}, "`batch_size`"),
        ({"members": True}, "`members`"),
    ],
)
@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS.keys())
def test_settings_that_make_no_sense_are_refused(
    make: Callable[..., Method], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make(**settings)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (torch.zeros(3), "`start` must hold 51 weights for 1 or 2 members; got shape"),
        (torch.zeros(3, 51), r"`start` must hold 51 weights for 1 or 2 members; got shape \(3, 51\)"),
        (nn.Linear(4, 3), "`start` does not fit the model's network: `0.weight` is missing"),
    ],
)
def test_starts_that_do_not_fit_are_refused_and_nothing_is_written(start: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        tb.fit(model_of(), rows_of(), short(members=2), start=start, directory=tmp_path / "run", callbacks=())
    assert not (tmp_path / "run").exists()
    tb.fit(model_of(), rows_of(), short(members=2), directory=tmp_path / "run", callbacks=())


def test_starts_are_where_the_run_begins() -> None:
    """With a learning rate of nearly zero the weights stay at the start."""
    still, model = short(members=2, optimizer=tb.SGD(lr=1e-300)), model_of()
    weights_MD = normal(2, 51, seed=9)
    for start, expected in [
        (weights_MD, weights_MD),
        (weights_MD[0], weights_MD[:1].expand(2, -1)),
        (tb.Point(model, weights_MD), weights_MD),
        (made("mlp"), model.network.weights().expand(2, -1)),
    ]:
        actual = tb.fit(model, rows_of(), still, start=start, callbacks=())
        torch.testing.assert_close(actual.sample(2), expected, rtol=0, atol=0)


def worthless() -> Any:
    """A posterior with a known problem."""
    return tb.fit(model_of(), rows_of(), short(), callbacks=()).with_problems(["it has diverged"])


def test_a_start_that_is_known_to_be_worthless_is_said_to_be() -> None:
    """A run goes its own way from there; a Laplace approximation stands on it."""
    start: Any = worthless()
    with pytest.warns(tb.ProblemWarning, match="^`start` should not be trusted: it has diverged"):
        assert "it has diverged" not in tb.fit(model_of(), rows_of(), short(), start=start, callbacks=()).problems
    with pytest.warns(tb.ProblemWarning, match="^`start` should not be trusted") as caught:
        actual = tb.fit(model_of(), rows_of(), tb.Laplace(check_mode=False, prior="model"), start=start, callbacks=())
    assert actual.problems == ("it has diverged",)
    assert [str(w.message) for w in caught if "diverged" in str(w.message)] == [str(caught[0].message)]


class Where:
    """A path that is no `Path`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __fspath__(self) -> str:
        return str(self.path)


def test_a_directory_may_be_any_path(tmp_path: Path) -> None:
    tb.fit(model_of(), rows_of(), short(), directory=Where(tmp_path), callbacks=())
    assert (tmp_path / "posterior.safetensors").is_file()


def test_start_from_a_network_takes_its_batch_norm_statistics() -> None:
    module, model = made("conv_batch_norm"), model_of("conv_batch_norm")
    module.get_buffer("1.running_mean").add_(2.0)
    still, data = short(optimizer=tb.SGD(lr=1e-300), epochs=1, batch_size=24), rows_of("conv_batch_norm")
    actual = tb.fit(model, data, still, start=module, callbacks=())
    module.train()(data[0])  # one pass in training mode moves the statistics as the one step did
    assert actual.buffers_M is not None
    torch.testing.assert_close(actual.buffers_M["1.running_mean"][0], module.get_buffer("1.running_mean"))
    torch.testing.assert_close(actual.buffers_M["1.running_var"][0], module.get_buffer("1.running_var"))


def test_an_existing_directory_is_kept_unless_resumed(tmp_path: Path) -> None:
    tb.fit(model_of(), rows_of(), short(), directory=tmp_path, callbacks=())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=r"already holds a run. Pass resume=True"):
        tb.fit(model_of(), rows_of(), short(), directory=tmp_path, callbacks=())
    with pytest.raises(ValueError, match="needs the `directory`"):
        tb.fit(model_of(), rows_of(), short(), resume=True, callbacks=())
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a short run."""
    directory = tmp_path_factory.mktemp("finished")
    tb.fit(model_of(), rows_of(), short(), directory=directory, callbacks=())
    return directory


@pytest.mark.parametrize("checkpoint", [True, False])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 9}, "its method.epochs is 4, now 9"),
        ({"optimizer": tb.Adam(lr=0.5)}, "its method.optimizer.lr is 0.003, now 0.5"),
        ({"members": 2}, "its method.members is 1, now 2"),
        ({"seed": 5}, "its seed is 0, now 5"),
        ({"rows": 20}, "its num_data is 24, now 20"),
        ({"network": "tied"}, "its layout"),
    ],
)
def test_resuming_with_other_settings_names_the_difference(
    change: dict[str, Any], message: str, checkpoint: bool, finished: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    if not checkpoint:
        (tmp_path / "checkpoint.safetensors").unlink()
    before = (tmp_path / "config.json").read_text()
    fields = dict(change)
    seed, rows, network = fields.pop("seed", 0), fields.pop("rows", 24), fields.pop("network", "mlp")
    inputs, targets = rows_of(network)
    data = (inputs[:rows], targets[:rows])
    with pytest.raises(ValueError, match=message):
        tb.fit(model_of(network), data, short(**fields), seed=seed, directory=tmp_path, resume=True, callbacks=())
    assert (tmp_path / "config.json").read_text() == before


@pytest.mark.parametrize("damage", ["truncated", "random", "empty", "posterior"])
def test_a_damaged_checkpoint_is_refused(damage: str, finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "checkpoint.safetensors"
    whole = path.read_bytes()
    path.write_bytes(
        {
            "truncated": whole[: len(whole) // 2],
            "random": bytes(range(256)) * 8,
            "empty": b"",
            "posterior": (tmp_path / "posterior.safetensors").read_bytes(),
        }[damage]
    )
    with pytest.raises(ValueError, match="is not a checkpoint" if damage == "posterior" else "is damaged"):
        tb.fit(model_of(), rows_of(), short(), directory=tmp_path, resume=True, callbacks=())


@pytest.mark.parametrize("make", with_variants_as_studies(METHODS, VARIANTS))
def test_divergence_names_step_and_member_and_keeps_the_last_finite_state(
    make: Callable[..., Method], tmp_path: Path
) -> None:
    """One member starts where the prior overflows; the others are well."""
    model, start, method = model_of(), normal(3, 51, seed=9), make(members=3, **SHORT)
    start[1, 0] = 1e200
    with pytest.raises(tb.DivergedError, match=r"diverged at step 0 of 16: the loss of member 1 is inf.*learning rate"):
        tb.fit(model, rows_of(), method, start=start, directory=tmp_path, callbacks=())
    kept = load_file(tmp_path / "checkpoint.safetensors")
    (weights, *_) = [t for end in ("weights_MD", "mean_MD") for n, t in kept.items() if n.endswith(end)]
    torch.testing.assert_close(weights[:, :51], start, rtol=0, atol=0)  # other parameters of a distribution follow
    shelf = ["draws.bin", "draws.json"] if method.needs.draws else []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint.safetensors", "config.json", *shelf]


def test_a_huge_learning_rate_diverges_readably(tmp_path: Path) -> None:
    model = tb.Model(nn.Linear(4, 1), tb.likelihoods.Gaussian(0.1))
    method = short(optimizer=tb.SGD(lr=1e6), epochs=20)
    with pytest.raises(tb.DivergedError, match=r"diverged at step \d+ of 80.*lower the learning rate") as caught:
        tb.fit(model, (INPUTS.float(), normal(24).float()), method, directory=tmp_path, callbacks=())
    kept = load_file(tmp_path / "checkpoint.safetensors")
    assert all(torch.isfinite(t).all() for t in kept.values() if t.is_floating_point())
    assert not (tmp_path / "posterior.safetensors").exists()
    step = json.loads(header(tmp_path / "checkpoint.safetensors"))["numbers"]["/step"]
    assert f"diverged at step {step} " in str(caught.value)
    assert any("last finite" in note for note in caught.value.__notes__)


def test_a_state_that_is_not_finite_is_neither_kept_nor_said_to_be(tmp_path: Path) -> None:
    """The first step overflows, and the second one finds out: there was no finite state but the start."""
    model = tb.Model(nn.Linear(4, 1), tb.likelihoods.Gaussian(0.1))
    method = short(optimizer=tb.SGD(lr=3e38, momentum=0.0), epochs=20)
    with pytest.raises(tb.DivergedError, match="diverged at step 1 of 80") as caught:
        tb.fit(model, (INPUTS.float(), 50 * normal(24, 1).float()), method, directory=tmp_path, callbacks=())
    assert not getattr(caught.value, "__notes__", [])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json"]


def header(path: Path) -> str:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return file.metadata()["torchbayes"]


class Spoiled(Dataset):
    """Rows of which the last input is NaN: found only when it is reached."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return (INPUTS[index] if index < 23 else INPUTS[index] * float("nan")), TARGETS[index]


def test_nan_deep_inside_a_dataset_stops_the_run(tmp_path: Path) -> None:
    loader = DataLoader(Spoiled(), batch_size=6)
    with pytest.raises(ValueError, match=r"inputs must be finite; 4 of 24 values") as caught:
        tb.fit(model_of(), loader, short(), directory=tmp_path, callbacks=())
    assert "The state after step 3" in "".join(caught.value.__notes__)
    kept = load_file(tmp_path / "checkpoint.safetensors")
    assert all(torch.isfinite(t).all() for t in kept.values())


def test_an_error_in_a_callback_leaves_no_posterior(tmp_path: Path) -> None:
    def broken(event: tb.Event) -> None:
        raise ZeroDivisionError(event.epoch)

    with pytest.raises(ZeroDivisionError, match="1"):
        tb.fit(model_of(), rows_of(), short(), directory=tmp_path, callbacks=[broken])
    assert not (tmp_path / "posterior.safetensors").exists()
    assert len(losses(tmp_path)) == 1


def test_callbacks_are_told_every_epoch_and_can_stop(tmp_path: Path) -> None:
    events: list[tb.Event] = []
    stopped: list[int] = []

    def stop(event: tb.Event) -> bool:
        stopped.append(event.epoch)
        return event.epoch == 3

    method = short(members=2, epochs=6)
    posterior = tb.fit(model_of(), rows_of(), method, directory=tmp_path, callbacks=[stop, events.append])
    assert [(e.epoch, e.epochs, e.step) for e in events] == [(1, 6, 4), (2, 6, 8), (3, 6, 12)]
    assert stopped == [1, 2, 3]
    assert torch.equal(posterior.tensors()["weights_MD"], events[-1].state.weights_MD)
    assert [e.record["loss"] for e in events] == [line["loss"] for line in losses(tmp_path)]
    resumed = tb.fit(model_of(), rows_of(), method, directory=tmp_path, resume=True, callbacks=())
    whole = tb.fit(model_of(), rows_of(), method, callbacks=())
    assert_same_tensors(resumed.tensors(), whole.tensors())


def test_a_truthy_answer_that_is_not_true_does_not_stop() -> None:
    epochs: list[int] = []
    tb.fit(model_of(), rows_of(), short(), callbacks=[lambda event: epochs.append(event.epoch) or 1])
    assert epochs == [1, 2, 3, 4]


def test_the_log_holds_the_mean_loss_of_each_member(tmp_path: Path) -> None:
    """With a learning rate of nearly zero the logged loss is the loss of the start, by hand."""
    model, start = model_of(), normal(2, 51, seed=9)
    method = short(members=2, epochs=2, optimizer=tb.SGD(lr=1e-300), schedule=tb.Constant())
    tb.fit(model, rows_of(), method, start=start, directory=tmp_path, callbacks=())
    batch = tb.Batch(*rows_of())
    expected = [-float(model.log_joint(weights, batch, 24)) / 24 for weights in start]
    lines = losses(tmp_path)
    assert [(line["epoch"], line["step"], line["lr"]) for line in lines] == [(1, 4, 1e-300), (2, 8, 1e-300)]
    for line in lines:
        assert line["loss"] == pytest.approx(expected, rel=1e-12)
    seconds = [json.loads(line)["seconds"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert all(0 <= s < 60 for s in seconds)


def test_the_config_says_what_was_run(tmp_path: Path) -> None:
    tb.fit(model_of(), rows_of(), short(optimizer=tb.AdamW(lr=0.25)), seed=3, directory=tmp_path, callbacks=())
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["method"]["name"] == "MAP"
    assert config["method"]["optimizer"]["name"] == "AdamW"
    assert config["method"]["optimizer"]["lr"] == pytest.approx(0.25)
    assert (config["seed"], config["num_data"], config["steps_per_epoch"]) == (3, 24, 4)
    assert config["layout"]["0.weight"] == [6, 4]


def test_a_failed_save_leaves_no_posterior(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("torchbayes.posteriors.files.save_file", full)
    with pytest.raises(OSError, match="no space"):
        tb.fit(model_of(), rows_of(), short(), directory=tmp_path, callbacks=())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json"]  # nothing half written
    monkeypatch.undo()
    resumed = tb.fit(model_of(), rows_of(), short(), directory=tmp_path, resume=True, callbacks=())
    assert_same_tensors(resumed.tensors(), tb.fit(model_of(), rows_of(), short(), callbacks=()).tensors())


@pytest.mark.parametrize("batch_size", [4, 1024])
def test_there_is_a_checkpoint_after_the_first_step(batch_size: int, tmp_path: Path) -> None:
    """Also where the first epoch ends with it."""
    there = []

    def look(event: tb.Event) -> None:
        there.append((event.epoch, (tmp_path / "checkpoint.safetensors").exists()))

    model = tb.Model(torch.nn.Linear(2, 1), tb.likelihoods.Gaussian(1.0))
    data = torch.ones(8, 2), torch.ones(8, 1)
    tb.fit(model, data, tb.MAP(epochs=2, batch_size=batch_size), directory=tmp_path, callbacks=[look])
    assert there[1] == (2, True)


def test_of_a_run_nothing_is_kept_but_its_posterior() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2))  # one that the kernel refuses
    kept: dict[str, weakref.ref[Tensor]] = {}

    def look(event: Any) -> None:
        state = event.state
        kept.update(weights=weakref.ref(state.weights_MD), gradient=weakref.ref(state.gradient_MD))
        kept.update({name: weakref.ref(slot) for name, slot in state.slots.items()})

    model = tb.Model(network, tb.likelihoods.Categorical())
    rows = (torch.ones(8, 3), torch.arange(8) % 2)
    posterior = tb.fit(model, rows, tb.MAP(epochs=1, optimizer=tb.SGD()), callbacks=[look])
    assert {name for name, tensor in kept.items() if tensor() is not None} == set()
    assert posterior.members == 1
    assert kept.keys() == {"weights", "gradient", "momentum_MD"}
