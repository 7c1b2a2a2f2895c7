"""The steps of methods in a foreign loop, against the methods run by hand on the model's own density."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from tests.oracles import assert_close, classes, normal
from tests.processes import forked
from torchbayes.density import LogDensity
from torchbayes.randomness.seeds import member_seeds
from torchbayes.trainers import Optimizer

N, B, STEPS = 24, 6, 8


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def rows(step: int, size: int = B) -> tuple[Tensor, Tensor]:
    """Fixed minibatches, of which N/B make an epoch."""
    inputs, targets = normal(N, 3), classes(N, 2)
    first = step * size % N
    return inputs[first : first + size], targets[first : first + size]


def cross_entropy(outputs: Tensor, targets: Tensor, learned: Any) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets)


def run_loop(
    net: nn.Module,
    optimizer: Any,
    *,
    size: int = B,
    steps: range = range(STEPS),
    loss: Callable[..., Tensor] = cross_entropy,
) -> list[Tensor]:
    """A plain loop; return the network's parameters after each step."""
    path = []
    for step in steps:
        inputs, targets = rows(step, size)
        optimizer.zero_grad()
        with optimizer.at_gradient_point():
            loss(net(inputs), targets, optimizer.learned).backward()
        optimizer.step()
        path.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
    return path


def by_hand(model: tb.Model, method: Any, *, size: int = B, seed: int = 3) -> tuple[Any, list[Tensor], list[Tensor]]:
    """The method on the model's own density: its state, its weights after each step, and its draws."""
    density = LogDensity(model, N, training=method.needs.network == "train")
    buffers = model.network.stacked_buffers(1)
    weights_MD = model.given_weights().unsqueeze(0)
    state = method.init(density, weights_MD, buffers, seeds=member_seeds(seed, 1), steps_per_epoch=N // size)
    path, draws = [], []
    for step in range(STEPS):
        inputs, targets = rows(step, size)
        state, _ = method.step(density, state, tb.Batch(inputs.unsqueeze(0), targets.unsqueeze(0)))
        path.append(state.weights_MD[0].clone())
        if (draw_MD := method.draw(state)) is not None:
            draws.append(draw_MD[0].clone())
    return state, path, draws


CHAIN: dict[str, Any] = {"chains": 1, "steps": STEPS, "burn_in": 2, "thin": 2}
METHODS = {
    "SGLD": tb.SGLD(**CHAIN),
    "SGLD, plain": tb.SGLD(**CHAIN, step_size=1e-3),
    "SGLD, cycles": tb.SGLD(**CHAIN, step_size=1e-3, schedule=tb.Cycles(4, draws=1)),
    "SGHMC": tb.SGHMC(**CHAIN),
    "SGHMC, friction": tb.SGHMC(**CHAIN, step_size=1e-3, form="friction", noise_estimate=0.01),
    "SGNHT": tb.SGNHT(**CHAIN, step_size=1e-3),
    "IVON": tb.IVON(epochs=2),
    "IVON, settings": tb.IVON(epochs=2, lr=0.5, clip=0.1, hessian_init=1.0, momentum=0.5),
}
MODELS: dict[str, dict[str, Any]] = {
    "usual": {},
    "cold": {"temperature": 0.1},
    "tempered likelihood": {"temperature": 2.0, "tempering": "likelihood"},
    "other prior": {"prior": tb.priors.StudentT(df=4.0)},
    "last layer": {"random": "2.*"},
    "some weights": {"random": {"0.weight": normal(4, 3) > 0}},
}


@pytest.mark.parametrize("size", [B, N])
@pytest.mark.parametrize("model_name", MODELS)
@pytest.mark.parametrize("name", METHODS)
def test_steps_are_those_of_the_method(name: str, model_name: str, size: int):
    method: Any = METHODS[name]
    if name.startswith("IVON") and size == N:
        method = tb.IVON(epochs=STEPS, lr=method.lr)
    net, settings = network(), MODELS[model_name]
    whole = {n: p.detach().clone() for n, p in net.named_parameters()}
    model = tb.Model(net, tb.likelihoods.Categorical(), **settings)
    state, path, draws = by_hand(model, method, size=size)
    optimizer = Optimizer(net, model, method, num_data=N, steps_per_epoch=N // size, seed=3)
    actual = run_loop(net, optimizer, size=size)
    for there, expected_D in zip(actual, path, strict=True):
        views = {**whole, **model.network.mask.fill(model.network.layout.split(expected_D))}
        assert_close(there, torch.cat([views[n].flatten() for n in whole]), rtol=1e-9, atol=1e-10)
    posterior = optimizer.posterior()
    if draws:
        assert_close(posterior.weights_MSD[0], torch.stack(draws), rtol=1e-9, atol=1e-10)
    else:
        expected = method.posterior(LogDensity(model, N), state)
        assert_close(posterior.mean_MD, expected.mean_MD, rtol=1e-9, atol=1e-10)
        assert_close(posterior.covariance.diagonal(), expected.covariance.diagonal(), rtol=1e-9)
    assert type(posterior) is type(method.posterior(LogDensity(model, N), state, optimizer._shelf))


@pytest.mark.parametrize("name", ["SGHMC", "IVON"])
def test_a_learned_noise_moves_with_the_weights(name: str):
    """The loss is that of the likelihood, at its parameters that the optimiser holds."""
    net = network()
    model = tb.Model(net, tb.likelihoods.Gaussian("learned", outputs=2))
    method: Any = METHODS[name]

    def targets_of(step: int) -> tuple[Tensor, Tensor]:
        inputs, _ = rows(step)
        return inputs, inputs[:, :2].sin()

    density, buffers = LogDensity(model, N, training=name == "IVON"), model.network.stacked_buffers(1)
    start = model.given_weights().unsqueeze(0)
    state = method.init(density, start, buffers, seeds=member_seeds(0, 1), steps_per_epoch=N // B)
    optimizer = Optimizer(net, model, method, num_data=N, steps_per_epoch=N // B)
    assert list(optimizer.learned) == ["log_scale"]
    for step in range(STEPS - 1):
        inputs, targets = targets_of(step)
        state, _ = method.step(density, state, tb.Batch(inputs.unsqueeze(0), targets.unsqueeze(0)))
        net.zero_grad()  # as a trainer does, which does not know the scale
        with optimizer.at_gradient_point():
            (-model.likelihood.log_prob(net(inputs), targets, optimizer.learned).mean()).backward()
        optimizer.step()
    actual = torch.cat([p.detach().flatten() for p in (*net.parameters(), *optimizer.learned.values())])
    assert_close(actual, state.weights_MD[0], rtol=1e-9, atol=1e-10)
    with optimizer.at_gradient_point():
        net(normal(B, 3)).square().mean().backward()
    with pytest.raises(ValueError, match=r"`log_scale` of the likelihood is learned.*optimizer\.learned"):
        optimizer.step()


def test_batch_norm_goes_with_ivon():
    """Running statistics are those of the loop's passes, and data recalibrate the draws, as after `fit`."""

    def normed() -> tuple[nn.Sequential, tb.Model]:
        net = network()
        net.insert(1, nn.BatchNorm1d(4).double())
        return net, tb.Model(net, tb.likelihoods.Categorical())

    state, path, _ = by_hand(normed()[1], METHODS["IVON"])
    net, model = normed()
    optimizer = Optimizer(net, model, METHODS["IVON"], num_data=N, steps_per_epoch=N // B, seed=3)
    assert_close(run_loop(net, optimizer)[-1], path[-1], rtol=1e-9, atol=1e-10)
    assert_close(net[1].running_mean, state.buffers["1.running_mean"][0], rtol=1e-9)
    assert_close(optimizer._state.buffers["1.running_var"][0], state.buffers["1.running_var"][0], rtol=1e-9)
    posterior = optimizer.posterior((normal(N, 3), classes(N, 2)))
    assert torch.isfinite(tb.predict(posterior, normal(5, 3)).probs).all()
    with pytest.raises(ValueError, match="`1` is a batch norm"):
        Optimizer(net, model, METHODS["SGLD"], num_data=N, steps_per_epoch=4)


def test_the_network_is_at_the_mean_outside():
    """Inside it is the draw of the coming step, the same each time; outside, and when a pass fails, the mean."""
    net = network()
    model = tb.Model(net, tb.likelihoods.Categorical())
    optimizer = Optimizer(net, model, METHODS["IVON"], num_data=N, steps_per_epoch=N // B)

    def now() -> Tensor:
        return torch.cat([p.detach().flatten() for p in net.parameters()])

    run_loop(net, optimizer, steps=range(3))
    mean, drawn = now(), []
    for _ in range(2):
        with optimizer.at_gradient_point():
            drawn.append(now())
    with pytest.raises(RuntimeError, match="stopped"), optimizer.at_gradient_point():
        raise RuntimeError("stopped")
    assert torch.equal(now(), mean)
    assert torch.equal(drawn[0], drawn[1])
    scale = optimizer.posterior().covariance.diagonal()[0].sqrt()
    assert 0.2 < ((drawn[0] - mean) / scale).square().mean() < 3.0


def test_gradients_are_accumulated():
    """Two halves of a batch, each with half of the loss, in blocks of their own, are one batch."""
    paths = []
    for halves in (False, True):
        net = network()
        model = tb.Model(net, tb.likelihoods.Categorical())
        optimizer = Optimizer(net, model, METHODS["IVON"], num_data=N, steps_per_epoch=N // B)
        if not halves:
            paths.append(run_loop(net, optimizer)[-1])
            continue
        for step in range(STEPS):
            inputs, targets = rows(step)
            optimizer.zero_grad()
            for half in (slice(0, 3), slice(3, 6)):
                with optimizer.at_gradient_point():
                    (nn.functional.cross_entropy(net(inputs[half]), targets[half]) / 2).backward()
            optimizer.step()
        paths.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
    assert_close(paths[1], paths[0], rtol=1e-9)


@pytest.mark.parametrize("name", ["SGLD", "SGHMC", "SGNHT", "IVON", "SGLD, cycles"])
def test_a_resumed_run_is_the_same_run(name: str, tmp_path: Any):
    def begun() -> tuple[nn.Module, Optimizer[Any]]:
        net = network()
        model = tb.Model(net, tb.likelihoods.Categorical())
        return net, Optimizer(net, model, METHODS[name], num_data=N, steps_per_epoch=N // B)

    net, whole = begun()
    path = run_loop(net, whole)
    net, optimizer = begun()
    run_loop(net, optimizer, steps=range(5))
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    kept = optimizer.state_dict()
    run_loop(net, optimizer, steps=range(5, 6))  # must not change what was kept
    for state in (torch.load(tmp_path / "optimizer.pt", weights_only=True), kept):
        net, optimizer = begun()
        optimizer.load_state_dict(state)
        assert optimizer.steps == 5
        assert torch.equal(torch.cat([p.detach().flatten() for p in net.parameters()]), path[4])
        assert torch.equal(run_loop(net, optimizer, steps=range(5, STEPS))[-1], path[-1])
        expected = whole.posterior().tensors()
        assert all(torch.equal(actual, expected[n]) for n, actual in optimizer.posterior().tensors().items())


def test_what_is_loaded_before_the_first_step_counts():
    """As where an optimiser is made first, and a checkpoint of the network is read, or it is moved, afterwards."""
    net, loaded = network(), {n: p + 1 for n, p in network().state_dict().items()}
    model = tb.Model(net, tb.likelihoods.Categorical())
    optimizer = Optimizer(net, model, METHODS["IVON"], num_data=N, steps_per_epoch=N // B)
    optimizer.load_state_dict(optimizer.state_dict())  # as Accelerate does
    net.load_state_dict(loaded)
    with optimizer.at_gradient_point():
        pass
    assert_close(optimizer.posterior().mean_MD[0], torch.cat([p.flatten() for p in loaded.values()]))


# --- what is refused


def stepped(net: nn.Module, optimizer: Optimizer[Any]) -> None:
    run_loop(net, optimizer, steps=range(1))


def test_what_would_change_the_posterior_is_refused():
    net = network()
    model = tb.Model(net, tb.likelihoods.Categorical())

    def made(method: Any = METHODS["SGLD"]) -> Optimizer[Any]:
        return Optimizer(net, model, method, num_data=N, steps_per_epoch=N // B)

    inputs, targets = rows(0)
    optimizer = made()
    nn.functional.cross_entropy(net(inputs), targets).backward()
    with pytest.raises(ValueError, match=r"not taken where SGLD takes them: put .*at_gradient_point"):
        optimizer.step()
    stepped(net, optimizer)
    with torch.no_grad():
        net[0].get_parameter("bias").add_(0.1)
    with pytest.raises(ValueError, match="changed by something else since step 1"):
        stepped(net, optimizer)

    optimizer = made()
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)
    stepped(net, optimizer)
    scheduler.step()
    with pytest.raises(ValueError, match=r"`lr` of the optimiser must stay 1, of its one group; got 0\.5"):
        stepped(net, optimizer)

    optimizer = made()
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    with pytest.raises(ValueError, match="got 2 groups of parameters"):
        stepped(net, optimizer)

    optimizer = made()
    optimizer.zero_grad()
    with optimizer.at_gradient_point():
        pass
    with pytest.raises(ValueError, match=r"no random parameter has a gradient. Call `loss.backward\(\)`"):
        optimizer.step()

    optimizer = made()
    run_loop(net, optimizer)
    with pytest.raises(ValueError, match="the run of SGLD is over after 8 steps"):
        stepped(net, optimizer)


def test_dropout_is_for_ivon_alone():
    net = nn.Sequential(network(), nn.Dropout(0.3))
    model = tb.Model(net, tb.likelihoods.Categorical())
    optimizer = Optimizer(net, model, METHODS["SGHMC"], num_data=N, steps_per_epoch=N // B)
    with pytest.raises(ValueError, match="dropout is on in `1`, so that the weights have no fixed density for SGHMC"):
        stepped(net, optimizer)
    net.eval()
    stepped(net, optimizer)
    net.train()
    stepped(net, Optimizer(net, model, METHODS["IVON"], num_data=N, steps_per_epoch=N // B))


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (tb.SGLD(), "must have one member, .* got SGLD with 4 chains. Set `chains=1`"),
        (tb.IVON(members=2), "got IVON with 2 members. Set `members=1`"),
        (tb.IVON(draws=2), "must take one gradient of a minibatch in each step, .* got IVON.* IVON with one draw"),
        (tb.SMILE(chains=1), "got SMILE"),
        (tb.HMC(chains=1), "got HMC"),
        (tb.SWAG(), r"got SWAG.* \(`tb\.trainers\.Collecting`\)"),
        (tb.Laplace(), r"got Laplace.* start=network"),
    ],
)
def test_other_methods_are_refused(method: Any, message: str):
    net = network()
    with pytest.raises(ValueError, match=message):
        Optimizer(net, tb.Model(net, tb.likelihoods.Categorical()), method, num_data=N, steps_per_epoch=4)


def test_other_networks_and_states_are_refused():
    net = network()
    model = tb.Model(net, tb.likelihoods.Categorical())
    with pytest.raises(ValueError, match="does not fit the model's network"):
        Optimizer(nn.Linear(3, 2), model, METHODS["SGLD"], num_data=N, steps_per_epoch=4)
    frozen = network()
    frozen[2].requires_grad_(False)
    with pytest.raises(ValueError, match=r"`2\.weight` is random in the model and frozen in the network"):
        Optimizer(frozen, model, METHODS["SGLD"], num_data=N, steps_per_epoch=4)
    split = network()
    split[2].bias = nn.Parameter(torch.zeros(0).double())
    with pytest.raises(ValueError, match=r"`2.bias` of the network has shape \(0,\), not \(2,\).*FSDP or DeepSpeed"):
        Optimizer(split, model, METHODS["SGLD"], num_data=N, steps_per_epoch=4)
    optimizer = Optimizer(net, model, METHODS["SGLD"], num_data=N, steps_per_epoch=4)
    with pytest.raises(ValueError, match=r"not the state dict of a `tb\.trainers\.Optimizer`"):
        optimizer.load_state_dict(torch.optim.Adam(net.parameters()).state_dict())
    other = Optimizer(net, model, METHODS["SGLD"], num_data=N + 1, steps_per_epoch=4)
    with pytest.raises(ValueError, match="belongs to another run: its num_data is 25, now 24"):
        optimizer.load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match="before weights were kept"):
        optimizer.posterior()
    stepped(net, optimizer)
    damaged = optimizer.state_dict()
    del damaged["state"]["tensors"]["/weights_MD"]
    with pytest.raises(ValueError, match="does not hold a state of this run: `/weights_MD` must have shape"):
        optimizer.load_state_dict(damaged)
    assert optimizer.steps == 1


def test_a_chain_that_diverged_says_so():
    net = network()
    model = tb.Model(net, tb.likelihoods.Categorical())
    optimizer = Optimizer(net, model, METHODS["SGLD"], num_data=N, steps_per_epoch=N // B)
    run_loop(net, optimizer, loss=lambda *a: cross_entropy(*a) * torch.nan)
    with pytest.warns(tb.ProblemWarning, match="chain 0 diverged 8 times"):
        optimizer.posterior((normal(N, 3), classes(N, 2)))


def test_a_gradient_that_is_not_finite_is_not_taken():
    net = network()
    model = tb.Model(net, tb.likelihoods.Categorical())
    optimizer = Optimizer(net, model, METHODS["IVON"], num_data=N, steps_per_epoch=N // B)
    path = run_loop(net, optimizer, steps=range(2))
    with pytest.raises(tb.DivergedError, match=r"diverged at step 2 of 8.*Standardise inputs"):
        run_loop(net, optimizer, steps=range(2, 3), loss=lambda *a: cross_entropy(*a) * torch.inf)
    assert torch.equal(torch.cat([p.detach().flatten() for p in net.parameters()]), path[-1])


# --- data parallelism


def half_of_a_run(rank: int, name: str, meeting: Path, results: Any) -> None:
    """One of two processes, each with half of the rows of a step; their networks begin apart."""
    torch.distributed.init_process_group("gloo", init_method=meeting.as_uri(), rank=rank, world_size=2)
    try:
        net = network()
        nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(net.parameters()) + rank, net.parameters())
        model = tb.Model(net, tb.likelihoods.Categorical())
        optimizer = Optimizer(net, model, METHODS[name], num_data=N, steps_per_epoch=N // B)
        parallel = nn.parallel.DistributedDataParallel(net)  # which sends the first network to the other process
        for step in range(STEPS):
            inputs, targets = (part[rank * B // 2 : (rank + 1) * B // 2] for part in rows(step))
            optimizer.zero_grad()
            with optimizer.at_gradient_point():
                nn.functional.cross_entropy(parallel(inputs), targets).backward()
            optimizer.step()
        results.put((rank, nn.utils.parameters_to_vector(net.parameters()).tolist()))
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SGHMC", "IVON"])
def test_processes_that_share_the_rows_have_the_same_weights(name: str, tmp_path: Path):
    results, meeting = forked().Queue(), tmp_path / "meeting"  # a file, as a port that is free may be taken meanwhile
    processes = [forked().Process(target=half_of_a_run, args=(rank, name, meeting, results)) for rank in range(2)]
    for process in processes:
        process.start()
    actual = dict(results.get(timeout=120) for _ in processes)
    for process in processes:
        process.join()
    net = network()
    model = tb.Model(net, tb.likelihoods.Categorical())
    optimizer = Optimizer(net, model, METHODS[name], num_data=N, steps_per_epoch=N // B)
    expected = run_loop(net, optimizer)[-1]
    assert actual[0] == actual[1]
    assert_close(torch.tensor(actual[0], dtype=torch.float64), expected, rtol=1e-9, atol=1e-10)
