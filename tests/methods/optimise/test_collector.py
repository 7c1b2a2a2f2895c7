"""Collectors against numpy on the points they saw, and against fit on the points of its own trajectory."""

from __future__ import annotations

import copy
import random
import warnings
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.covering import with_studies
from tests.damage import DAMAGES
from tests.laws.cases import NETWORKS, made, model_of, normal, rows_of
from tests.oracles import swag_moments
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.methods.optimise.learned import learned_at
from torchbayes.model.sources.sources import as_source

FIT = {"batch_size": 6, "epochs": 8, "optimizer": tb.SGD(0.1), "averaging_lr": 0.1, "per_epoch": 1, "plan": "loop"}


def visited(name: str = "mlp", count: int = 7, seed: int = 5) -> list[Any]:
    """Networks of a trajectory: each differs from the one before in every trainable parameter."""
    nets: list[Any] = [made(name)]
    for t in range(1, count):
        nets.append(copy.deepcopy(nets[-1]))
        for i, p in enumerate(p for p in nets[-1].parameters() if p.requires_grad):
            p.data.add_(0.1 * normal(*p.shape, seed=seed + 100 * t + i))
    return nets


def flat(model: tb.Model, net: nn.Module) -> np.ndarray:
    named = dict(net.named_parameters())
    return np.concatenate([named[n].detach().flatten().numpy() for n in model.network.layout.names])


def swag(model: tb.Model, nets: list[Any], **settings: Any) -> tb.Gaussian:
    collector = tb.SWAG(**settings).collector(model)
    collector.collect(nets)
    return collector.posterior()


@pytest.mark.parametrize("name", ["mlp", "tied", "nested", "frozen"])
@pytest.mark.parametrize("rank", [2, 3, 7, 20])
def test_swag_has_numpys_moments(name: str, rank: int) -> None:
    model, nets = model_of(name), visited(name)
    posterior = swag(model, nets, rank=rank)
    expected = swag_moments([flat(model, net) for net in nets], rank)
    assert len(expected.deviations_KD) == min(rank, len(nets))
    np.testing.assert_allclose(posterior.mean_MD[0].numpy(), expected.mean_D, rtol=1e-12, atol=1e-15)
    dense = posterior.covariance.dense()[0].numpy()
    np.testing.assert_allclose(dense, expected.covariance(), rtol=1e-9, atol=1e-14)


def test_members_may_have_different_numbers_of_points() -> None:
    model = model_of()
    runs = [visited(count=count, seed=seed) for count, seed in ((6, 1), (2, 2), (4, 3))]
    collector = tb.SWAG(members=3, rank=4).collector(model)
    for member, nets in enumerate(runs):
        for net in nets:
            collector.collect(net, member=member)
    assert collector.points == (6, 2, 4)
    with pytest.warns(UserWarning, match=r"6 at most: member 1 has 2, member 2 has 4\. All weigh the same"):
        posterior = collector.posterior()
    for m, nets in enumerate(runs):
        expected = swag_moments([flat(model, net) for net in nets], 4)
        np.testing.assert_allclose(posterior.mean_MD[m].numpy(), expected.mean_D, rtol=1e-12, atol=1e-15)
        dense = posterior.covariance.dense()[m].numpy()
        np.testing.assert_allclose(dense, expected.covariance(), rtol=1e-9, atol=1e-14)
    # a mixture of the three: each alone is its third of the draws
    alone = swag(model, runs[2], rank=4)
    torch.testing.assert_close(posterior.mean_MD[2:], alone.mean_MD, rtol=0, atol=0)
    weights = posterior.sample(3)
    logs = torch.stack([swag(model, nets, rank=4).log_prob(weights) for nets in runs])
    torch.testing.assert_close(posterior.log_prob(weights), logs.logsumexp(0) - np.log(3), rtol=1e-9, atol=1e-9)


def test_swa_and_the_diagonal_have_numpys_mean_and_variance() -> None:
    model, nets = model_of(), visited()
    points = np.stack([flat(model, net) for net in nets])
    collector = tb.SWA().collector(model)
    for net in nets:
        collector.collect(net)
    point = collector.posterior()
    assert isinstance(point, tb.Point)
    np.testing.assert_allclose(point.weights_MD[0].numpy(), points.mean(0), rtol=1e-12, atol=1e-15)
    diagonal = swag(model, nets, rank=0)
    np.testing.assert_allclose(diagonal.covariance.diagonal()[0].numpy(), points.var(0), rtol=1e-9, atol=1e-18)
    collector.collect(nets[0])  # a posterior is of its moment, and the collector goes on
    assert collector.points == (8,)
    np.testing.assert_allclose(point.weights_MD[0].numpy(), points.mean(0), rtol=1e-12, atol=1e-15)


MEANS, SPREADS = tb.SWA(members=2, **FIT), tb.SWAG(members=2, rank=3, **FIT)
OWN = [("mlp", MEANS), ("conv_batch_norm", SPREADS), ("noise", SPREADS)]


@pytest.mark.parametrize(("name", "method"), with_studies(OWN, ("mlp", "conv_batch_norm", "noise"), (MEANS, SPREADS)))
@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # of so short a fit
def test_points_of_fits_own_trajectory_give_fits_posterior(name: str, method: tb.SWA | tb.SWAG) -> None:
    if name == "noise":
        model, data = regression()
    else:
        model, data = model_of(name), rows_of(name)
    collector = method.collector(model)

    def collect(event: tb.Event) -> None:
        state = event.state.trajectory
        for m in range(2):
            held = {**model.layout.split(state.weights_MD[m]), **{n: b[m] for n, b in state.buffers.items()}}
            if event.epoch > 4:
                collector.collect(held, member=m)

    fitted = tb.fit(model, data, method, callbacks=[collect])
    assert collector.points == (4, 4)
    posterior = collector.posterior(data)
    assert type(posterior) is type(fitted)
    torch.testing.assert_close(posterior.sample(4), fitted.sample(4), rtol=1e-10, atol=1e-12)
    seen = [p.functions(4)(data[0]) for p in (posterior, fitted)]
    torch.testing.assert_close(*seen, rtol=1e-8, atol=1e-10)


# --- what is collected


class Lightning(nn.Module):
    """A module with the network and something else, as a LightningModule has."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.model, self.metric = net, nn.Linear(2, 2)


# what importing torch.compile says of torch's own code
COMPILES = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")


def part_compiled(net: Any) -> nn.Module:
    first: Any = torch.compile(net[0])
    return nn.Sequential(first, *net[1:])


@COMPILES
@pytest.mark.parametrize(
    "wrap",
    [
        nn.DataParallel,
        pytest.param(torch.compile, marks=pytest.mark.study),  # within others, below
        Lightning,
        part_compiled,
        lambda net: Lightning(nn.DataParallel(cast(nn.Module, torch.compile(net)))),
        torch.optim.swa_utils.AveragedModel,
        nn.Module.state_dict,
        lambda net: Lightning(net).state_dict(),
    ],
)
def test_wrapped_networks_are_read(wrap: Any) -> None:
    model, nets = model_of(), visited()
    expected = swag(model, nets)
    actual = swag(model, [wrap(net) for net in nets])
    torch.testing.assert_close(actual.sample(5), expected.sample(5), rtol=0, atol=0)


@COMPILES
def test_a_model_of_a_compiled_network_takes_the_plain_one() -> None:
    nets = visited()
    model = tb.Model(part_compiled(nets[0]), tb.likelihoods.Categorical())
    assert model.layout.names == model_of().layout.names
    torch.testing.assert_close(swag(model, nets).mean_MD, swag(model_of(), nets).mean_MD, rtol=0, atol=0)


def test_the_network_is_not_touched_and_may_go_on() -> None:
    net = made("conv_batch_norm")
    net.train()
    before = {n: t.clone() for n, t in net.state_dict().items()}
    collector = tb.SWA().collector(tb.Model(net, tb.likelihoods.Categorical()))
    collector.collect(net)
    assert net.training
    assert all(torch.equal(t, before[n]) for n, t in net.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in net.parameters())
    with torch.no_grad():
        for tensor in net.parameters():
            tensor.fill_(7.0)
    data = rows_of("conv_batch_norm")
    assert not (collector.posterior(data).weights_MD == 7).any()


def test_points_may_be_collected_in_inference_mode() -> None:
    model, nets = model_of(), visited()
    collector = tb.SWAG(rank=3).collector(model)
    with torch.inference_mode():
        collector.collect(nets[:3])
    for net in nets[3:]:
        collector.collect(net)
    torch.testing.assert_close(collector.posterior().sample(3), swag(model, nets, rank=3).sample(3), rtol=0, atol=0)


def test_half_precision_is_read_in_the_models_dtype() -> None:
    model, nets = model_of(), [net.to(torch.bfloat16) for net in visited()]
    posterior = swag(model, nets)
    assert posterior.mean_MD.dtype == torch.float64
    rounded = np.stack([np.concatenate([p.detach().double().flatten() for p in net.parameters()]) for net in nets])
    np.testing.assert_allclose(posterior.mean_MD[0].numpy(), rounded.mean(0), rtol=1e-12, atol=1e-15)


def test_random_elements_of_a_parameter() -> None:
    nets = visited()
    mask = normal(6, 4, seed=9) > 0
    with torch.no_grad():
        for net in nets:
            net[0].weight.copy_(torch.where(mask, net[0].weight, nets[0][0].weight))
            for other in (net[0].bias, net[2].weight, net[2].bias):
                other.copy_(dict(nets[0].named_parameters())[next(n for n, p in net.named_parameters() if p is other)])
    model = tb.Model(nets[0], tb.likelihoods.Categorical(), random={"0.weight": mask})
    posterior = swag(model, nets)
    expected = np.stack([net[0].weight.detach().numpy()[mask.numpy()] for net in nets])
    np.testing.assert_allclose(posterior.mean_MD[0].numpy(), expected.mean(0), rtol=1e-12, atol=1e-15)
    with torch.no_grad():
        nets[1][0].weight[~mask] += 1
    with pytest.raises(ValueError, match=r"not random: `0\.weight`"):
        tb.SWA().collector(model).collect(nets[1])


def test_what_is_not_random_must_not_change() -> None:
    net: Any = made("frozen")
    model = tb.Model(net, tb.likelihoods.Categorical())
    collector = tb.SWAG().collector(model)
    collector.collect(net)
    net.train()
    net(normal(9, 4))  # the running statistics of the frozen backbone move
    net[1].bias.data += 1
    with pytest.warns(UserWarning, match=r"frozen part: `0\.1\.running_mean`"):
        collector.collect(net)
    other = copy.deepcopy(net)
    other[0][0].weight.data += 1
    with pytest.raises(ValueError, match=r"not random: `0\.0\.weight`.*widen `random`"):
        collector.collect(other)
    net[0][0].weight.data += 1  # which the model reads too
    with pytest.raises(ValueError, match=r"changed later: `0\.0\.weight`, which is not random.*widen `random`"):
        collector.collect(net)
    assert collector.points == (2,)


# --- checkpoints


def test_checkpoints_are_read(tmp_path: Path) -> None:
    model, nets = model_of(), visited(count=4)
    expected = swag(model, nets)
    paths = [tmp_path / n for n in ("a.safetensors", "b.pt", "c.ckpt", "d.pth")]
    save_file(nets[0].state_dict(), paths[0])
    torch.save(nets[1].state_dict(), paths[1])
    torch.save({"state_dict": Lightning(nets[2]).state_dict(), "epoch": 3}, paths[2])
    torch.save({"model": nets[3].state_dict(), "optimizer": {"lr": 0.1}}, paths[3])
    torch.testing.assert_close(swag(model, paths).sample(3), expected.sample(3), rtol=0, atol=0)
    torch.testing.assert_close(swag(model, [str(p) for p in paths]).sample(3), expected.sample(3), rtol=0, atol=0)


class Foreign:
    """What a checkpoint should not hold."""


def test_bad_checkpoints_are_refused_in_words(tmp_path: Path) -> None:
    model, nets = model_of(), visited(count=3)
    collector = tb.SWAG().collector(model)
    good = tmp_path / "good.pt"
    torch.save(nets[0].state_dict(), good)
    contents = {"objects.pt": {"state_dict": nets[1].state_dict(), "args": Foreign()}, "list.pt": [1, 2], "none.pt": {}}
    for name, content in contents.items():
        torch.save(content, tmp_path / name)
    torch.save({"epoch": 3, "lr": torch.tensor(0.1)}, tmp_path / "other.pt")
    (tmp_path / "empty.pt").touch()
    (tmp_path / "text.pt").write_text("epoch,loss\n1,0.3\n")
    (tmp_path / "text.safetensors").write_text("epoch,loss\n1,0.3\n")
    (tmp_path / "cut.pt").write_bytes(good.read_bytes()[:700])
    said = {
        "objects.pt": "holds objects of .*Foreign, which are not loaded",
        "list.pt": "holds no tensors by name",
        "none.pt": "holds no tensors by name",
        "other.pt": "does not fit .*: 4 of its 4 random parameters are missing, `0.weight`.*; it holds `lr`",
        "empty.pt": "is damaged, or was not written by torch.save",
        "text.pt": "is damaged, or was not written by torch.save",
        "text.safetensors": "is damaged or not a safetensors file",
        "cut.pt": "is damaged, or was not written by torch.save",
    }
    for name, words in said.items():
        with pytest.raises(ValueError, match=f"{name} {words}"):
            collector.collect([good, tmp_path / name])
    with pytest.raises(FileNotFoundError, match="no file"):
        collector.collect([good, tmp_path / "missing.pt"])
    with pytest.raises(IsADirectoryError, match="folder"):
        collector.collect(tmp_path)
    assert collector.points == (0,)  # of a list with a bad one none is taken


def spoiled(change: str) -> nn.Module:
    net: Any = made("mlp")
    if change == "missing":
        del net[0].bias
    elif change == "shape":
        net[2] = nn.Linear(6, 5)
    elif change == "nan":
        net[2].weight.data[1, 2] = torch.nan
    return net


@pytest.mark.parametrize(
    ("trained", "kind", "words"),
    [
        (spoiled("missing"), ValueError, r"`trained` does not fit.* 1 of its 4 random .* missing, `0\.bias`; it holds"),
        (spoiled("shape"), ValueError, r"`2\.weight` has shape \(5, 6\), expected \(3, 6\); `2\.bias` has shape"),
        (spoiled("nan"), ValueError, r"not finite: 1 of the 18 values of `2\.weight`"),
        (nn.ModuleDict({"a": made("mlp"), "ema": made("mlp")}), ValueError, r"more than once, below `a\.`, `ema\.`"),
        (made("mlp").to("meta"), ValueError, r"`trained` has no values for `0\.weight`"),
        (nn.ReLU(), ValueError, "holds no tensors by name"),
        ({}, ValueError, "holds no tensors by name"),
        ([], ValueError, "empty list"),
        ([made("mlp"), 3], TypeError, r"`trained\[1\]` must be a module, a state dict or the path"),
        (None, TypeError, "must be a module, a state dict or the path"),
        (torch.zeros(3), TypeError, "must be a module, a state dict or the path"),
    ],
)
def test_what_does_not_fit_is_refused(trained: Any, kind: type[Exception], words: str) -> None:
    collector = tb.SWA().collector(model_of())
    with pytest.raises(kind, match=words):
        collector.collect(trained)
    assert collector.points == (0,)


@pytest.mark.parametrize("member", [-1, 2, 1.0, True, "0", None])
def test_members_are_counted_from_0(member: Any) -> None:
    with pytest.raises(ValueError, match=r"`member` must be a whole number from 0 to 1; got .*`members` of SWAG"):
        tb.SWAG(members=2).collector(model_of()).collect(made("mlp"), member=member)


def test_too_few_points() -> None:
    model, net = model_of(), made("mlp")
    with pytest.raises(ValueError, match=r"SWA needs at least 1 point; member 0 has 0"):
        tb.SWA().collector(model).posterior()
    collector = tb.SWAG(members=2).collector(model)
    collector.collect(visited(count=2))
    with pytest.raises(ValueError, match=r"SWAG needs at least 2 points, to have a spread; member 1 has 0.*`members`"):
        collector.posterior()
    with pytest.raises(TypeError, match="`model` must be a Model"):
        tb.SWA().collector(net)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`resume` must be the path of a file; got 3"):
        tb.SWA().collector(model, resume=3)  # type: ignore[arg-type]
    single = tb.SWA().collector(model)
    single.collect(net)
    with pytest.warns(UserWarning, match=r"those that were collected last, of member 0\. Is this what is trained\?"):
        single.collect(net)


# --- what depends on the training data


def small() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def regression(scale: Any = "learned", rows: int = 60, **settings: Any) -> tuple[tb.Model, tuple[Tensor, Tensor]]:
    x = normal(rows, 2, seed=1)
    model = tb.Model(small(), tb.likelihoods.Gaussian(scale, initial=0.5), **settings)
    return model, (x, x[:, :1].sin() + 0.3 * normal(rows, 1, seed=2))


def trajectory(data: tuple[Tensor, Tensor], count: int = 6) -> list[Any]:
    """A plain training loop that knows nothing of the library."""
    net, seen = small(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
    for step in range(200 + 10 * count):
        optimizer.zero_grad()
        (net(data[0]) - data[1]).square().mean().backward()
        optimizer.step()
        if step >= 200 and step % 10 == 9:
            seen.append(copy.deepcopy(net))
    return seen


def test_batch_norm_needs_the_data() -> None:
    name = "conv_batch_norm"
    model, nets, data = model_of(name), visited(name, 4), rows_of(name)
    collector = tb.SWA().collector(model)
    collector.collect(nets)
    with pytest.raises(ValueError, match=r"`1` is a batch norm .*collector\.posterior\(data\)"):
        collector.posterior()
    posterior = collector.posterior(data)
    own: Any = copy.deepcopy(nets[0]).train()
    with torch.no_grad():
        for n, p in own.named_parameters():
            p.copy_(torch.stack([dict(net.named_parameters())[n] for net in nets]).mean(0))
        own[1].momentum = None  # cumulative average
        own(data[0])
        expected = own.eval()(data[0])
    torch.testing.assert_close(posterior.functions()(data[0])[0], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("temperature", "tempering"),
    [pytest.param(1.0, "joint", marks=pytest.mark.study), (0.3, "likelihood"), (0.3, "joint")],
)
def test_a_learned_noise_scale_is_the_most_probable_one(temperature: float, tempering: str) -> None:
    model, data = regression(temperature=temperature, tempering=tempering)
    collector = tb.SWAG().collector(model)
    collector.collect(trajectory(data))
    with pytest.raises(ValueError, match=r"`log_scale` of the likelihood is learned.*collector\.posterior\(data\)"):
        collector.posterior()
    posterior = collector.posterior(data)
    weights = posterior.mean_MD[0].clone().requires_grad_()
    (slope,) = torch.autograd.grad(
        posterior.model.log_joint(weights, model.unpack(data), len(data[0])), weights, create_graph=True
    )
    assert abs(slope[-1].item()) < 1e-3  # of 60 nats: the search ends at steps of 1e-6
    (second,) = torch.autograd.grad(slope[-1], weights)
    variance = posterior.covariance.diagonal()[0, -1]
    torch.testing.assert_close(variance, -0.5 / second[-1], rtol=1e-6, atol=0)  # ½ is the factor of SWAG
    f = model.network(model.split(posterior.mean_MD[0])[0], data[0])
    torch.testing.assert_close(posterior.mean_MD[0, -1].exp(), (f - data[1]).square().mean().sqrt(), rtol=0.02, atol=0)


def test_a_noise_scale_may_be_given_with_the_points() -> None:
    model, data = regression()
    nets = trajectory(data)
    held = [{**net.state_dict(), "likelihood.log_scale": torch.full((1,), 0.1 * t)} for t, net in enumerate(nets)]
    posterior = swag(model, held)  # so no data are needed
    torch.testing.assert_close(posterior.mean_MD[0, -1], torch.tensor(0.25, dtype=torch.float64), rtol=1e-6, atol=0)
    assert posterior.covariance.diagonal()[0, -1] > 1e-3
    collector = tb.SWA().collector(model)
    collector.collect(held[0])
    with pytest.raises(ValueError, match=r"`likelihood\.log_scale` must be given with every point or with none"):
        collector.collect(nets[0])
    with pytest.raises(ValueError, match=r"`likelihood\.log_scale` has shape \(2,\)"):
        collector.collect({**held[0], "likelihood.log_scale": torch.zeros(2)})
    with pytest.raises(ValueError, match=r"not finite: 1 of the 1 values of `likelihood\.log_scale`"):
        collector.collect({**held[0], "likelihood.log_scale": torch.tensor([torch.nan])})


def test_noise_without_a_maximum_is_said() -> None:
    model, (x, _) = regression()
    net = model.network.module
    point = tb.Point(model, model.given_weights().unsqueeze(0))
    exact = (x, net(x).detach())
    actual = torch.cat(
        learned_at(point, as_source(model, exact, 20))
    )  # residuals of 0: the prior alone bounds the scale
    assert torch.isfinite(actual).all()
    collector = tb.SWA().collector(model)
    collector.collect(net)
    with pytest.raises(ValueError, match="empty"):
        collector.posterior((x[:0], exact[1][:0]))


def test_an_average_of_two_basins_is_said_to_be_broken() -> None:
    """Two networks with their hidden units in another order are one function, and their mean is none."""
    model, data = regression(0.1, 200)
    net = trajectory(data, 1)[0]
    for layer in (0, 2):
        net[layer].weight.data *= 3
    other = copy.deepcopy(net)
    other[0].weight.data, other[0].bias.data = -net[0].weight.data, -net[0].bias.data
    other[2].weight.data = -net[2].weight.data
    targets = net(data[0]).detach()
    torch.testing.assert_close(other(data[0]), targets)
    collector = tb.SWA().collector(model)
    collector.collect([net, other])
    with pytest.warns(tb.ProblemWarning, match="less likely under the average of member 0"):
        posterior = collector.posterior((data[0], targets))
    assert posterior.problems


# --- what the posterior is good for, and going on later


def test_the_posterior_does_what_one_of_fit_does(tmp_path: Path) -> None:
    model, data = regression()
    collector = tb.SWAG(rank=3).collector(model)
    collector.collect(trajectory(data))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        posterior = collector.posterior(data)
    loaded = tb.load(posterior.save(tmp_path / "posterior.safetensors"), model)
    torch.testing.assert_close(loaded.sample(5), posterior.sample(5), rtol=0, atol=0)
    assert tb.evaluate(posterior, data).metrics["rmse"] < 0.5
    after = tb.Model(small(), model.likelihood, tb.as_prior(posterior))
    weights = posterior.sample(2)
    torch.testing.assert_close(after.log_prior(weights), posterior.log_prob(weights), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["mlp", "conv_batch_norm"])
@pytest.mark.parametrize("method", [tb.SWA(members=2), tb.SWAG(members=2, rank=3)])
def test_an_interrupted_collector_is_one_that_was_not(name: str, method: tb.SWA | tb.SWAG, tmp_path: Path) -> None:
    model, data, path = model_of(name), rows_of(name), tmp_path / "run" / "collector.safetensors"
    runs = [visited(name, 6, seed) for seed in (1, 2)]
    whole = parts = method.collector(model)
    for t in range(6):
        parts = method.collector(model, resume=path)  # a new process for every point
        for m, nets in enumerate(runs):
            whole.collect(nets[t], member=m)
            parts.collect(nets[t], member=m)
        parts.save(path)
    assert parts.points == whole.points == (6, 6)
    actual, expected = parts.posterior(data), whole.posterior(data)
    assert torch.equal(actual.sample(4), expected.sample(4))
    assert torch.equal(actual.functions(2)(data[0]), expected.functions(2)(data[0]))
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_files_of_other_collectors_are_refused(tmp_path: Path) -> None:
    model, nets = model_of(), visited()
    collector = tb.SWAG(rank=3).collector(model)
    collector.collect(nets)
    path = collector.save(tmp_path / "collector.safetensors")
    other = tb.Model(made("mlp"), tb.likelihoods.Categorical(), tb.priors.Normal(2.0))
    cases = [
        (tb.SWAG(rank=4), model, path, "was collected with `rank` 3, not 4"),
        (tb.SWAG(rank=3, members=2), model, path, "with `members` 1, not 2"),
        (tb.SWA(), model, path, "with `method` SWAG, not SWA"),
        (tb.SWAG(rank=3), model_of(dtype=torch.float32), path, "with `dtype` torch.float64, not torch.float32"),
        (tb.SWAG(rank=3), model_of("tied"), path, "does not fit this model"),
        (tb.SWAG(rank=3), other, path, "under another model"),
        (tb.SWAG(rank=3), model, collector.posterior().save(tmp_path / "p.safetensors"), "'gaussian', not what a coll"),
    ]
    for method, mine, file, words in cases:
        with pytest.raises(ValueError, match=words):
            method.collector(mine, resume=file)


def test_damaged_files_are_never_misread(tmp_path: Path) -> None:
    model, nets = model_of(), visited()
    collector = tb.SWAG(rank=3).collector(model)
    collector.collect(nets)
    expected = collector.posterior().sample(3)
    path = collector.save(tmp_path / "collector.safetensors")
    good, other = path.read_bytes(), tb.SWA().collector(model).save(tmp_path / "other.safetensors").read_bytes()
    for seed in range(60):
        chance = random.Random(seed)
        path.write_bytes(chance.choice([*DAMAGES.values()])(good, chance, other))
        said, actual = "", None
        try:
            actual = tb.SWAG(rank=3).collector(model, resume=path)
        except ValueError as error:
            said = str(error)
        assert str(path) in said or (actual is not None and torch.equal(actual.posterior().sample(3), expected))


def test_every_network_of_the_registry_can_be_collected() -> None:
    for name in NETWORKS:
        collector = tb.SWA().collector(model_of(name))
        collector.collect(visited(name, 2))
        assert torch.isfinite(collector.posterior(rows_of(name)).sample(1)).all()
