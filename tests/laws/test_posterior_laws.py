"""Laws that every posterior keeps."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import torchbayes as tb
from tests.covering import with_studies
from tests.laws.cases import POSTERIORS, assert_same_tensors, made, model_of, rows_of
from torchbayes.posteriors.posterior import Posterior

MEMBERS = 3
Make = Callable[[tb.Model, int], Posterior]

pytestmark = pytest.mark.parametrize("make", POSTERIORS.values(), ids=POSTERIORS.keys())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("draws", [3, 60, *(pytest.param(draws, marks=pytest.mark.study) for draws in (9, 36))])
def test_draws_are_rows_of_the_models_dtype(make: Make, dtype: torch.dtype, draws: int) -> None:
    model = model_of(dtype=dtype)
    weights_SD = make(model, MEMBERS).sample(draws)
    assert weights_SD.shape == (draws, model.layout.size)
    assert weights_SD.dtype == dtype
    outputs_SBK = make(model, MEMBERS).functions(draws)(rows_of(dtype=dtype)[0])
    assert outputs_SBK.shape == (draws, 24, 3)
    assert outputs_SBK.dtype == dtype
    assert torch.isfinite(outputs_SBK).all()


def test_same_seed_same_draws_other_seed_other_draws(make: Make) -> None:
    posterior = make(model_of(), MEMBERS)
    assert torch.equal(posterior.sample(6, seed=1), posterior.sample(6, seed=1))
    fixed = isinstance(posterior, tb.Point)
    assert torch.equal(posterior.sample(6, seed=1), posterior.sample(6, seed=2)) == fixed


def test_first_draws_of_a_longer_request_are_the_draws_of_a_shorter_one(make: Make) -> None:
    posterior = make(model_of(), MEMBERS)
    long = posterior.sample(9 * MEMBERS, seed=4)
    for rounds in (1, 2, 5):
        # equal to rounding: a product of matrices sums in an order that depends on the number of rows
        short = posterior.sample(rounds * MEMBERS, seed=4)
        torch.testing.assert_close(long[: rounds * MEMBERS], short, rtol=1e-12, atol=1e-13)


def test_sampling_leaves_global_random_state_alone(make: Make) -> None:
    before = torch.get_rng_state()
    make(model_of(), MEMBERS).functions(6, seed=5)(rows_of()[0])
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("dtype", "network"),
    with_studies(
        [(torch.float32, "conv_batch_norm")],
        (torch.float32, torch.float64),
        ("mlp", "conv_batch_norm", "tied", "frozen"),
    ),
)
def test_a_saved_and_loaded_posterior_gives_the_same_functions(
    make: Make, dtype: torch.dtype, network: str, tmp_path: Path
) -> None:
    model, (inputs, _) = model_of(network, dtype), rows_of(network, dtype)
    posterior = make(model, MEMBERS)
    calibration = (lambda: [inputs[:10], inputs[10:]]) if model.network.batch_norms else None
    loaded = tb.load(posterior.save(tmp_path / "q.safetensors"), model_of(network, dtype), calibration=calibration)
    assert type(loaded) is type(posterior)
    assert loaded.members == MEMBERS
    assert_same_tensors(loaded.tensors(), posterior.tensors())
    assert torch.equal(loaded.sample(6, seed=3), posterior.sample(6, seed=3))
    expected = tb.load(tmp_path / "q.safetensors", model, calibration=calibration).functions(6, seed=3)(inputs)
    assert torch.equal(loaded.functions(6, seed=3)(inputs), expected)


def test_module_is_untouched_bit_for_bit(make: Make) -> None:
    module = made("conv_batch_norm").train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    model = tb.Model(module, tb.likelihoods.Categorical())
    inputs, _ = rows_of("conv_batch_norm")
    posterior = make(model, MEMBERS)
    object.__setattr__(posterior, "calibration", lambda: [inputs])
    tb.predict(posterior, inputs, draws=6)
    assert_same_tensors(module.state_dict(), before)
    assert module.training
    assert all(p.grad is None and p.requires_grad for p in module.parameters())


def test_draw_s_is_from_member_s_mod_m(make: Make) -> None:
    """Members far apart: each draw lies next to its own member."""
    model = model_of()
    posterior = make(model, MEMBERS)
    shift = 1e4 * torch.arange(MEMBERS, dtype=torch.float64)
    name = next(
        n for n in posterior.tensors() if n in {"weights_MD", "mean_MD", "weights_MSD", "points_MPD", "vertices_MPD"}
    )
    centre = posterior.tensors()[name]
    moved = centre + shift.view(-1, *[1] * (centre.ndim - 1))
    object.__setattr__(posterior, name, moved)
    nearest = (posterior.sample(4 * MEMBERS, seed=6).mean(-1) / 1e4).round()
    assert nearest.tolist() == [0, 1, 2] * 4


@pytest.mark.parametrize(("draws", "advice"), [(10, "Try 9 or 12."), (2, "Try 3."), (0, "Try 3."), (-3, "Try 3.")])
def test_draws_must_weigh_members_equally(make: Make, draws: int, advice: str) -> None:
    with pytest.raises(ValueError, match="multiple") as caught:
        make(model_of(), MEMBERS).sample(draws)
    assert str(caught.value) == f"`draws` must be a multiple of the 3 members; got {draws}. {advice}"


def test_default_draws_weigh_members_equally(make: Make) -> None:
    for members in (1, 4, 7):
        posterior = make(model_of(), members)
        assert posterior.default_draws % members == 0
        assert posterior.functions().draws == posterior.default_draws


def test_the_model_average_weighs_members_equally(make: Make) -> None:
    """The mean over draws of a one-member-at-a-time average equals the average over all members' draws."""
    model, (inputs, _) = model_of(), rows_of()
    functions = make(model, MEMBERS).functions(6 * MEMBERS, seed=8)
    probs = tb.predict(functions, inputs).probs
    each = [tb.Functions(model, functions.weights_SD[m::MEMBERS]) for m in range(MEMBERS)]
    averaged = torch.stack([tb.predict(f, inputs).probs for f in each]).mean(0)
    torch.testing.assert_close(probs, averaged, rtol=1e-12, atol=1e-14)


def test_batch_norm_statistics_belong_to_the_draw(make: Make) -> None:
    """A draw's network, loaded by hand and passed over the training inputs, predicts the same."""
    model, (inputs, _) = model_of("conv_batch_norm"), rows_of("conv_batch_norm")
    posterior = make(model, MEMBERS)
    with pytest.raises(ValueError, match="calibration="):
        posterior.functions(MEMBERS)
    object.__setattr__(posterior, "calibration", lambda: iter([inputs[:8], inputs[8:]]))
    functions = posterior.functions(MEMBERS, seed=1)
    outputs_SBK = functions(inputs)
    for s in range(MEMBERS):
        module = made("conv_batch_norm")
        module.load_state_dict({**module.state_dict(), **model.layout.split(functions.weights_SD[s])})
        norm = module.get_submodule("1")
        assert isinstance(norm, torch.nn.BatchNorm2d)
        hidden = module.get_submodule("0")(inputs)
        parts = (hidden[:8], hidden[8:])
        means = torch.stack([p.mean((0, 2, 3)) for p in parts])
        variances = torch.stack([p.var((0, 2, 3)) for p in parts])
        shares = torch.tensor([8.0, 16.0], dtype=torch.float64) / 24
        norm.running_mean, norm.running_var = shares @ means.detach(), shares @ variances.detach()
        torch.testing.assert_close(outputs_SBK[s], module.eval()(inputs), rtol=1e-10, atol=1e-12)
