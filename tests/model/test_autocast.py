"""Networks under autocast: products in 16 bits, everything else in float32; and gradients that pass through float16."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

import torchbayes as tb
from torchbayes.density.autograd import Chunk, by_chunks
from torchbayes.evidence import prior_monte_carlo

pytestmark = pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # these fits are of a few steps
EPS = {"bfloat16": 2**-8, "float16": 2**-11}  # half of the gap above 1: the largest error of rounding
LOW: Any = pytest.mark.parametrize("low", EPS)
STEPS: dict[str, Any] = {"chains": 2, "steps": 6, "burn_in": 2, "thin": 1}
METHODS: dict[str, Any] = {
    "map": tb.MAP(members=2, epochs=2, batch_size=4, plan="loop"),
    "vmap": tb.MAP(members=2, epochs=2, batch_size=4, plan="vmap"),
    "swag": tb.SWAG(epochs=4, batch_size=4, rank=2),
    "local": tb.VI(epochs=2, batch_size=4, estimator="local"),
    "flipout": tb.VI(epochs=2, batch_size=4, estimator="flipout"),
    "mixed": tb.VI(epochs=2, batch_size=4, estimator="weights", draws=2, alpha=0.5),
    "ivon": tb.IVON(epochs=2, batch_size=4),
    "vbll": tb.VBLL(epochs=2, batch_size=4),
    "sgld": tb.SGLD(**STEPS, batch_size=4),
    "sghmc": tb.SGHMC(**STEPS, batch_size=None),
}
METROPOLIS: list[Any] = [
    tb.HMC(chains=2, steps=4, burn_in=2),
    tb.NUTS(chains=2, steps=4, burn_in=2),
    tb.MALA(chains=2, steps=4, burn_in=2),
    tb.EllipticalSlice(chains=2, steps=4, burn_in=2),
    tb.MCLMC(chains=2, steps=12, burn_in=2),
]


class Net(nn.Module):
    """Two layers around a block that may be checkpointed; `seen` are the dtypes of its hidden tensors."""

    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.checkpointed, self.seen = nn.Linear(4, 16), checkpointed, set[torch.dtype]()
        self.block = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.LayerNorm(16))
        self.last = nn.Linear(16, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs).tanh()
        self.seen.add(hidden.dtype)
        hidden = checkpoint(self.block, hidden, use_reentrant=False) if self.checkpointed else self.block(hidden)
        return self.last(hidden)


def rows(count: int = 16) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(1)
    return torch.randn(count, 4, generator=source), torch.randint(3, (count,), generator=source)


def model_of(module: nn.Module | None = None, **options: Any) -> tb.Model:
    return tb.Model(module or Net(), tb.likelihoods.Categorical(), **{"prior": tb.priors.Normal(1.0), **options})


def nll(model: tb.Model, weights_MD: Tensor | None = None, *, plan: Any = "loop", copies: int = 1) -> Any:
    """Value and gradient of members on a minibatch."""
    weights_MD = model.given_weights().expand(copies, -1) if weights_MD is None else weights_MD
    batch = model.unpack(rows()).map(lambda t: t.expand(len(weights_MD), *t.shape).contiguous())
    return tb.LogDensity(model, 16, plan=plan).nll(weights_MD, batch)


@pytest.mark.parametrize("chunk_size", [None, 8])
@LOW
def test_values_and_gradients_are_those_of_a_loop_by_hand(low: str, chunk_size: int | None) -> None:
    module, (x, y) = Net(), rows()
    leaves = {name: p.detach().clone().requires_grad_() for name, p in module.named_parameters()}
    total = torch.zeros((), dtype=torch.float64)
    for start in range(0, 16, chunk_size or 16):
        where = slice(start, start + (chunk_size or 16))
        with torch.autocast("cpu", getattr(torch, low)):
            outputs = functional_call(module, leaves, (x[where],))
        assert outputs.dtype == getattr(torch, low)
        total = total + nn.functional.cross_entropy(outputs.float(), y[where], reduction="sum").double() / 16
    (total * 4096).backward()  # a power of 2, without which float16 would lose small numbers
    model = model_of(autocast=low, chunk_size=chunk_size)
    actual, expected = (
        nll(model),
        model.layout.join({name: leaf.grad / 4096 for name, leaf in leaves.items() if leaf.grad is not None}),
    )
    assert actual.gradient.dtype == torch.float32
    torch.testing.assert_close(actual.gradient[0], expected, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(actual.log_density[0], total.detach(), rtol=1e-6, atol=0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's compiler
@pytest.mark.parametrize("plan", ["loop", "vmap", pytest.param("compiled", marks=pytest.mark.study)])
@pytest.mark.parametrize("checkpointed", [False, True])
@LOW
def test_gradients_are_those_of_float32_to_rounding(low: str, plan: str, checkpointed: bool) -> None:
    if checkpointed and plan != "loop":
        pytest.skip("a transform would keep the activations")
    exact = nll(model_of(), copies=2)
    actual = nll(model_of(Net(checkpointed), autocast=low), plan=plan, copies=2)
    error = float((actual.gradient - exact.gradient).norm() / exact.gradient.norm())
    assert 0 < error < 4 * EPS[low]  # three products and their gradients, rounded independently
    assert 0 < float((actual.log_density - exact.log_density).abs().max()) < 2 * EPS[low]


@pytest.mark.parametrize("method", METHODS)
@LOW
def test_every_method_and_its_predictions(low: str, method: str) -> None:
    probs = []
    for autocast in (None, low):
        module = Net()
        model = model_of(module, autocast=autocast)
        posterior: Any = tb.fit(model, rows(), METHODS[method], callbacks=())
        assert posterior.sample(2).dtype == torch.float32
        probs.append(tb.predict(posterior, rows()[0], **({} if method == "vbll" else {"draws": 4})).probs)
        assert (getattr(torch, low) in model.network.module.seen) == (autocast is not None)
        assert not module.seen  # the given network was not run
        if autocast is not None and method != "vbll":  # whose predictions are in closed form
            evaluated = tb.evaluate(posterior, rows(), draws=4).metrics["nll"]
            expected = -probs[1].double().gather(1, rows()[1].unsqueeze(1)).log().mean()
            assert evaluated == pytest.approx(float(expected), rel=1e-4)
    # a few steps, whose directions differ by rounding; Adam divides by the size of gradients that may be next to 0
    torch.testing.assert_close(probs[1], probs[0], rtol=0, atol=8 * EPS[low])


def test_the_kernel_leaves_autocast_to_pytorch() -> None:
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    density = tb.LogDensity(model_of(module, autocast="bfloat16"), 16)
    density.nll(density.model.given_weights().unsqueeze(0), density.model.unpack(rows()).map(lambda t: t.unsqueeze(0)))
    assert density.plan is not None
    assert density.plan.backend == "loop"
    with pytest.raises(ValueError, match="plan 'native' cannot run this model: the kernel computes in the dtype of"):
        nll(model_of(module, autocast="bfloat16"), plan="native")


class Faint(nn.Module):
    """A network whose outputs depend on its weights so little, or so much, that gradients leave float16."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.factor = nn.Linear(4, 3), factor

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs) * self.factor


@pytest.mark.parametrize("factor", [1e-7, 1.0, 1e3])
def test_gradients_that_leave_float16_are_scaled(factor: float) -> None:
    """The product with the factor gives cotangents of the layer below 6e-8, or above 65,504 once they are scaled."""
    exact = nll(model_of(Faint(factor).double())).gradient
    with torch.autocast("cpu", torch.float16):
        plain = model_of(Faint(factor))
        leaf = plain.given_weights().requires_grad_()
        outputs = functional_call(Faint(factor), plain.layout.split(leaf), (rows()[0],))
        nn.functional.cross_entropy(outputs.float(), rows()[1]).backward()
    assert leaf.grad is not None
    if factor < 1:
        assert not leaf.grad.any()  # what would be without a factor
    actual = nll(model_of(Faint(factor), autocast="float16")).gradient
    if factor <= 1:  # else the softmax is that of outputs of 16 bits
        torch.testing.assert_close(actual.double(), exact, rtol=0, atol=8 * EPS["float16"] * float(exact.abs().max()))
    assert bool(actual.isfinite().all())
    assert bool(actual.any())


def test_the_same_rows_are_taken_again_at_a_smaller_factor() -> None:
    calls: list[float] = []

    def run(chunk: Chunk) -> Tensor:
        """The gradient of 8 rows, each 100; what is above 65,504 is infinite."""
        calls.append(chunk.scale)
        own = torch.full((2,), 100.0 * len(chunk.rows.inputs)) * chunk.scale
        own = torch.where(own > 65504, torch.inf, own) / chunk.scale
        gradient.copy_(gradient + own if chunk.adds else own)
        for buffer in (chunk.buffers or {}).values():
            buffer.add_(1)
        return torch.zeros(1)

    def asked(factor: float, *, scaled: bool = True, value: float = 0.0) -> list[float]:
        calls.clear()
        buffers["count"].zero_()
        by_chunks(
            tb.Batch(torch.zeros(8, 1), torch.zeros(8)),
            lambda chunk: run(chunk) + value,
            size=4,
            gradient=gradient,
            factor=factor,
            scaled=scaled,
            buffers=buffers,
        )
        assert float(buffers["count"]) == 1
        return calls[::2]

    gradient, buffers = torch.empty(2), {"count": torch.zeros(())}
    assert asked(1 / 8) == [4096, 256, 16]  # 400 times 4096, and times 256, is too large
    assert gradient.tolist() == [800.0, 800.0]
    assert asked(-1e6 / 8) == [4096 / 2**20]  # the factor is taken out first, so that N does not matter
    assert asked(1 / 8, scaled=False) == [1.0]
    assert asked(1 / 8, value=float("nan")) == [4096]  # a smaller factor does not mend a value
    gradient.fill_(torch.inf)
    assert asked(0.0) == [1.0]


def test_a_run_whose_loss_is_not_finite_stops() -> None:
    model, (x, y) = model_of(Faint(1e5), autocast="float16"), rows()
    with pytest.raises(tb.DivergedError):
        tb.fit(model, (1e6 * x, y), tb.MAP(epochs=1, batch_size=4, plan="loop"), callbacks=())


def test_noise_of_layers_is_not_lost_in_float16() -> None:
    """With σ = 1e-5 the variances, 1e-10, would be 0 in float16, and outputs would have no noise."""
    from torchbayes.density.layers.passes import by_layers

    gradients = []
    layer = nn.Linear(4, 3)
    for low in (None, "float16"):
        model = model_of(layer, autocast=low)
        density, mean_MD = tb.LogDensity(model, 16, plan="loop"), model.given_weights().unsqueeze(0)
        scale_MD, batch = torch.full_like(mean_MD, 1e-5), model.unpack(rows()).map(lambda t: t.unsqueeze(0))
        actual = by_layers(density, mean_MD, scale_MD, batch=batch, estimator="local", buffers={}, seeds=[1], step=0)
        gradients.append(actual.scale_MD)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("method", METROPOLIS, ids=lambda m: type(m).__name__)
def test_methods_that_compare_energies_refuse(method: Any, tmp_path: Path) -> None:
    model, said = (
        model_of(autocast="bfloat16"),
        r"under autocast in torch.bfloat16: with 8 bits, energies.*without `auto",
    )
    density = tb.LogDensity(model, 16, model.unpack(rows()))
    with pytest.raises(TypeError, match=said):
        tb.fit(model, rows(), method, directory=tmp_path / "run", callbacks=())
    assert not (tmp_path / "run").exists()
    with pytest.raises(TypeError, match=said):
        tb.fit(model, rows(), method, space=tb.Subspace.random(model, model.given_weights(), 3), callbacks=())
    with pytest.raises(TypeError, match=said):
        tb.sample(density, method, model.given_weights().expand(2, -1), callbacks=())
    with pytest.raises(TypeError, match=said):
        prior_monte_carlo(model, rows(), draws=4)


def test_weights_in_float64_are_refused() -> None:
    with pytest.raises(ValueError, match="leaves float64 as it is; got 'float16' for weights in float64"):
        model_of(Net().double(), autocast="float16")


def test_curvature_is_that_of_float32() -> None:
    actual: list[Any] = []
    for low in (None, "bfloat16"):
        model = model_of(autocast=low)
        method = tb.Laplace(check_mode=False, prior="model")
        actual.append(tb.fit(model, rows(), method, start=model.given_weights(), callbacks=()))
    assert torch.equal(actual[0].log_evidence(), actual[1].log_evidence())
    assert torch.equal(*(tb.predict(posterior, rows()[0]).probs for posterior in actual))  # linearised


def test_a_subspace_has_weights_in_float32() -> None:
    """Coordinates so small that weights do not change in 16 bits change the outputs through a bias."""
    model = model_of(nn.Linear(4, 3), autocast="bfloat16")
    space = tb.Subspace(model, model.given_weights(), torch.ones(1, 15), prior_scale=1.0)
    posterior: Any = tb.fit(model, rows(), METHODS["map"], space=space, callbacks=())
    assert tb.predict(posterior, rows()[0]).probs.isfinite().all()
    seen: list[torch.dtype] = []

    class Watched(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            seen.append(self.weight.dtype)
            return super().forward(input)

    model = model_of(Watched(4, 3), autocast="bfloat16")
    space = tb.Subspace(model, model.given_weights(), torch.ones(1, 15), prior_scale=1.0)
    tb.fit(model, rows(), METHODS["map"], space=space, callbacks=())
    assert set(seen) == {torch.float32}


@LOW
def test_a_resumed_run_ends_where_an_uninterrupted_one_does(low: Any, tmp_path: Path) -> None:
    model, method = model_of(autocast=low), tb.MAP(epochs=4, batch_size=4)
    whole = tb.fit(model, rows(), method, callbacks=())
    tb.fit(model, rows(), method, directory=tmp_path, callbacks=(lambda event: event.epoch == 2,))
    with pytest.raises(ValueError, match=f"its autocast is '{low}', now None"):
        tb.fit(model_of(), rows(), method, directory=tmp_path, resume=True, callbacks=())
    resumed = tb.fit(model, rows(), method, directory=tmp_path, resume=True, callbacks=())
    assert torch.equal(resumed.sample(1), whole.sample(1))


def test_a_file_holds_weights_and_the_model_says_how_it_computes(tmp_path: Path) -> None:
    model = model_of(autocast="bfloat16")
    posterior = tb.fit(model, rows(), METHODS["map"], callbacks=())
    path, x = posterior.save(tmp_path / "posterior.safetensors"), rows()[0]
    expected = tb.predict(posterior, x).outputs_SBK
    assert torch.equal(tb.predict(tb.load(path, model), x).outputs_SBK, expected)
    plain = tb.predict(tb.load(path, model_of()), x).outputs_SBK
    assert not torch.equal(plain, expected)
    torch.testing.assert_close(plain, expected, rtol=0, atol=4 * EPS["bfloat16"] * float(plain.abs().max()))


def test_autocast_of_the_program_changes_nothing() -> None:
    def asked(method: Any, **options: Any) -> tuple[Any, list[Tensor]]:
        posterior: Any = tb.fit(model_of(**options), rows(), method, callbacks=())
        drawn = tb.sample(lambda w: -0.5 * (w @ w), tb.HMC(chains=1, steps=4, burn_in=2), torch.ones(3), callbacks=())
        nats = torch.tensor(tb.evaluate(posterior, rows()).metrics["nll"])
        return posterior, [tb.predict(posterior, rows()[0], draws=4).probs, nats, drawn.weights_MSD]

    cases: list[tuple[Any, dict[str, Any]]] = [
        (METHODS["swag"], {}),
        (METHODS["swag"], {"autocast": "float16"}),
        (tb.HMC(chains=2, steps=4, burn_in=2, mass="dense"), {}),
    ]
    for method, options in cases:
        one, expected = asked(method, **options)
        with torch.autocast("cpu", torch.bfloat16):
            other, actual = asked(method, **options)
            assert torch.is_autocast_enabled("cpu")
        # not bit for bit, because the plan may be another; autocast would change three digits
        torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(one.sample(4), other.sample(4))


def test_threads_have_an_autocast_each() -> None:
    def asked(low: Any) -> Callable[[], None]:
        model = model_of(autocast=low)  # here, because it seeds PyTorch's generator

        def run() -> None:
            actual[low] = [nll(model).gradient for _ in range(20)]

        return run

    actual: dict[Any, list[Tensor]] = {}
    kinds = (None, "bfloat16", "float16")
    expected = {low: nll(model_of(autocast=low)).gradient for low in kinds}
    threads = [threading.Thread(target=asked(low)) for low in (*kinds, None)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for low, gradients in actual.items():
        assert len(gradients) == 20
        assert all(torch.equal(gradient, expected[low]) for gradient in gradients)


def test_weights_that_change_within_a_region_of_the_program_are_seen() -> None:
    """PyTorch keeps casts of leaves until the outermost region ends."""
    model = model_of(autocast="bfloat16")
    weights_MD = model.given_weights().unsqueeze(0)
    with torch.autocast("cpu", torch.bfloat16):
        before = nll(model, weights_MD).log_density
        weights_MD += 1
        after = nll(model, weights_MD).log_density
    assert torch.equal(after, nll(model, weights_MD).log_density)
    assert not torch.equal(after, before)
