"""A vision transformer in the manner of timm: tokens of patches, a class token, dropped paths and layer scales."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchbayes as tb
from tests.architectures.helpers import METHODS, PARTICULAR, check, ggn, methods, precision
from tests.oracles import assert_close, classes, normal
from torchbayes.curvature.discovery import layer_support, network_layers

pytestmark = pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # these fits are of a few steps
WIDTH, HEADS, PATCH, SIDE, CLASSES = 6, 2, 4, 8, 3


class DropPath(nn.Module):
    """Leaves out a branch of some rows while it trains."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.rate:
            return x
        kept = x.new_empty(len(x), *[1] * (x.ndim - 1)).bernoulli_(1 - self.rate)
        return x * kept / (1 - self.rate)


class LayerScale(nn.Module):
    """A learned factor for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((WIDTH,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Attention(nn.Module):
    """Self-attention with one linear layer for queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        rows, tokens, _ = x.shape
        q, k, v = self.qkv(x).reshape(rows, tokens, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(rows, tokens, WIDTH))


class Block(nn.Module):
    """Attention and a perceptron, each on a normalised input, scaled and dropped at random."""

    def __init__(self, drop: float) -> None:
        super().__init__()
        self.norm1, self.attn, self.ls1 = nn.LayerNorm(WIDTH), Attention(), LayerScale()
        self.norm2, self.ls2, self.drop = nn.LayerNorm(WIDTH), LayerScale(), DropPath(drop)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.ls1(self.attn(self.norm1(x))))
        return x + self.drop(self.ls2(self.mlp(self.norm2(x))))


class VisionTransformer(nn.Module):
    """Classes of images by a class token among those of the patches."""

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, WIDTH, PATCH, stride=PATCH)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 1 + (SIDE // PATCH) ** 2, WIDTH))
        self.blocks = nn.Sequential(Block(drop))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls_token.expand(len(tokens), -1, -1), tokens], dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(tokens))[:, 0])


def network(drop: float = 0.0) -> nn.Module:
    torch.manual_seed(11)
    return VisionTransformer(drop).double()


def rows() -> dict[str, Tensor]:
    return {"x": normal(8, 1, SIDE, SIDE), "labels": classes(8, CLASSES, seed=1)}


def model_of(random: str = "*", *, drop: float = 0.0) -> tb.Model:
    def made() -> nn.Module:  # position embeddings have no initialiser of their own
        return VisionTransformer(drop).double()

    return tb.Model(made, tb.likelihoods.Categorical(), random=random)


@pytest.mark.parametrize("method", methods({"swag", "kronecker", "vi", "online"}, [m for m in METHODS if m != "hmc"]))
def test_every_method(method: str, tmp_path: Path):
    check(model_of(drop=0.2), method, rows(), tmp_path)


@pytest.mark.parametrize("method", [*PARTICULAR])
def test_last_layers_and_multipliers(method: str, tmp_path: Path):
    check(model_of(drop=0.2), method, rows(), tmp_path)


def test_hmc(tmp_path: Path):
    check(model_of(), "hmc", rows(), tmp_path)


@pytest.mark.parametrize("structure", ["kronecker", "dense"])
def test_last_layer_laplace(structure: str, tmp_path: Path):
    model = tb.Model(network(0.2), tb.likelihoods.Categorical(), random="head.*")
    start, inputs = model.given_weights(), rows()["x"]
    check(model, "kronecker", rows(), tmp_path)
    actual: Any = tb.fit(model, rows(), tb.Laplace(structure=structure, check_mode=False, prior="model"), start=start)
    if structure == "dense":
        exact = ggn(model, inputs, CLASSES)
        assert_close(precision(actual), exact + torch.eye(len(exact)), rtol=1e-8, atol=1e-8)
    assert_close(tb.predict(tb.Linearised(actual, "probit"), inputs).probs.sum(-1), torch.ones(8), rtol=1e-6)


def test_laplace_is_that_of_the_network_by_autograd():
    model = tb.Model(network(), tb.likelihoods.Categorical())
    start = model.given_weights()
    layers = network_layers(model, layer_support(model, start, model.unpack(rows()).inputs))
    assert {"patches", "blocks.0.attn.qkv", "blocks.0.mlp.2", "blocks.0.ls1", "norm", "head"} <= {*layers.modules}
    assert "" in layers.modules  # class token and positions, which the network itself holds
    assert layers.whole is None
    exact = ggn(model, rows()["x"], CLASSES)
    diagonal: Any = tb.fit(
        model, rows(), tb.Laplace(structure="diagonal", check_mode=False, prior="model"), start=start
    )
    assert_close(precision(diagonal).diagonal(), exact.diagonal() + 1, rtol=1e-8)
    dense: Any = tb.fit(model, rows(), tb.Laplace(structure="dense", check_mode=False, prior="model"), start=start)
    assert_close(precision(dense), exact + torch.eye(len(exact)), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("method", methods({"sghmc", "kronecker"}, ["map", "swag", "sghmc", "kronecker"]))
def test_in_bfloat16(method: str, tmp_path: Path):
    model = tb.Model(network(0.2).bfloat16(), tb.likelihoods.Categorical(), random="blocks.*")
    check(model, method, rows(), tmp_path)
