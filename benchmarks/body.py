"""Networks that are mostly constant: predictions of ten draws against one pass, and HMC of a head against the head.

The base is a Llama of 5.4 million random weights (six blocks of 256), whose random weights are those of its head, of
adapters in its last block, or of adapters in all blocks. "Before" runs the whole network for each draw and each
gradient. Seconds are those in which the process was running, in alternating order. It needs the dependency group
`architectures`.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import torchbayes as tb
from benchmarks.harness import Work, race
from torchbayes.density import LogDensity
from torchbayes.density.body.record import Reach
from torchbayes.model.model import Batch

DRAWS, WORDS, CLASSES = 10, 2000, 3
SIZES = ((1, 16), (8, 16), (16, 16), (16, 64))  # rows, tokens
CASES = ("head", "adapters, last block", "adapters, all blocks")
PASSES: list[int] = []  # rows of each pass of the first block


def network(case: str) -> tuple[nn.Module, str]:
    """Return a network, and which of its weights are random."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForSequenceClassification

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 6}
    ends: dict[str, Any] = {"vocab_size": WORDS, "pad_token_id": 0, "num_labels": CLASSES, "num_attention_heads": 8}
    base = LlamaForSequenceClassification(LlamaConfig(**sizes, **ends, num_key_value_heads=8)).eval()
    base.model.layers[0].register_forward_hook(lambda module, args, outputs: PASSES.append(len(args[0])))
    if case == "head":
        return base, "score.*"
    blocks = [5] if "last" in case else None
    settings: dict[str, Any] = {"r": 8, "target_modules": ["q_proj", "v_proj"], "layers_to_transform": blocks}
    return get_peft_model(base, LoraConfig(**settings)).eval(), "*lora*"


def rows(count: int, tokens: int) -> dict[str, Tensor]:
    """Return random tokens."""
    made = torch.randint(1, WORDS, (count, tokens), generator=torch.Generator().manual_seed(1))
    return {"input_ids": made, "attention_mask": torch.ones_like(made)}


@contextmanager
def before() -> Iterator[None]:
    """Run the whole network for each draw inside the `with`."""

    def never(*_: object) -> bool:
        return False

    with mock.patch.object(Reach, "pays", never), mock.patch.object(Reach, "together", never):
        yield


def as_before(work: Work) -> Work:
    """Return the same work, done in that way."""

    def run() -> object:
        with before():
            return work()

    return run


def medians(ways: dict[str, Work]) -> list[float]:
    """Return the median seconds of each way."""
    return [timing.median for timing in race(ways, rounds=3, warmup=1, block=0.0, clock=time.process_time)]


def predictions() -> Table:
    """Return the cost of predictions of ten draws, in passes of the network."""
    table = Table(title=f"Predictions of {DRAWS} draws, in passes of the network")
    for column in ("random", "rows x tokens", "one pass, ms", "before", "now"):
        table.add_column(column, justify="right")
    for case in CASES:
        net, random = network(case)
        model = tb.Model(net, tb.likelihoods.Categorical(), random=random)
        weights_D = model.given_weights()
        noise_SD = torch.randn(DRAWS, len(weights_D), generator=torch.Generator().manual_seed(2))
        functions = tb.Functions(model, weights_D + 0.02 * noise_SD)
        for count, tokens in SIZES:
            inputs = rows(count, tokens)
            predict, one = partial(functions, inputs), torch.no_grad()(partial(net, **inputs))
            torch.testing.assert_close(predict(), as_before(predict)())
            single, old, new = medians({"one": one, "before": as_before(predict), "now": predict})
            table.add_row(
                case, f"{count} x {tokens}", f"{single * 1e3:.1f}", f"{old / single:.1f}", f"{new / single:.1f}"
            )
    return table


def samplers(count: int = 64, tokens: int = 32) -> Table:
    """Return the cost of a gradient of a head on all the data, and the passes of the body in a run of HMC."""
    net, random = network("head")
    model = tb.Model(net, tb.likelihoods.Categorical(), random=random)
    inputs, targets = rows(count, tokens), torch.arange(count) % CLASSES
    density = LogDensity(model, count, Batch(inputs, targets), plan="loop")
    weights_MD = model.given_weights().unsqueeze(0)
    with torch.no_grad():
        features: Any = net.model(**inputs).last_hidden_state  # type: ignore[operator]
    head = tb.Model(nn.Linear(256, CLASSES, bias=False), tb.likelihoods.Categorical())
    alone = LogDensity(head, count, Batch(features[:, -1], targets), plan="loop")
    gradient = partial(density, weights_MD)
    ways = {"before": as_before(gradient), "now": gradient, "head": partial(alone, weights_MD)}
    seconds = medians(ways)
    passes = []
    for run in (fit, as_before(fit)):
        PASSES.clear()
        run()
        passes.append(sum(size == count for size in PASSES))
    table = Table(title=f"HMC of a head, {count} rows of {tokens} tokens: 10 steps of 10 leapfrogs")
    for column in ("", "gradient, ms", "passes of the body over all rows"):
        table.add_column(column, justify="right")
    for name, second, done in zip(ways, seconds, (passes[1], passes[0], "-"), strict=True):
        table.add_row(name, f"{second * 1e3:.2f}", str(done))
    return table


def fit(count: int = 64, tokens: int = 32) -> object:
    """Run HMC on the weights of the head."""
    net, random = network("head")
    model = tb.Model(net, tb.likelihoods.Categorical(), random=random)
    data = {**rows(count, tokens), "labels": torch.arange(count) % CLASSES}
    method = tb.HMC(chains=1, steps=10, burn_in=2, trajectory=0.1, step_size=0.01)
    return tb.fit(model, data, method, callbacks=())


def main() -> None:
    """Print the tables."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for table in (samplers, predictions):
        Console(width=120).print(table())


if __name__ == "__main__":
    main()
