"""Laws that every method keeps, on every network."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from tests.covering import some_of
from tests.laws.cases import (
    CLASSES,
    COUPLED,
    METHODS,
    NETWORKS,
    VARIANTS,
    assert_same_tensors,
    everything,
    losses,
    made,
    model_of,
    normal,
    rows_of,
    unjudged,
    with_variants_as_studies,
)
from torchbayes.driver import run as run_module
from torchbayes.driver.checkpoint import flatten
from torchbayes.driver.loop import Reader
from torchbayes.driver.run import MemoryShelf, Shard
from torchbayes.methods.protocol import Method
from torchbayes.model.sources.sources import as_source
from torchbayes.posteriors.files import read_tensors
from torchbayes.posteriors.posterior import Posterior
from torchbayes.randomness.seeds import member_seeds

Make = Callable[..., Method]
STEPS = 3 * 3  # epochs times batches of an epoch
SMALL = {"epochs": 3, "batch_size": 8, "plan": "loop"}

chief = pytest.mark.parametrize("make", with_variants_as_studies(METHODS, VARIANTS))  # for the laws of many fits
NAMES = [name for name in METHODS if name not in VARIANTS]


def on_networks(further: int = 0) -> pytest.MarkDecorator:
    """Each method on one network, in turn, or on one that comes some places later; on the others as a study.

    Laws of one network share the whole fit. A method meets three of the networks in the laws of this file.
    """
    order = [*NETWORKS]
    run = {name: order[(place + further) % len(order)] for place, name in enumerate(NAMES)}
    return pytest.mark.parametrize(
        ("make", "network"),
        [
            pytest.param(
                METHODS[name], net, id=f"{net}-{name}", marks=() if run.get(name) == net else pytest.mark.study
            )
            for name, net in itertools.product(METHODS, NETWORKS)
        ],
    )


unjudged_fits = pytest.mark.usefixtures("unjudged_fits")
RESUMED = {"map_sgd", "swag_diagonal", "flow_spline"}  # by the law of callbacks


def fitted(make: Make, network: str = "mlp", directory: Path | None = None, **settings: Any) -> Posterior:
    """One small fit; `resume` goes to `fit`, other settings to the method."""
    resume = settings.pop("resume", False)
    method = make(**{**SMALL, "members": 2, **settings})
    data, model = rows_of(network), model_of(network)
    return tb.fit(model, data, method, seed=7, directory=directory, resume=resume, callbacks=())


# The same fits are what several laws compare with. A case `make` is of one registry of networks.


@cache
def whole(make: Make, network: str) -> tuple[Posterior, TemporaryDirectory[str]]:
    """The posterior of a small fit, and its directory, which is there as long as it is known."""
    directory = TemporaryDirectory()
    with unjudged():
        return fitted(make, network, Path(directory.name)), directory


def uninterrupted(make: Make, network: str) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Everything in the posterior of a small fit, and its log."""
    posterior, directory = whole(make, network)
    return everything(posterior), losses(Path(directory.name))


@cache
def alone(make: Make, network: str) -> dict[str, Tensor]:
    """Everything in the posterior of a small fit of one member: the second of two."""
    model, data, method = model_of(network), rows_of(network), make(members=1, **SMALL)
    with unjudged():
        return everything(tb.fit(model, data, method, seed=member_seeds(7, 2)[1], callbacks=()))


@cache
def members_together(make: Make, network: str, plan: str) -> dict[str, Tensor]:
    """Everything in the posterior of a small fit of two members."""
    if plan == SMALL["plan"]:
        return uninterrupted(make, network)[0]
    with unjudged():
        return everything(fitted(make, network, plan=plan))


def break_after(monkeypatch: pytest.MonkeyPatch, make: Make, steps: int) -> None:
    """Let the method be interrupted, as by Ctrl-C, instead of taking step number `steps`."""
    kind = type(make())
    step, taken = kind.step, itertools.count()

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        if next(taken) == steps:
            raise KeyboardInterrupt
        return step(*args, **kwargs)

    monkeypatch.setattr(kind, "step", interrupted)


def keep_every(monkeypatch: pytest.MonkeyPatch, seconds_per_look: float) -> None:
    """Let the clock of checkpoints advance at every look: 10 makes one a step, 2 one in a few."""
    ticks = itertools.count(step=seconds_per_look)
    monkeypatch.setattr(run_module, "time", SimpleNamespace(monotonic=lambda: next(ticks), perf_counter=lambda: 0.0))


@on_networks()
@unjudged_fits
def test_interrupted_and_resumed_equals_uninterrupted(
    make: Make, network: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, log = uninterrupted(make, network)
    chance = random.Random(f"{make()}{network}")
    # interrupted anywhere or at the start of an epoch, with a checkpoint at every step or with few
    steps, tick = chance.choice((chance.randrange(STEPS), 6)), chance.choice((2.0, 10.0))
    with monkeypatch.context() as inside:
        keep_every(inside, tick)
        break_after(inside, make, steps)
        with pytest.raises(KeyboardInterrupt):
            fitted(make, network, tmp_path)
    assert not (tmp_path / "posterior.safetensors").exists()
    for _ in range(2):  # the second time it is finished
        resumed = fitted(make, network, tmp_path, resume=True)
        assert_same_tensors(everything(resumed), expected)
        assert losses(tmp_path) == log


# Methods in turn: few and many checkpoints take one path through every method. The law above has resumed those that are
# no variants, and a variant's state is that of another of its class, or of these.
IN_TURN = [
    pytest.param(*case.values, id=f"{name}-{tick}", marks=case.marks if name in RESUMED else pytest.mark.study)
    for case, (name, tick) in zip(
        some_of(METHODS.values(), (0.0, 10.0), one_in=2), itertools.product(METHODS, (0.0, 10.0)), strict=True
    )
]


@pytest.mark.parametrize(("make", "tick"), IN_TURN)
@unjudged_fits
def test_interrupted_in_a_callback(make: Make, tick: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, log = uninterrupted(make, "mlp")
    keep_every(monkeypatch, tick)

    def stop(event: tb.Event) -> None:
        if event.epoch == 2:
            raise KeyboardInterrupt

    method = make(members=2, **SMALL)
    with pytest.raises(KeyboardInterrupt):
        tb.fit(model_of(), rows_of(), method, seed=7, directory=tmp_path / "cut", callbacks=[stop])
    # the first step is kept at once, later ones only when the last checkpoint is old enough
    _, header = read_tensors(tmp_path / "cut" / "checkpoint.safetensors")
    kept = next(number for name, number in header["numbers"].items() if name.endswith("/step"))
    assert (kept == 1) == (tick == 0)
    resumed = fitted(make, directory=tmp_path / "cut", resume=True)
    assert_same_tensors(everything(resumed), expected)
    assert losses(tmp_path / "cut") == log


@pytest.mark.parametrize("plan", ["loop", pytest.param("vmap", marks=pytest.mark.study)])
@unjudged_fits
def test_resumed_in_float64_equals_uninterrupted(plan: str, tmp_path: Path) -> None:
    """Sums are rounded by the place of a tensor in memory, which widths like these show."""
    layers = (nn.Linear(24, 17), nn.GELU(), nn.Linear(17, 17), nn.GELU(), nn.Linear(17, 3))
    model = tb.Model(nn.Sequential(*layers).double(), tb.likelihoods.Categorical())
    method = tb.MAP(members=2, epochs=4, batch_size=16, plan=plan)
    data = (normal(200, 24), torch.arange(200) % 3)
    expected = tb.fit(model, data, method, callbacks=())
    tb.fit(model, data, method, directory=tmp_path, callbacks=[lambda event: event.epoch == 2])
    resumed = tb.fit(model, data, method, directory=tmp_path, resume=True, callbacks=())
    assert_same_tensors(resumed.tensors(), expected.tensors())


@on_networks()
@pytest.mark.parametrize("plans", [("loop", "vmap")])  # in turn, since they are compared with the same fits
@unjudged_fits
def test_members_together_equal_members_alone(make: Make, network: str, plans: tuple[str, ...]) -> None:
    """And those of methods whose members see each other do not."""
    if network == "dropout" or getattr(make(), "estimator", "weights") != "weights":
        plans = ("auto",)  # a mask needs a seed per member, and noise in the layers is no stack of networks
    one = alone(make, network)
    for plan in plans:
        pairs = [(tensor[1], one[name][0]) for name, tensor in members_together(make, network, plan).items()]
        if make().needs.coupled:
            assert not all(torch.allclose(*pair) for pair in pairs)
            continue
        # kernels round the last elements of a vector unlike those in its middle, hence not to the last bit
        for pair in pairs:
            torch.testing.assert_close(*pair, rtol=1e-8, atol=1e-11)
        first = next(iter(members_together(make, network, plan).values()))
        assert not torch.equal(first[0], first[1])


@on_networks(1)
def test_step_is_pure_and_donating_changes_nothing(make: Make, network: str) -> None:
    method, model = make(members=2, **SMALL), model_of(network)
    source, seeds = as_source(model, rows_of(network), method.needs.batch_size or 1), member_seeds(3, 2)
    density = tb.LogDensity(model, source.num_data, plan="loop", training=True)
    weights_MD, buffers = model.starting_weights(seeds)
    state = method.init(density, weights_MD, buffers, seeds=seeds, steps_per_epoch=source.steps_per_epoch)
    donated = method.init(density, weights_MD, buffers, seeds=seeds, steps_per_epoch=source.steps_per_epoch)
    reader = Reader(source, seeds)
    while (visit := method.visit(state)) is not None:
        batch = reader.read(visit)
        assert batch is not None
        before = {name: tensor.clone() for name, tensor in flatten(state)[0].items()}
        rows = [batch.inputs.clone(), batch.targets.clone()]
        first, info = method.step(density, state, batch)
        donated, donated_info = method.step(density, donated, batch, donate=True)
        assert_same_tensors(flatten(state)[0], before)
        assert_same_tensors(flatten(first)[0], flatten(donated)[0])
        assert torch.equal(info.means()["loss"], donated_info.means()["loss"])
        assert torch.equal(rows[0], batch.inputs)
        assert torch.equal(rows[1], batch.targets)
        state = first
    assert state.step == STEPS
    assert flatten(state)[1] == flatten(donated)[1]
    torch.testing.assert_close(weights_MD, model.starting_weights(seeds)[0], rtol=0, atol=0)


@chief
@unjudged_fits
def test_pieces_by_hand_equal_fit(make: Make) -> None:
    """A loop of one's own over init, visit, step, draw and posterior is what fit does."""
    method, model = make(members=2, **SMALL), model_of()
    source, seeds = as_source(model, rows_of(), method.needs.batch_size or 1), member_seeds(7, 2)
    density = tb.LogDensity(model, source.num_data, plan="loop", training=True)
    state = method.init(density, *model.starting_weights(seeds), seeds=seeds, steps_per_epoch=source.steps_per_epoch)
    reader, shelf = Reader(source, seeds), MemoryShelf(Shard(method.members))
    while (visit := method.visit(state)) is not None:
        state, _ = method.step(density, state, reader.read(visit))
        shelf.add(method.draw(state))
    assert_same_tensors(everything(method.posterior(density, state, shelf)), uninterrupted(make, "mlp")[0])


@contextmanager
def untouched(module: nn.Module) -> Iterator[None]:
    """Look that neither a module in training mode nor the global random state has moved."""
    before, state = {name: tensor.clone() for name, tensor in module.state_dict().items()}, torch.get_rng_state()
    yield
    assert_same_tensors(module.state_dict(), before)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(part.training for part in module.modules())
    assert all(p.grad is None for p in module.parameters())


@on_networks(2)
@unjudged_fits
def test_every_method_learns_on_every_network_and_nothing_else_moves(make: Make, network: str) -> None:
    dtype = torch.float32
    module, data = made(network, dtype).train(), rows_of(network, dtype)
    model = tb.Model(module, tb.likelihoods.Categorical(), tb.priors.Normal(1.0))
    method = make(members=2, epochs=20 if "ivon" in type(make()).__name__.lower() else 10, batch_size=8)
    with untouched(module):
        posterior = tb.fit(model, data, method, callbacks=())
        evaluation = tb.evaluate(posterior, data)
    assert all(t.dtype == dtype for t in posterior.tensors().values())
    assert evaluation.metrics["accuracy"] > (0.5 if network in {"dropout", "frozen"} else 0.7)
    assert evaluation.probs is not None
    torch.testing.assert_close(evaluation.probs.sum(-1), torch.ones(24, dtype=dtype))


def fit_moves_nothing_else(make: Make, network: str) -> None:
    """The law of the test above for methods that learn little on such rows."""
    module = made(network).train()
    model, data = tb.Model(module, tb.likelihoods.Categorical()), rows_of(network)
    with untouched(module), unjudged():
        tb.evaluate(tb.fit(model, data, make(members=2, **SMALL), callbacks=()), data)


@pytest.mark.parametrize("make", with_variants_as_studies(METHODS, METHODS.keys() - {*COUPLED}))
def test_same_seed_same_run_other_seed_other_run(make: Make) -> None:
    """That the same seed gives the same run is also the law of pieces, above; others have members that differ by it."""
    first = uninterrupted(make, "mlp")[0]
    with unjudged():
        other = everything(tb.fit(model_of(), rows_of(), make(members=2, **SMALL), seed=8, callbacks=()))
    assert all(not torch.equal(other[n], t) for n, t in first.items())
    members = next(iter(first.values()))
    assert not torch.equal(members[0], members[1])


class Masking(nn.Dropout):
    """Dropout that notes the masks of training."""

    seen: ClassVar[set[tuple[float, ...]]] = set()

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return input
        mask = super().forward(torch.ones_like(input))
        self.seen.add(tuple(mask.flatten().tolist()))
        return input * mask


# the passes of layers number those of a flow in another way than those of `VI`
@pytest.mark.parametrize("make", with_variants_as_studies(METHODS, {*VARIANTS} - {"mnf_by_layers"}))
def test_every_step_of_every_member_has_masks_of_its_own(make: Make) -> None:
    """And so has every draw of the weights: under seeds that forget the step, a run would train one thinned network."""
    net = nn.Sequential(nn.Linear(4, 12), Masking(), nn.Linear(12, CLASSES)).double()
    Masking.seen.clear()
    method: Any = make(members=2, **SMALL)
    with unjudged():
        tb.fit(tb.Model(net, tb.likelihoods.Categorical()), rows_of(), method, callbacks=())
    by_draws = isinstance(method, tb.VI | tb.IVON | tb.MNF | tb.NormalizingFlow)
    assert len(Masking.seen) >= 2 * STEPS * ((method.draws if by_draws else None) or 1)


@chief
def test_only_random_weights_move(make: Make) -> None:
    """A glob on the last layer leaves the constants as they were and learns the rest."""
    model, data = model_of("mlp", random="2.*"), rows_of()
    with unjudged():
        posterior = tb.fit(model, data, make(members=2, **SMALL), callbacks=())
    assert posterior.sample(2).shape == (2, 6 * 3 + 3)
    own = made("mlp").state_dict()
    for name, constant in model.network.constants.items():
        assert torch.equal(constant, own[name])


# `test_a_saved_and_loaded_posterior_gives_the_same_functions` has the file of every kind of posterior, also of networks
# with batch norms, whose statistics of modes `test_batch_norm_statistics_of_a_mode_are_saved` has
@chief
def test_saved_posterior_is_the_returned_one(make: Make) -> None:
    posterior, directory = whole(make, "mlp")
    folder, (inputs, _) = Path(directory.name), rows_of()
    loaded = tb.load(folder / "posterior.safetensors", model_of())
    assert_same_tensors(everything(loaded), everything(posterior))
    expected = posterior.functions(4, seed=1)(inputs)
    torch.testing.assert_close(loaded.functions(4, seed=1)(inputs), expected, rtol=0, atol=0)
    files = {"checkpoint.safetensors", "config.json", "log.jsonl", "posterior.safetensors"}
    drawn = {"draws.bin", "draws.json"} if make().needs.draws else set()
    assert {path.name for path in folder.iterdir()} == files | drawn
