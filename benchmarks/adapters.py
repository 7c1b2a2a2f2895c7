"""Laplace on LoRA adapters: file, peak memory and time of a fit with whole Kronecker factors and with few eigenvectors.

The bases have random weights, the adapters rank 8 and normal B of scale 0.02, the rows random tokens. Each figure is of
a process of its own. A rank of a quarter of the side or more keeps whole factors. It needs the dependency group
`architectures`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import torchbayes as tb
from benchmarks.harness import peak_memory

WORDS, CLASSES, ROWS, TOKENS = 2000, 3, 64, 32
LABELS: dict[str, Any] = {"num_labels": CLASSES}
WHOLE = 100_000  # a rank that no side is long for


@dataclass(frozen=True)
class Base:
    """A base and the linear layers that have an adapter."""

    network: Callable[[], Any]
    targets: tuple[str, ...]
    title: str


def bert() -> Any:
    """Return BERT-base for sequences, with a small vocabulary."""
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig(vocab_size=WORDS, **LABELS))


def llama() -> Any:
    """Return four blocks of a Llama of width 1,024."""
    from transformers import LlamaConfig, LlamaForSequenceClassification

    sizes: dict[str, Any] = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 4}
    heads: dict[str, Any] = {"num_attention_heads": 16, "num_key_value_heads": 4}
    return LlamaForSequenceClassification(LlamaConfig(vocab_size=WORDS, pad_token_id=0, **sizes, **heads, **LABELS))


LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
BASES = {
    "bert": Base(bert, ("query", "value"), "BERT, 12 blocks of 768: queries and values"),
    "llama": Base(llama, LINEAR, "Llama, 4 blocks of 1,024: all linear layers"),
}


def do(base: Base, rank: int) -> None:
    """Fit and print numbers of weights, MiB of file and peak memory above one forward pass, seconds, and more."""
    from peft import LoraConfig, get_peft_model

    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    settings: dict[str, Any] = {"r": 8, "lora_alpha": 16, "target_modules": list(base.targets)}
    network = get_peft_model(base.network(), LoraConfig(**settings)).eval()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0.0, 0.02)
    model = tb.Model(network, tb.likelihoods.Categorical(), tb.priors.Normal(1.0), random="*lora*")
    rows = {"input_ids": torch.randint(1, WORDS, (ROWS, TOKENS)), "labels": torch.randint(CLASSES, (ROWS,))}
    method = tb.Laplace(rank=rank or None, batch_size=8, check_mode=False)  # the evidence chooses the prior
    start = model.given_weights()
    with torch.no_grad():
        network(input_ids=rows["input_ids"][:8])
    before, began = peak_memory(), time.perf_counter()
    posterior = tb.fit(model, rows, method, start=start, callbacks=())
    seconds = time.perf_counter() - began
    above = peak_memory() - before
    with tempfile.TemporaryDirectory() as folder:
        size = posterior.save(Path(folder) / "posterior.safetensors").stat().st_size / 2**20
    linear = tb.predict(tb.Linearised(posterior), {"input_ids": rows["input_ids"][:8]})
    chosen = float(posterior.strength_D[0]), float(posterior.log_evidence())
    print(model.layout.size, size, above, seconds, *linear.probs.flatten().tolist(), *chosen)


def row(name: str, rank: int) -> list[float]:
    """Return the numbers that a process prints."""
    command = [sys.executable, "-m", "benchmarks.adapters", name, str(rank)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [float(word) for word in printed.splitlines()[-1].split()]


def main() -> None:
    """Print the table, or with arguments do one piece of work."""
    if len(sys.argv) > 1:
        do(BASES[sys.argv[1]], int(sys.argv[2]))
        return
    table = Table(title="Kronecker factors of adapters")
    for column in (
        "base",
        "factors",
        "file, MiB",
        "peak, MiB",
        "fit, s",
        "change of probs",
        "precision",
        "evidence",
    ):
        table.add_column(column, justify="left" if column in {"base", "factors"} else "right")
    for name, base in BASES.items():
        whole = row(name, WHOLE)
        for rank in (WHOLE, 0, 128, 8):
            entry = whole if rank == WHOLE else row(name, rank)
            change = max(abs(a - b) for a, b in zip(entry[4:-2], whole[4:-2], strict=True))
            label = {WHOLE: "whole", 0: "by default"}.get(rank, f"rank {rank}")
            cells = [
                f"{entry[1]:.1f}",
                f"{entry[2]:.0f}",
                f"{entry[3]:.1f}",
                f"{change:.1g}",
                f"{entry[-2]:.3f}",
                f"{entry[-1]:.2f}",
            ]
            table.add_row(f"{base.title} ({entry[0]:,.0f} weights)", label, *cells)
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
