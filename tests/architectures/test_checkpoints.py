"""Networks that recompute activations: each method gives what it gives for the same network without that."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.architectures.helpers import METHODS
from tests.architectures.test_transformers import SIZES, WORDS, CLASSES, rows_of
from tests.covering import with_studies
from tests.oracles import assert_close, normal
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchbayes as tb

pytestmark = [
    pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning"),  # these fits are of a few steps
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:FutureWarning"),  # PEFT's calls
]

CURVATURES = {
    f"{structure}_{curvature}": tb.Laplace(structure=structure, curvature=curvature, check_mode=False, prior="model")
    for structure in ("diagonal", "kronecker", "dense", "low_rank")
    for curvature in ("ggn", "fisher", "empirical")
}
EVERY: dict[str, Any] = {
    **METHODS,
    **CURVATURES,
    "swa": tb.SWA(epochs=4, batch_size=4),
    "sam": tb.MAP(epochs=2, batch_size=4, optimizer=tb.SAM(tb.SGD(0.1))),
    "vbll": tb.VBLL(members=2, epochs=2, batch_size=4),
    "mnf": tb.MNF(members=2, epochs=2, batch_size=4, kl_weight=1.0),
    "black_box": tb.VI(epochs=2, batch_size=4, kl_weight=1.0, alpha=0.5, draws=2),
    "concrete": tb.ConcreteDropout(epochs=2, batch_size=4),
    "dropout": tb.MCDropout(epochs=2, batch_size=4),
    "bsam": tb.BSAM(epochs=2, batch_size=4),
    "ep": tb.EP(sweeps=2),
    "nuts": tb.NUTS(steps=3, burn_in=2),
    "mclmc": tb.MCLMC(steps=4, burn_in=2, step_size=0.01),
    "sgld": tb.SGLD(steps=4, burn_in=1, thin=1, step_size=1e-4, batch_size=4),
    "svgd": tb.SVGD(members=2, epochs=2, batch_size=4),
    "repulsive": tb.RepulsiveEnsemble(members=2, epochs=2, batch_size=4),
    "curve": tb.Curve(epochs=2, batch_size=4),
}


class Block(nn.Module):
    """A residual layer with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.drop = nn.Linear(4, 4), nn.LayerNorm(4), nn.Dropout(0.2)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.drop(self.layer(self.norm(inputs)).tanh())


class Plain(nn.Module):
    """Blocks that are always checkpointed, or never."""

    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, CLASSES)
        self.blocks, self.reentrant = nn.ModuleList([Block(), Block()]), reentrant

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        for block in self.blocks:
            plain = self.reentrant is None
            hidden = block(hidden) if plain else checkpoint(block, hidden, use_reentrant=self.reentrant)
        return self.last(hidden)


def plain(reentrant: bool | None) -> nn.Module:
    torch.manual_seed(2)
    return Plain(reentrant).double()


def adapted(reentrant: bool | None) -> nn.Module:
    """BERT with two layers, dropout and adapters."""
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    torch.manual_seed(2)
    sizes = {**SIZES, "num_hidden_layers": 2, "max_position_embeddings": 8}
    config = transformers.BertConfig(vocab_size=WORDS, num_labels=CLASSES, pad_token_id=0, **sizes)
    made: Any = transformers.BertForSequenceClassification(config)
    if reentrant is not None:
        made.gradient_checkpointing_enable({"use_reentrant": reentrant})
    lora = peft.LoraConfig(r=2, target_modules=["query", "value"], init_lora_weights=False, lora_dropout=0.1)
    return peft.get_peft_model(made, lora).double()


ROWS: dict[Any, Any] = {
    plain: (normal(8, 3, seed=3), rows_of("bert")["labels"]),
    adapted: rows_of("bert"),
}


def probs(make: Any, reentrant: bool | None, name: str, *, factory: bool) -> tuple[Tensor, str]:
    """The predictions of a fit."""
    given, rows = (lambda: make(reentrant)) if factory else make(reentrant), ROWS[make]
    globs = {"random": "*lora*"} if make is adapted else {}
    model = tb.Model(given, tb.likelihoods.Categorical(), tb.priors.Normal(1.0), **globs)
    start = model.given_weights() if isinstance(EVERY[name], tb.Laplace) else None
    posterior: Any = tb.fit(model, rows, EVERY[name], start=start, callbacks=())
    inputs = {k: v for k, v in rows.items() if k != "labels"} if isinstance(rows, dict) else rows[0]
    return tb.predict(posterior, inputs, draws=4, seed=1).probs, model.network


@pytest.mark.parametrize("name", [*EVERY])
@pytest.mark.parametrize("reentrant", [False, True])
def test_every_method(name: str, reentrant: bool) -> None:
    found, oracle = (probs(plain, each, name, factory=False)[0] for each in (reentrant, None))
    assert_close(found, oracle, rtol=1e-9)


@pytest.mark.parametrize("name", [*METHODS, "kronecker_empirical"])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("factory", [False, True])
def test_every_method_with_adapters(name: str, reentrant: bool, factory: bool) -> None:
    (found, network), (oracle, _) = (probs(adapted, each, name, factory=factory) for each in (reentrant, None))
    assert_close(found, oracle, rtol=1e-9)
    print(network.held._recomputing)
