"""A causal language model of about a million weights, trained on film reviews and short messages.

    python -m torchbayes_experiments.shared.language FOLDER
    python -m torchbayes_experiments.shared.language FOLDER --small

writes it into a folder, with its tokenizer and `perplexity.json`; the second form takes seconds, and the model it
writes has learned little. Texts are words in lower case without punctuation: the last 100 words of the 25,000 training
reviews of IMDB, and the messages of the SMS Spam Collection, all without their labels.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchbayes as tb
from torchbayes_experiments.files import load_or_compute
from torchbayes_experiments.shared.classifiers import best_device
from torchbayes_experiments.streams import Purpose, generator

END, UNKNOWN = "[END]", "[UNK]"
_MARKS = 3  # the id of a word of IMDB is so much above its rank; ids up to it stand for no word
_DISCOUNT = 0.75  # of the counts of pairs, the usual one of absolute discounting


@dataclass(frozen=True)
class Base:
    """Sizes of a model in the manner of Llama, and how it is trained."""

    words: int = 4096  # V, tokens
    width: int = 128  # of hidden states
    layers: int = 4
    inner: int = 320  # width inside of a layer
    heads: int = 4  # of queries; half as many of keys and values
    block: int = 64  # T, tokens of a training text
    steps: int = 1800  # of AdamW
    batch_size: int = 24  # blocks of a step
    lr: float = 3e-3  # at the most, after a hundredth of the steps; then along a cosine to 0
    reviews: int | None = None  # how many are read; None for all
    held_out: float = 0.05  # share of the texts that perplexity is measured on


SMALL = Base(words=600, width=32, layers=2, inner=64, heads=2, block=48, steps=300, batch_size=8, reviews=1500)


@dataclass(frozen=True)
class Texts:
    """Texts as words in lower case with blanks between them."""

    reviews: list[str]
    messages: list[str]
    spam: list[bool]  # whether each message is spam


def read_texts() -> Texts:
    """Read the reviews and messages from the folder that TORCHBAYES_DATA names."""
    home = Path(os.environ.get("TORCHBAYES_DATA", "."))
    ranks = json.loads(gzip.decompress((home / "imdb" / "imdb_word_index.json.gz").read_bytes()))
    words = np.full(max(ranks.values()) + _MARKS + 1, "", dtype=object)
    words[np.array([*ranks.values()]) + _MARKS] = [*ranks]
    reviews = [" ".join(filter(None, words[ids])) for ids in tb.data.load("imdb").train.inputs.numpy()]
    lines = gzip.decompress((home / "sms_spam" / "SMSSpamCollection.gz").read_bytes()).decode().splitlines()
    pairs = [line.split("\t", 1) for line in lines]
    messages = [" ".join(re.findall(r"[a-z0-9']+", text.lower())) for _, text in pairs]
    return Texts(reviews, messages, [kind == "spam" for kind, _ in pairs])


def pretrained(base: Base, texts: Texts, folder: Path) -> tuple[Any, Any]:
    """Return the model and its tokenizer, trained first unless the folder holds them already.

    The folder then also holds its settings, `base.json`, and `perplexity.json`, see `perplexities`.

    Raises:
        ValueError: if the folder holds a model of other settings.
    """
    import transformers

    if load_or_compute(folder / "base.json", asdict, base) != asdict(base):
        raise ValueError(f"{folder} holds a base of other settings. Choose another folder, or remove it.")
    if not (folder / "perplexity.json").exists():
        read = [*texts.reviews[: base.reviews], *texts.messages]
        tokenizer = tokenizer_of(read, base)
        trained, held_out = (blocks(tokenizer, part, base.block) for part in _apart(read, base.held_out))
        network = train(base, trained)
        network.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        load_or_compute(folder / "perplexity.json", perplexities, network, trained, held_out=held_out)
    network = transformers.AutoModelForCausalLM.from_pretrained(folder).eval().requires_grad_(False)
    return network, transformers.AutoTokenizer.from_pretrained(folder)


def _apart(texts: list[str], share: float) -> tuple[list[str], list[str]]:
    """Return texts in random order, of which a share is held out."""
    order = torch.randperm(len(texts), generator=generator(Purpose.BASE_TEXTS, 0)).tolist()
    some = round(share * len(texts))
    return [texts[place] for place in order[some:]], [texts[place] for place in order[:some]]


def tokenizer_of(texts: Iterable[str], base: Base) -> Any:
    """Return a tokenizer of frequent words and parts of words (byte pair encoding), for Hugging Face."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    core = Tokenizer(models.BPE(unk_token=UNKNOWN, end_of_word_suffix="</w>"))
    core.pre_tokenizer, core.decoder = pre_tokenizers.WhitespaceSplit(), decoders.BPEDecoder()
    special = [END, UNKNOWN]
    core.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=base.words, special_tokens=special, end_of_word_suffix="</w>", show_progress=False
        ),
    )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core, eos_token=END, unk_token=UNKNOWN)


def blocks(tokenizer: Any, texts: Sequence[str], length: int) -> Tensor:
    """Return the tokens of texts, one after the other with an end token behind each, in blocks (R, T)."""
    rows = tokenizer(list(texts), verbose=False)["input_ids"]
    tokens = torch.tensor([token for row in rows for token in (*row, tokenizer.eos_token_id)])
    return tokens[: len(tokens) // length * length].reshape(-1, length)


def train(base: Base, blocks_RT: Tensor) -> Any:
    """Return a model that AdamW has trained on blocks in random order, several passes if there are few."""
    import transformers

    sizes: dict[str, Any] = {
        "hidden_size": base.width,
        "num_hidden_layers": base.layers,
        "intermediate_size": base.inner,
    }
    heads: dict[str, Any] = {"num_attention_heads": base.heads, "num_key_value_heads": base.heads // 2}
    config = transformers.LlamaConfig(
        vocab_size=base.words, max_position_embeddings=2 * base.block, tie_word_embeddings=True, **sizes, **heads
    )
    config.bos_token_id = config.eos_token_id = 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the initialisers of Hugging Face take no generator
        network: Any = transformers.LlamaForCausalLM(config)
    network.to(best_device())
    optimizer = torch.optim.AdamW(network.parameters(), base.lr, betas=(0.9, 0.98), weight_decay=0.05)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, base.steps))
    for rows in _batches(base, len(blocks_RT)):
        loss = _loss(network, blocks_RT[rows].to(best_device())).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        rate.step()
    return network.eval()


def _rate(step: int, steps: int) -> float:
    return min((step + 1) / max(1, steps // 100), 0.5 * (1 + math.cos(math.pi * step / steps)))


def _batches(base: Base, count: int) -> Iterator[Tensor]:
    """Yield the places of the blocks of each step; every block comes once in a pass."""
    source, left = generator(Purpose.BASE_TEXTS, 1), torch.empty(0, dtype=torch.long)
    for _ in range(base.steps):
        while len(left) < base.batch_size:
            left = torch.cat([left, torch.randperm(count, generator=source)])
        yield left[: base.batch_size]
        left = left[base.batch_size :]


def _loss(network: Any, blocks_BT: Tensor) -> Tensor:
    """Return −log p of every token but the first of each block, given those before it."""
    logits = network(input_ids=blocks_BT, use_cache=False).logits[:, :-1]
    return F.cross_entropy(logits.flatten(0, 1), blocks_BT[:, 1:].flatten(), reduction="none")


@torch.no_grad()
def perplexities(network: Any, trained_RT: Tensor, *, held_out: Tensor) -> dict[str, float]:
    """Return the perplexity of held-out tokens, each given those before it in its block, under three models.

    `network`; `unigram`, the share of each token in training, with one more count each; `bigram`, shares of pairs with
    absolute discounting, where what is taken away goes to the unigram. And `weights`, those of the network, and
    `tokens`, how many were trained on.
    """
    total = sum(float(_loss(network, part.to(best_device())).double().sum()) for part in held_out.split(64))
    before, after = held_out[:, :-1].flatten().numpy(), held_out[:, 1:].flatten().numpy()
    size = network.config.vocab_size
    unigram, bigram = _counted(trained_RT, size, before, after)
    return {
        "network": math.exp(total / len(after)),
        "unigram": math.exp(-np.log(unigram).mean()),
        "bigram": math.exp(-np.log(bigram).mean()),
        "weights": sum(weight.numel() for weight in network.parameters()),
        "tokens": trained_RT.numel(),
    }


def _counted(trained_RT: Tensor, size: int, before: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the probabilities of tokens after others under counts of tokens and of pairs."""
    first, second = trained_RT[:, :-1].flatten().numpy(), trained_RT[:, 1:].flatten().numpy()
    counts = np.bincount(trained_RT.flatten().numpy(), minlength=size) + 1.0
    unigram = (counts / counts.sum())[after]
    pairs, times = np.unique(first * size + second, return_counts=True)
    totals = np.bincount(first, minlength=size)[before]
    kinds = np.bincount(pairs // size, minlength=size)[before]  # different tokens behind each
    place = np.minimum(np.searchsorted(pairs, before * size + after), len(pairs) - 1)
    seen = np.where(pairs[place] == before * size + after, times[place] - _DISCOUNT, 0.0)
    bigram = np.where(totals > 0, (seen + _DISCOUNT * kinds * unigram) / np.maximum(totals, 1), unigram)
    return unigram, bigram


def main(arguments: Sequence[str] | None = None) -> None:
    """Write a base into a folder, and print its perplexities."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where model, tokenizer and perplexities go")
    parser.add_argument("--small", action="store_true", help="a small model, in seconds")
    chosen = parser.parse_args(arguments)
    base = SMALL if chosen.small else Base()
    pretrained(base, read_texts(), chosen.folder)
    print(json.dumps(asdict(base) | json.loads((chosen.folder / "perplexity.json").read_text("utf-8")), indent=1))


if __name__ == "__main__":
    main()
