"""What a training step of an adapter costs, in steps of plain LoRA written by hand.

The base is a Llama of 20 million weights with random numbers, LoRA of rank 8 adapts queries, values and output layer,
and questions have 64 tokens and four answers. Both sides run the same network, `LastToken`, whose output layer is cut
to the answers. The loop by hand trains it by fused AdamW. It takes turns with `fit`, an epoch each, and what is done
once does not count: see `benchmarks.overhead`.

`python -m benchmarks.adapter_steps` prints the table, `python -m benchmarks.adapter_steps IVON` the row of a method.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import peft
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

import torchbayes as tb
from benchmarks.harness import Timing, report
from torchbayes.adapters import LastToken
from torchbayes.networks import scale_rows

ROWS, BATCH, TOKENS, CLASSES, WORDS = 24, 4, 64, 4, 2000
EPOCHS, WARM_UP = 7, 1
METHODS: dict[str, Callable[..., Any]] = {
    "MAP": tb.MAP,
    "IVON": tb.IVON,
    "BLoB": tb.BLoB,
    "ScalaBL": tb.BLoB,
    "VI": lambda **settings: tb.VI(kl_weight=1.0, **settings),
    "SWAG": tb.SWAG,
}
PLAIN = "hand-written"


def adapted() -> nn.Module:
    """Return a Llama that answers, with an adapter."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 6, "vocab_size": WORDS}
    base = transformers.LlamaForCausalLM(transformers.LlamaConfig(num_attention_heads=8, **sizes))
    lora = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "lm_head"], task_type="CAUSAL_LM")
    return LastToken(peft.get_peft_model(base, lora), range(CLASSES))  # type: ignore[arg-type]


def rows() -> tuple[dict[str, Tensor], Tensor]:
    """Return made-up questions and their answers."""
    source = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, WORDS, (ROWS, TOKENS), generator=source)
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}, torch.arange(ROWS) % CLASSES


def hand_written() -> Iterator[None]:
    """Train as one would without a library, and yield at the end of each epoch."""
    network, (inputs, targets) = adapted(), rows()
    optimizer = torch.optim.AdamW([p for p in network.parameters() if p.requires_grad], fused=True)
    while True:
        for index in torch.randperm(ROWS).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(network(**{n: t[index] for n, t in inputs.items()}), targets[index]).backward()
            optimizer.step()
        yield


def compare(name: str, *, clock: Callable[[], float]) -> list[Timing]:
    """Return seconds of a step by hand and by a method, in each epoch but those that warm up."""
    epoch, began = hand_written(), 0.0
    plain, ours = list[float](), list[float]()

    def turn(_: object) -> None:
        nonlocal began
        ended = clock()
        next(epoch)
        plain.append((clock() - ended) * BATCH / ROWS)
        ours.append((ended - began) * BATCH / ROWS)
        began = clock()

    network = scale_rows(adapted()) if name == "ScalaBL" else adapted()
    model = tb.Model(network, tb.likelihoods.Categorical(), random="*lora*")
    method = METHODS[name](epochs=EPOCHS + WARM_UP, batch_size=BATCH)
    tb.fit(model, rows(), method, callbacks=[turn])
    return [Timing(way, each[WARM_UP:]) for way, each in ((PLAIN, plain), (name, ours))]


def main(arguments: Sequence[str] = ()) -> None:
    """Print a table for every method, or for those named."""
    # where others work on the same machine, the time that this process was running is the less noisy one
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    for name in arguments or METHODS:
        report(f"One step of an adapter, {name}, batch {BATCH}", compare(name, clock=clock), PLAIN)


if __name__ == "__main__":
    main(sys.argv[1:])
