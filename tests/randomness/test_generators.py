"""Operations draw from the generator of a block: the numbers that the default one would give, which stays as it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, distributions, nn

from tests.oracles import normal
from torchbayes.randomness.generators import drawing_under, network_under

X = normal(6, 5).float()


def reseeded() -> Tensor:
    torch.manual_seed(3)
    return torch.randn(3)


def forked() -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        inside = torch.randn(3)
    return torch.cat([inside, torch.rand(2)])


def recurrent(kind: type[nn.GRU | nn.LSTM]) -> Tensor:
    return kind(5, 4, num_layers=2, dropout=0.5, batch_first=True)(X.unsqueeze(0))[0].detach()


def attention(need_weights: bool) -> Tensor:
    layer = nn.MultiheadAttention(4, 2, dropout=0.5)
    return layer(*[X[None, :, :4]] * 3, need_weights=need_weights)[0].detach()


DRAWN: dict[str, Callable[[], Tensor]] = {
    "rand": lambda: torch.rand(3),
    "randn": lambda: torch.randn(3, dtype=torch.float64),
    "out": lambda: torch.randn(3, out=torch.empty(3)),
    "randint": lambda: torch.cat([torch.randint(9, (4,)), torch.randint(2, 9, (4,))]),
    "randperm": lambda: torch.randperm(7),
    "like": lambda: torch.stack([torch.rand_like(X), torch.randn_like(X), torch.randint_like(X, 9)]),
    "constructor": lambda: nn.Conv2d(2, 3, 3).weight.data,
    "orthogonal": lambda: nn.init.orthogonal_(torch.empty(4, 4)),
    "truncated": lambda: nn.init.trunc_normal_(torch.empty(9)),
    "dropout": lambda: F.dropout(X, 0.3),
    "dropout in place": lambda: F.dropout(X.clone(), 0.3, inplace=True),
    "channels": lambda: F.dropout2d(X.view(1, 5, 6, 1), 0.5),
    "alpha": lambda: F.alpha_dropout(X, 0.2, training=True),
    "fused": lambda: torch.native_dropout(X, 0.3, train=True)[0],
    "leaky": lambda: F.rrelu(X, training=True),
    "gumbel": lambda: F.gumbel_softmax(X),
    "gru": lambda: recurrent(nn.GRU),
    "lstm": lambda: recurrent(nn.LSTM),
    "attention": lambda: attention(True),
    "attention without weights": lambda: attention(False),
    "in one piece": lambda: F.scaled_dot_product_attention(*[X[None]] * 3, dropout_p=0.3),
    "normal": lambda: torch.cat([torch.normal(X, 1.0), torch.normal(0.0, X.abs()), torch.normal(X, X.abs())]),
    "multinomial": lambda: torch.multinomial(X.abs(), 2),
    "bernoulli": lambda: torch.bernoulli(X.sigmoid()),
    "poisson": lambda: torch.poisson(X.abs()),
    "gamma": lambda: distributions.Gamma(X.abs(), 1.0).sample(),
    "dirichlet": lambda: distributions.Dirichlet(X.abs()).sample(),
    "student": lambda: distributions.StudentT(X.abs()).sample(),
    "binomial": lambda: distributions.Binomial(10, X.sigmoid()).sample(),
    "in place": lambda: torch.stack([
        torch.empty(3).exponential_(),
        torch.empty(3).geometric_(0.3),
        torch.empty(3).cauchy_(),
        torch.empty(3).log_normal_(),
        torch.empty(3).random_(),
    ]),
    "pooled": lambda: F.fractional_max_pool2d(torch.ones(1, 1, 8, 8).cumsum(-1), 2, output_size=3),
    "seeded inside": reseeded,
    "forked inside": forked,
    "explicit": lambda: torch.rand(3, generator=torch.Generator().manual_seed(4)),
}


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN.keys())
@pytest.mark.parametrize("inference", [False, True])
def test_numbers_are_those_of_the_default_generator_under_the_seed(
    draw: Callable[[], Tensor], inference: bool, untouched_rng: None
) -> None:
    with torch.inference_mode(inference):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            wanted = draw()
        for under in (drawing_under, network_under):
            with under(7):
                actual = draw()
            assert torch.equal(actual, wanted)


def test_operations_without_a_generator_go_on_where_the_last_one_ended(untouched_rng: None) -> None:
    with drawing_under(1):
        actual = [torch.native_dropout(torch.ones(50), 0.5, True)[1] for _ in range(2)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        for mask in actual:
            assert torch.equal(torch.native_dropout(torch.ones(50), 0.5, True)[1], mask)
    assert not torch.equal(*actual)


def test_blocks_are_nested(untouched_rng: None) -> None:
    with drawing_under(1) as outer:
        first = torch.rand(2)
        with network_under(2):
            inner = F.dropout(torch.ones(50), 0.5)
        with drawing_under(3) as other:
            torch.ones(2).add(1)
        second = torch.rand(2)
    with drawing_under(1):
        assert torch.equal(torch.rand(4), torch.cat([first, second]))
    with drawing_under(2):
        assert torch.equal(F.dropout(torch.ones(50), 0.5), inner)
    assert outer.used
    assert not other.used


def test_attention_without_dropout_draws_nothing(untouched_rng: None) -> None:
    with drawing_under(0):
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    with drawing_under(1) as drawn:
        layer(X[None, :, :4])
    assert not drawn.used
