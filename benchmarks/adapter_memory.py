"""Peak memory of fits of an adapter, in multiples of the frozen base, and how often a factory is called.

The base is a GPT-2 of 200 MB with random weights, and LoRA of rank 4 adapts its attention. Each figure is of a process
of its own: the peak of a fit beyond what the process had before there was a base, less what a plain training step of
the adapter takes on the same rows (its activations). One base is thus the least, and 1.15 the most that is allowed.

`python -m benchmarks.adapter_memory` prints the table, `python -m benchmarks.adapter_memory ivon` the row of a method.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
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

ROWS, TOKENS, CLASSES, WORDS, MOST = 4, 8, 2, 1000, 1.15
METHODS: dict[str, Any] = {
    "map": tb.MAP(members=2, epochs=2, batch_size=ROWS),
    "ivon": tb.IVON(epochs=2, batch_size=ROWS),
    "vi": tb.VI(epochs=2, batch_size=ROWS, kl_weight=1.0),
    "swag": tb.SWAG(epochs=4, batch_size=ROWS, rank=2),
    "laplace, diagonal": tb.Laplace(structure="diagonal", check_mode=False, prior="model"),
    "laplace, kronecker": tb.Laplace(check_mode=False, prior="model"),
}
FORMS = ("module", "factory")


def adapted(width: int = 768, layers: int = 7) -> nn.Module:
    """Return a GPT-2 that classifies, with an adapter; 200 MB of frozen weights with these sizes."""
    sizes: dict[str, Any] = {"n_embd": width, "n_layer": layers, "n_positions": TOKENS, "vocab_size": WORDS}
    ends: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(**sizes, **ends, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    assert config.num_labels == CLASSES
    base = transformers.GPT2ForSequenceClassification(config)
    lora = peft.LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True)
    return peft.get_peft_model(base, lora)  # type: ignore[arg-type]


def rows() -> dict[str, Tensor]:
    """Return made-up texts and their classes."""
    source = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, WORDS, (ROWS, TOKENS), generator=source)
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": torch.arange(ROWS) % CLASSES}


def hand_written(network: nn.Module) -> None:
    """Train the adapter for two steps, as one would without a library."""
    optimizer = torch.optim.Adam([p for p in network.parameters() if p.requires_grad])
    for _ in range(2):
        optimizer.zero_grad()
        network(**rows()).loss.backward()
        optimizer.step()


def library(network: nn.Module | Callable[[], nn.Module], method: Any) -> None:
    """Fit the adapter, save and load it, and predict."""
    model = tb.Model(network, tb.likelihoods.Categorical(), random="*lora*")
    start = model.given_weights() if isinstance(method, tb.Laplace) else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posterior = tb.fit(model, rows(), method, start=start, callbacks=())
        with tempfile.TemporaryDirectory() as folder:
            posterior = tb.load(posterior.save(Path(folder) / "posterior.safetensors"), model)
        tb.predict(posterior, {name: each for name, each in rows().items() if name != "labels"}, draws=2)


def work(name: str, form: str) -> tuple[float, int]:
    """Return the peak memory of training in one way, in MiB, and how often the network was made."""
    with torch.random.fork_rng():  # code that is loaded when it is first used is no memory of training
        library(adapted(8, 1), METHODS.get(name, METHODS["map"]))
        hand_written(adapted(8, 1))
    calls = 0

    def make() -> nn.Module:
        nonlocal calls
        calls += 1
        return adapted()

    trim()
    before = memory_now()
    if name in METHODS:
        library(make() if form == "module" else make, METHODS[name])
    else:
        hand_written(make())
    return peak_memory() - before, calls


def measure(name: str, form: str) -> tuple[float, int]:
    """Return the same of a process of its own."""
    command = [sys.executable, "-m", "benchmarks.adapter_memory", name, form]
    peak, calls = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(peak), int(calls)


def base_size() -> float:
    """Return the size of the frozen weights, in MiB."""
    with torch.device("meta"):
        network = adapted()
    return sum(p.nbytes for p in network.parameters() if not p.requires_grad) / 2**20


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table, or one row of it; with a form, do one piece of work."""
    name, form = (*arguments, "", "")[:2]
    if form:
        print(*work(name, form))
        return
    base, (plain, _) = base_size(), measure("plain", FORMS[0])
    table = Table(title=f"Peak memory of fits of an adapter, in bases of {base:.0f} MiB; at most {MOST}")
    for column in ("method", *FORMS, "calls of the factory"):
        table.add_column(column, justify="right")
    for each in (name,) if name else METHODS:
        (module, _), (factory, calls) = (measure(each, form) for form in FORMS)
        peaks = (f"{1 + (peak - plain) / base:.2f}" for peak in (module, factory))
        table.add_row(each, *peaks, str(calls))
    Console().print(table, f"A plain training step: {plain / base:.2f} bases, one of which is the base.")


if __name__ == "__main__":
    main(sys.argv[1:])
