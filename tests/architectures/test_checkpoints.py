"""Networks that recompute activations: each method gives what it gives for the same network without that."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchbayes as tb
from tests.architectures.helpers import METHODS
from tests.architectures.test_transformers import CLASSES, SIZES, WORDS, rows_of
from tests.oracles import assert_close, normal

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
    "dropout": tb.MCDropout(epochs=2, batch_size=4),
    "bsam": tb.BSAM(epochs=2, batch_size=4),
    "ep": tb.EP(sweeps=3),
    "nuts": tb.NUTS(steps=3, burn_in=2),
    "mclmc": tb.MCLMC(steps=4, burn_in=2, thin=1, step_size=0.01),
    "sgld": tb.SGLD(steps=4, burn_in=1, thin=1, step_size=1e-4, batch_size=4),
    "svgd": tb.SVGD(members=2, epochs=2, batch_size=4),
    "repulsive": tb.RepulsiveEnsemble(members=2, epochs=2, batch_size=4),
}
ADAPTERS: dict[str, Any] = {
    **METHODS,
    "kronecker_empirical": CURVATURES["kronecker_empirical"],
    "blob": tb.BLoB(members=2, epochs=2, batch_size=4),
    "tfb": tb.TFB(batch_size=4, passes=3),
}
# Methods that run the network in evaluation mode, in which those of Hugging Face checkpoint nothing.
EVALUATED = (tb.SGHMC, tb.HMC, tb.Laplace, tb.TFB)
RANDOM = {"ep": "last.*"}  # for networks that are linear in the random weights


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
        self.first, self.blocks = nn.Linear(3, 4), nn.ModuleList([Block(), Block()])
        self.last, self.reentrant = nn.Linear(4, CLASSES), reentrant

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


TEXTS, NUMBERS = rows_of("bert"), (normal(8, 3, seed=3), rows_of("bert")["labels"])


def probs(make: Any, reentrant: bool | None, method: Any, *, random: str = "*", factory: bool = False) -> Tensor:
    """The predictions of a fit to texts, or to numbers."""
    given = (lambda: make(reentrant)) if factory else make(reentrant)
    model = tb.Model(given, tb.likelihoods.Categorical(), tb.priors.Normal(1.0), random=random)
    start = model.given_weights() if isinstance(method, tb.Laplace | tb.TFB) else None
    posterior: Any = tb.fit(model, TEXTS if make is adapted else NUMBERS, method, start=start, callbacks=())
    inputs = {k: v for k, v in TEXTS.items() if k != "labels"} if make is adapted else NUMBERS[0]
    recomputes = [model.network.held.recomputes(training=mode) for mode in (False, True)]
    assert any(recomputes) == (reentrant is not None and not (make is adapted and isinstance(method, EVALUATED)))
    return tb.predict(posterior, inputs, draws=4, seed=1).probs


def differences(make: Any, reentrant: bool, method: Any, **options: Any) -> None:
    """Check that a fit to a network that recomputes activations is the fit to one that does not."""
    actual, oracle = (probs(make, each, method, **options) for each in (reentrant, None))
    assert_close(actual, oracle, rtol=1e-9)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", [*EVERY])
def test_every_method(name: str, reentrant: bool) -> None:
    differences(plain, reentrant, EVERY[name], random=RANDOM.get(name, "*"))


@pytest.mark.parametrize("factory", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", [*ADAPTERS])
def test_every_method_with_adapters(name: str, reentrant: bool, factory: bool) -> None:
    differences(adapted, reentrant, ADAPTERS[name], random="*lora*", factory=factory)
