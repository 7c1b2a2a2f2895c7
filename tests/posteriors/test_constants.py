"""Files are bound to what is not random: frozen parameters, the constant part of a mask, and buffers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchbayes as tb
from torchbayes.model.description import CONSTANTS, fingerprint, fingerprint_differences
from torchbayes.posteriors.files import read_header, read_tensors, write_tensors

X = torch.linspace(-1, 1, 24).reshape(12, 2)
Y = torch.arange(12) % 2
HMC = tb.HMC(chains=1, steps=4, burn_in=2, step_size=1e-3, trajectory=2e-3)
SGLD = tb.SGLD(chains=1, steps=6, burn_in=2, thin=1, step_size=1e-4, batch_size=4)


class Frozen(nn.Module):
    """A frozen body with statistics, a live buffer, and a head that is inferred."""

    def __init__(self, seed: int = 0, shift: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Tanh())
        self.head = nn.Linear(3, 2)
        self.shift: torch.Tensor
        self.register_buffer("shift", torch.tensor([shift, 0.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x + self.shift).to(self.head.weight.dtype))


def model(net: nn.Module | None = None, random: Any = "head.*") -> tb.Model:
    return tb.Model(net or Frozen(), tb.likelihoods.Categorical(), tb.priors.Normal(1.0), random=random)


def saved(made: tb.Model, path: Path) -> Path:
    return tb.posteriors.Draws(made, torch.ones(1, 2, made.layout.size)).save(path)


def moved_statistics() -> Frozen:
    net = Frozen()
    norm: Any = net.body[1]
    norm.running_mean += 0.5
    return net


@pytest.mark.parametrize(
    ("other", "named", "method"),
    [
        (lambda: Frozen(1), ("body.0.weight", "body.0.bias"), HMC),
        (moved_statistics, ("body.1.running_mean",), SGLD),
        (lambda: Frozen(shift=1.0), ("shift",), SGLD),
    ],
)
def test_other_constants_are_refused_by_load_and_resume_and_named(other, named, method, tmp_path):
    path = saved(model(), tmp_path / "draws.safetensors")
    torch.testing.assert_close(tb.load(path, model()).sample(2), torch.ones(2, 8))
    with pytest.raises(ValueError, match=", ".join(f"`{name}`" for name in named)):
        tb.load(path, model(other()))
    run = tmp_path / "run"
    tb.fit(model(), (X, Y), method, directory=run, callbacks=())
    with pytest.raises(ValueError, match=", ".join(f"`{name}`" for name in named)):
        tb.fit(model(other()), (X, Y), method, directory=run, resume=True, steps=8, callbacks=())
    longer = tb.fit(model(), (X, Y), method, directory=run, resume=True, steps=8, callbacks=())
    whole = tb.fit(model(), (X, Y), method, steps=8, callbacks=())
    torch.testing.assert_close(longer.sample(2), whole.sample(2))


def test_the_constant_part_of_a_mask_is_part_of_the_fingerprint(tmp_path):
    mask = {"head.weight": torch.tensor([[True, False, False], [False, True, False]])}
    path = saved(model(random=mask), tmp_path / "draws.safetensors")
    random, constant = Frozen(), Frozen()
    with torch.no_grad():
        random.head.weight[0, 0] += 1  # is inferred
        constant.head.weight[0, 1] += 1
    tb.load(path, model(random, mask))
    with pytest.raises(ValueError, match=r"`head\.weight`, which is not random"):
        tb.load(path, model(constant, mask))


def test_a_body_in_another_dtype_is_compared_to_its_precision(tmp_path):
    path = saved(model(), tmp_path / "draws.safetensors")
    for dtype in (torch.bfloat16, torch.float16):
        made = Frozen()
        made.body[0].to(dtype)
        other = Frozen(1)
        other.body[0].to(dtype)
        actual = fingerprint(model().network)
        assert fingerprint_differences(actual, fingerprint(model(made).network)) == []
        assert "body.0.weight" in fingerprint_differences(actual, fingerprint(model(other).network))[0]
    wide = tb.Model(Frozen().double(), tb.likelihoods.Categorical(), tb.priors.Normal(1.0), random="head.*")
    with pytest.raises(
        ValueError, match=r"holds torch\.float32 weights"
    ):  # says which dtype, and not that it is another
        tb.load(path, wide)


def test_buffers_that_a_file_holds_are_not_compared(tmp_path):
    norm = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    posterior = tb.fit(model(norm, "*"), (X, Y), tb.MAP(epochs=2), callbacks=())
    path = posterior.save(tmp_path / "map.safetensors")
    fresh = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    norm_of_fresh: Any = fresh[1]
    norm_of_fresh.running_mean += 3
    again = tb.load(path, model(fresh, "*"))
    torch.testing.assert_close(tb.predict(again, X).outputs_SBK, tb.predict(posterior, X).outputs_SBK)


def test_what_a_collector_saved_is_bound_to_its_body(tmp_path):
    collector = tb.SWAG(rank=2).collector(model())
    collector.collect(Frozen())
    path = collector.save(tmp_path / "collected.safetensors")
    tb.SWAG(rank=2).collector(model(), resume=path)
    with pytest.raises(ValueError, match=r"`body\.0\.weight`"):
        tb.SWAG(rank=2).collector(model(Frozen(1)), resume=path)


def test_files_of_earlier_versions_have_no_fingerprint_and_are_read(tmp_path):
    path = saved(model(), tmp_path / "draws.safetensors")
    assert len(read_header(path)[CONSTANTS]) == 8  # 2 of the linear layer, 5 of the norm, 1 shift
    tensors, header = read_tensors(path)
    older = write_tensors(tmp_path / "older.safetensors", tensors, {k: v for k, v in header.items() if k != CONSTANTS})
    assert tb.load(older, model(Frozen(1))).members == 1


def test_no_fingerprint_is_taken_where_nothing_is_written(monkeypatch):
    made = model()
    calls = []
    monkeypatch.setattr("torchbayes.model.description._printed", lambda tensor: calls.append(1) or "")
    tb.fit(made, (X, Y), tb.MAP(epochs=1), callbacks=())
    assert not calls
