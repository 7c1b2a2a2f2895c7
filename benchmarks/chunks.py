"""Peak memory and time of steps on a language model with adapters: in chunks, with checkpoints, under autocast.

A GPT-2 of 256 units and six layers with random weights classifies 32 texts of 128 tokens, and LoRA of rank 4 adapts its
attention. Each figure is of a process of its own: the peak of a fit of `IVON` of two steps beyond what the process had
when the network was made, which is nearly all activations, and the seconds of one further step.

With checkpoints the resident peak of large chunks is far above what is alive. In a step on all 32 texts tensors take
169 MiB at the most, while the process holds up to 709 MiB; the rest is probably memory that the allocator keeps.
In chunks of 2 texts the peaks with and without checkpoints are about equal, 76 and 75 MiB.

`python -m benchmarks.chunks` prints the table.
"""

from __future__ import annotations

import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from itertools import product
from typing import Any

import peft
import torch
import transformers
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import torchbayes as tb
from benchmarks.harness import memory_now, peak_memory
from torchbayes.native.process import trim

ROWS, TOKENS, CLASSES, WORDS = 32, 128, 2, 1000
SIZES, KINDS = (ROWS, 8, 2), ("", "bfloat16")


def adapted(width: int = 256, layers: int = 6, *, checkpointed: bool) -> nn.Module:
    """Return a GPT-2 that classifies, with an adapter."""
    sizes: dict[str, Any] = {"n_embd": width, "n_layer": layers, "n_positions": TOKENS, "vocab_size": WORDS}
    ends: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(**sizes, **ends, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    base: Any = transformers.GPT2ForSequenceClassification(config)
    if checkpointed:
        base.gradient_checkpointing_enable({"use_reentrant": False})
    lora = peft.LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True)
    return peft.get_peft_model(base, lora)


def rows() -> dict[str, Tensor]:
    """Return made-up texts and their classes."""
    source = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, WORDS, (ROWS, TOKENS), generator=source)
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": torch.arange(ROWS) % CLASSES}


def fitted(network: nn.Module, *, chunk_size: int, autocast: Any) -> float:
    """Fit the adapter for two steps, and return the seconds of the gradient of one further."""
    prior, likelihood = tb.priors.Normal(), tb.likelihoods.Categorical()
    model = tb.Model(network, likelihood, prior, random="*lora*", chunk_size=chunk_size, autocast=autocast)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posterior: Any = tb.fit(model, rows(), tb.IVON(epochs=2, batch_size=ROWS), callbacks=())
    density = tb.LogDensity(model, ROWS, plan="loop", training=True)
    batch = model.unpack(rows()).map(lambda t: t.unsqueeze(0))
    start = time.perf_counter()
    density.nll(posterior.mean_MD, batch, seeds=[0])
    return time.perf_counter() - start


def work(chunk_size: int, checkpointed: bool, autocast: str) -> tuple[float, float]:
    """Return peak memory, in MiB, and seconds of a step."""
    fitted(adapted(8, 1, checkpointed=checkpointed), chunk_size=chunk_size, autocast=autocast or None)  # loads code
    network = adapted(checkpointed=checkpointed)
    trim()
    before = memory_now()
    seconds = fitted(network, chunk_size=chunk_size, autocast=autocast or None)
    return peak_memory() - before, seconds


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table, or do one piece of work."""
    if arguments:
        chunk_size, checkpointed, autocast = arguments
        print(*work(int(chunk_size), checkpointed == "True", autocast))
        return
    table = Table(title=f"Steps on {ROWS} texts of {TOKENS} tokens")
    for column in ("chunk_size", "checkpoints", "autocast", "MiB", "seconds"):
        table.add_column(column, justify="right")
    for autocast, checkpointed, size in product(KINDS, (False, True), SIZES):
        command = [sys.executable, "-m", "benchmarks.chunks", str(size), str(checkpointed), autocast]
        peak, seconds = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        table.add_row(
            str(size), "yes" if checkpointed else "no", autocast or "no", f"{float(peak):.0f}", f"{float(seconds):.2f}"
        )
    Console().print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
