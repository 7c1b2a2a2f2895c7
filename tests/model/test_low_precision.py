"""Networks in bfloat16 and float16: float32 weights, cast where the network is called, outputs in float32."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import torchbayes as tb
from tests.covering import some_of
from torchbayes.evidence import prior_monte_carlo

pytestmark = pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # these fits are of a few steps
LOW = [torch.bfloat16, torch.float16]
METHODS: dict[str, Any] = {
    "map": tb.MAP(members=2, epochs=2, batch_size=4),
    "swag": tb.SWAG(members=2, epochs=4, batch_size=4, rank=2),
    "sgld": tb.SGLD(chains=2, steps=6, burn_in=2, batch_size=4, thin=1),
    "sghmc": tb.SGHMC(chains=2, steps=6, burn_in=2, batch_size=4, thin=1),
    "online": tb.OnlineLaplace(structure="diagonal", epochs_of_descent=4, every=2, batch_size=4),
    **{
        s: tb.Laplace(structure=s, check_mode=False, prior="model")
        for s in ("diagonal", "kronecker", "ekfac", "dense", "low_rank")
    },
}
METROPOLIS = [
    tb.HMC(chains=2, steps=4, burn_in=2, step_size=1e-2, trajectory=0.03),
    tb.NUTS(chains=2, steps=4, burn_in=2),
    tb.MALA(chains=2, steps=4, burn_in=2),
    tb.RandomWalk(chains=2, steps=4, burn_in=2),
]


class Mixed(nn.Module):
    """Layers in bfloat16 with a norm in float32 between them."""

    def __init__(self, low: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 6).to(low), nn.LayerNorm(6), nn.Linear(6, 3).to(low)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.first(x).float()).tanh()
        return self.last(hidden.to(self.last.weight.dtype))


class Adapted(nn.Module):
    """A frozen layer in bfloat16 with an adapter in float32, whose outputs are rounded like the layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.lora = nn.Linear(4, 3).bfloat16(), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.lora(x.float()).bfloat16()


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "mixed":
        return Mixed()
    made = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    return made.to(torch.float16 if name == "float16" else torch.bfloat16)


def rows(count: int = 16) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(1)
    return torch.randn(count, 4, generator=source), torch.randint(3, (count,), generator=source)


def model_of(module: nn.Module, **options: Any) -> tb.Model:
    return tb.Model(module, tb.likelihoods.Categorical(), **options)


def in_float32(name: str) -> nn.Module:
    module = network(name)
    return (Mixed(torch.float32) if name == "mixed" else copy.deepcopy(module).float()).requires_grad_()


@pytest.mark.parametrize("name", ["bfloat16", "float16", "mixed"])
@pytest.mark.parametrize("plan", ["loop", "vmap"])
def test_the_gradient_is_that_of_a_loop_by_hand_with_float32_weights(name: str, plan: Any) -> None:
    module, (x, y) = network(name), rows()
    model = model_of(module)
    held = dict(module.named_parameters())
    masters = {n: p.detach().float().add(1e-4).requires_grad_() for n, p in held.items()}
    outputs = functional_call(module, {n: m.to(held[n].dtype) for n, m in masters.items()}, (x.to(held_dtype(held)),))
    joint = -nn.functional.cross_entropy(outputs.float(), y, reduction="sum")
    prior = sum(-0.5 * m.square().sum() for m in masters.values())
    expected = torch.autograd.grad(joint + prior, [*masters.values()])
    weights_MD = model.layout.join(masters).detach().unsqueeze(0)
    assert weights_MD.dtype == model.network.dtype == torch.float32
    batch = model.unpack((x, y)).map(lambda t: t.unsqueeze(0))
    actual = tb.LogDensity(model, len(x), plan=plan)(weights_MD, batch)
    wide = (
        0 if plan == "loop" else 0.02 * float(torch.cat([e.flatten() for e in expected]).abs().max())
    )  # other kernels
    torch.testing.assert_close(
        actual.gradient[0], model.layout.join(dict(zip(masters, expected, strict=True))), rtol=1e-6, atol=1e-6 + wide
    )
    torch.testing.assert_close(
        actual.log_likelihood[0].float(), joint.detach(), rtol=1e-6 if plan == "loop" else 1e-2, atol=0
    )


def held_dtype(held: dict[str, nn.Parameter]) -> torch.dtype:
    return next(iter(held.values())).dtype


def test_steps_smaller_than_the_gap_between_two_numbers_add_up() -> None:
    module = nn.Linear(4, 3).bfloat16()
    nn.init.ones_(module.weight)
    data, model = rows(), model_of(module, prior=tb.priors.Flat())
    posterior = tb.fit(model, data, tb.MAP(epochs=50, optimizer=tb.SGD(1e-5)), start=module, callbacks=())
    moved = (posterior.weights_MD[0] - model.given_weights()).abs().max()  # type: ignore[attr-defined]
    assert 0 < moved < 2**-7  # the least step from 1 in bfloat16


@pytest.mark.parametrize(("method", "name"), some_of(METHODS, ["float16", "mixed"], one_in=2))
def test_every_method(name: str, method: str, tmp_path: Path) -> None:
    module, data = network(name), rows()
    model, settings = model_of(module), METHODS[method]
    start = model.given_weights() if isinstance(settings, tb.Laplace) else None
    posterior = tb.fit(model, data, settings, start=start, directory=tmp_path / "run", callbacks=())
    assert posterior.sample(2).dtype == torch.float32
    probs = tb.predict(posterior, data[0], draws=4).probs
    assert probs.dtype == torch.float32
    expected = -probs.double().gather(1, data[1].unsqueeze(1)).log().mean()
    assert tb.evaluate(posterior, data, draws=4).metrics["nll"] == pytest.approx(float(expected), rel=1e-4)
    loaded = tb.load(posterior.save(tmp_path / "posterior.safetensors"), model)
    torch.testing.assert_close(tb.predict(loaded, data[0], draws=4).probs, probs, rtol=0, atol=0)
    assert {p.dtype for p in module.parameters()} == {p.dtype for p in network(name).parameters()}
    with pytest.raises(
        ValueError, match=r"its precision is \d random parameters in torch\.b?float16, the model's noth"
    ):
        tb.load(tmp_path / "posterior.safetensors", model_of(in_float32(name)))


@pytest.mark.parametrize("name", ["bfloat16", "float16", "mixed"])
def test_weights_of_the_posterior_go_back_into_the_module(name: str) -> None:
    module, data = network(name), rows()
    model = model_of(module)
    posterior = tb.fit(model, data, METHODS["swag"], callbacks=())
    (drawn_D,) = posterior.sample(2)[:1]
    module.load_state_dict(model.layout.split(drawn_D))  # type: ignore[arg-type]
    x = data[0].to(model.network.precision.inputs)
    outputs = tb.predict(posterior, data[0], draws=2).outputs_SBK
    torch.testing.assert_close(module(x).float(), outputs[0], rtol=0, atol=0)
    torch.testing.assert_close(tb.Point.of(model, module).weights_MD[0], drawn_D, rtol=2**-8, atol=1e-7)


@pytest.mark.parametrize("structure", ["diagonal", "kronecker", "dense"])
@pytest.mark.parametrize("name", ["bfloat16", "float16", "mixed"])
def test_laplace_is_that_of_the_network_in_float32_up_to_its_rounding(name: str, structure: str) -> None:
    module, data, method = network(name), rows(), tb.Laplace(structure=structure, check_mode=False, prior="model")
    full = in_float32(name)
    full.load_state_dict(module.state_dict())
    low, wide = model_of(module), model_of(full)
    ours, theirs = (tb.fit(m, data, method, start=low.given_weights(), callbacks=()) for m in (low, wide))
    assert isinstance(ours, tb.LaplacePosterior)
    assert isinstance(theirs, tb.LaplacePosterior)
    # rounding to 8 bits is 0.4 % of a number
    spread, expected = (tb.Linearised(p).functions(p.model.place(data[0])).covariance_MBKK for p in (ours, theirs))
    torch.testing.assert_close(spread, expected, rtol=0.01, atol=0.005 * float(expected.abs().max()))
    torch.testing.assert_close(ours.log_evidence(), theirs.log_evidence(), rtol=2e-3, atol=0)


def test_a_mode_in_bfloat16_is_a_start_for_laplace_in_float32() -> None:
    module, data = network("bfloat16"), rows()
    mode = tb.fit(model_of(module), data, METHODS["map"], callbacks=())
    full = model_of(copy.deepcopy(module).float())
    actual: Any = tb.fit(full, data, METHODS["kronecker"], start=mode, callbacks=())
    assert torch.equal(actual.mean_MD, mode.weights_MD)  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", METROPOLIS, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("name", ["bfloat16", "float16", "mixed", "adapted"])
def test_metropolis_methods_say_why_they_refuse(name: str, method: Any, tmp_path: Path) -> None:
    model = model_of(Adapted(), random="lora.*") if name == "adapted" else model_of(network(name))
    dtype, bits = ("float16", 11) if name == "float16" else ("bfloat16", 8)
    said = re.escape(f"computes in torch.{dtype} what depends on its random weights: with {bits} bits, energies are")
    with pytest.raises(TypeError, match=said):
        tb.fit(model, rows(), method, directory=tmp_path / "run", callbacks=())
    assert not (tmp_path / "run").exists()
    data = model.unpack(rows())
    with pytest.raises(TypeError, match=said):
        tb.sample(tb.LogDensity(model, 16, data), method, model.given_weights().expand(2, -1), callbacks=())
    with pytest.raises(TypeError, match=said):
        prior_monte_carlo(model, rows(), draws=4)


@pytest.mark.parametrize("method", METROPOLIS, ids=lambda m: type(m).__name__)
def test_metropolis_methods_take_a_float32_head_on_a_frozen_bfloat16_body(method: Any) -> None:
    class Headed(nn.Sequential):
        def forward(self, input: Tensor) -> Tensor:
            return self[1](self[0](input).float())

    model, data = model_of(Headed(nn.Linear(4, 5).bfloat16(), nn.Linear(5, 3)), random="1.*"), rows()
    posterior = tb.fit(model, data, method, callbacks=())
    assert tb.predict(posterior, data[0]).probs.isfinite().all()  # inputs are cast to what the body takes


@pytest.mark.parametrize("method", [n for n in METHODS if n != "online"])
def test_an_adapter_in_float32_on_a_frozen_bfloat16_layer(method: str) -> None:
    model, data = model_of(Adapted(), random="lora.*"), rows()
    start = model.given_weights() if isinstance(METHODS[method], tb.Laplace) else None
    posterior = tb.fit(model, data, METHODS[method], start=start, callbacks=())
    assert tb.predict(posterior, data[0], draws=2).probs.isfinite().all()


@pytest.mark.parametrize("low", LOW)
def test_masks_of_partly_random_parameters(low: torch.dtype) -> None:
    module, data = nn.Linear(4, 3).to(low), rows()
    mask = torch.arange(12).view(3, 4) % 2 == 0
    model = model_of(module, random={"weight": mask})
    posterior = tb.fit(model, data, METHODS["map"], start=module, callbacks=())
    outputs = tb.predict(tb.Point(model, model.given_weights().unsqueeze(0)), data[0]).outputs_SBK[0]
    torch.testing.assert_close(outputs, module(data[0].to(low)).float(), rtol=0, atol=0)
    assert posterior.sample(2).shape == (2, 6)


def test_a_subspace_of_a_network_in_bfloat16() -> None:
    model, data = model_of(network("bfloat16")), rows()
    space = tb.Subspace.random(model, model.given_weights(), 3)
    posterior = tb.fit(model, data, METHODS["swag"], space=space, callbacks=())
    assert tb.predict(posterior, data[0]).probs.isfinite().all()
    with pytest.raises(TypeError, match="with 8 bits, energies are off"):
        tb.fit(model, data, METROPOLIS[0], space=space, callbacks=())


def test_a_noise_scale_is_learned_in_float32() -> None:
    module, (x, _) = network("bfloat16"), rows()
    model = tb.Model(module, tb.likelihoods.Gaussian(outputs=3))
    posterior = tb.fit(model, (x, x[:, :3]), METHODS["sgld"], callbacks=())
    assert tb.evaluate(posterior, (x, x[:, :3])).metrics["nll"] < 10


@pytest.mark.parametrize("other", LOW)
def test_float64_is_not_mixed_with_anything(other: torch.dtype) -> None:
    module = nn.Sequential(nn.Linear(4, 3).double(), nn.Linear(3, 3).to(other))
    with pytest.raises(TypeError, match=r"share one floating-point dtype; got .*may be mixed with float32"):
        model_of(module)


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(tmp_path: Path) -> None:
    model, data, method = model_of(network("mixed")), rows(), tb.MAP(epochs=4, batch_size=4)
    whole = tb.fit(model, data, method, callbacks=())
    tb.fit(model, data, method, directory=tmp_path, callbacks=(lambda event: event.epoch == 2,))
    resumed = tb.fit(model, data, method, directory=tmp_path, resume=True, callbacks=())
    assert torch.equal(resumed.sample(1), whole.sample(1))
