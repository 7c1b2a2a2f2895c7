"""The questions of `adapter_fidelity`, and the part of the language model above the first adapter.

What lies below the first adapter is the same for all weights, so its outputs are computed once and are the inputs of
the rest. The rest computes what the last token needs alone.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.adapters import LastToken, Question, encode
from torchbayes_experiments.shared.language import Texts
from torchbayes_experiments.streams import Purpose, generator

ANSWERS = ("no", "yes")
MESSAGES, MIXED, REVIEWS = "messages", "mixed", "reviews"

Rows = dict[str, Tensor]


@dataclass(frozen=True)
class Questions:
    """Which texts are asked about: as many messages that are spam as others."""

    train: int = 100  # messages of each kind with answers, drawn by the seed
    test: int = 200  # messages of each kind that are scored, the last ones, the same for all seeds
    reviews: int = 400  # which the adapter knows nothing of
    words: int = 16  # of a text, its last ones
    least: int = 4  # words that a message has at least
    mixed: float = 0.5  # share of the words of mixed messages that are words of reviews


@dataclass(frozen=True)
class Adapter:
    """Low-rank adapters of queries and values of the last block, and of the output layer."""

    rank: int = 2
    scaling: float = 2.0  # s in W + s B A
    prior_scale: float = 0.3  # σ, standard deviation of every entry of A and B under the prior
    dropout: float = 0.1  # of the inputs of A, for MC dropout alone


def questions_of(texts: Texts, asked: Questions, seed: int) -> dict[str, list[Question]]:
    """Return the training questions, `train`, and those of the three tests; reviews have no answers."""
    kinds = dict[str, int]()  # text -> answer; many messages are there twice
    for message, spam in zip(texts.messages, texts.spam, strict=True):
        if len(message.split()) >= asked.least:
            kinds.setdefault(_end(message, asked), int(spam))
    source, words = generator(Purpose.ASKED, 0, 1), [word for text in texts.reviews for word in text.split()]

    def mixed(text: str) -> str:
        ended = text.split()
        other = torch.rand(len(ended), generator=source) < asked.mixed
        places = torch.randint(len(words), (len(ended),), generator=source).tolist()
        return " ".join(words[p] if out else word for word, out, p in zip(ended, other.tolist(), places, strict=True))

    train, tested = list[Question](), list[Question]()
    for answer in range(len(ANSWERS)):
        some = [Question(text, ANSWERS, answer) for text, kind in kinds.items() if kind == answer]
        order = torch.randperm(len(some) - asked.test, generator=generator(Purpose.ASKED, seed, 0)).tolist()
        train += [some[place] for place in order[: asked.train]]
        tested += some[-asked.test :]
    return {
        "train": train,
        MESSAGES: tested,
        MIXED: [Question(mixed(question.text), ANSWERS, question.answer) for question in tested],
        REVIEWS: [Question(_end(text, asked), ANSWERS) for text in texts.reviews[-asked.reviews :]],
    }


def _end(text: str, asked: Questions) -> str:
    return " ".join(text.split()[-asked.words :])


def prompts(questions: Sequence[Question], tokenizer: Any, device: str) -> Rows:
    """Return questions as tokens, padded on the left: the text, and whether it is an advertisement."""
    rows = encode(questions, tokenizer, template=lambda question: f"{question.text} is this an advert")
    return {name: tensor.to(device) for name, tensor in rows.items()}


def adapted(network: Any, tokenizer: Any, adapter: Adapter, *, dropout: float = 0.0, scaled: bool = False) -> LastToken:
    """Return a language model that answers, with adapters of PEFT in its last block and in its output layer.

    Args:
        network: the base, which stays as it is.
        tokenizer: of the base, for the answers.
        adapter: the adapters.
        dropout: rate of dropout before each factor A.
        scaled: whether the rows of A have scales, as in ScalaBL.
    """
    import peft

    last = len(network.model.layers) - 1
    targets = [f"model.layers.{last}.self_attn.q_proj", f"model.layers.{last}.self_attn.v_proj", "lm_head"]
    config = peft.LoraConfig(
        r=adapter.rank,
        lora_alpha=round(adapter.scaling * adapter.rank),
        lora_dropout=dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*tie_word_embeddings", UserWarning)  # nothing is merged
        warnings.filterwarnings("ignore", ".*is deprecated", FutureWarning)  # PEFT asks Hugging Face by an old name
        torch.manual_seed(0)  # the initialisers of PEFT take no generator
        wrapped = peft.get_peft_model(copy.deepcopy(network), config)
    if scaled:
        tb.networks.scale_rows(wrapped)
    return LastToken(wrapped, tokenizer.convert_tokens_to_ids([f"{answer}</w>" for answer in ANSWERS]))


class LastBlock(nn.Module):
    """The last block of a `LastToken` around a Llama, and its cut output layer, on what lies below.

    Values are linear in the hidden states, so that the last token sees V Σ_t p_t h_t in the place of Σ_t p_t V h_t.
    """

    def __init__(self, whole: LastToken) -> None:
        super().__init__()
        inside: Any = whole.network.get_base_model()  # type: ignore[operator]
        self.block, self.norm, self.head = inside.model.layers[-1], inside.model.norm, inside.lm_head

    def forward(self, last: Tensor, hidden: Tensor, keys: Tensor, turn: Tensor, mask: Tensor) -> Tensor:
        """Return the logits of the answers (B, K), of what `below` returns."""
        attention, groups = self.block.self_attn, keys.shape[1]
        queries = attention.q_proj(hidden[:, -1]).unflatten(-1, (groups, -1, keys.shape[-1]))
        scores = _turned(queries, turn[:, :, None, None]) @ keys.transpose(-1, -2) * attention.scaling
        shares = scores.masked_fill(~mask[:, None, None], -torch.inf).softmax(-1)  # of tokens (B, groups, heads, T)
        values = attention.v_proj(shares.flatten(1, 2) @ hidden).unflatten(1, shares.shape[1:3])
        seen = values.unflatten(-1, (groups, -1)).diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)  # those of each group
        after = last + attention.o_proj(seen.flatten(1))
        after = after + self.block.mlp(self.block.post_attention_layernorm(after))
        return self.head(self.norm(after))


def _turned(states: Tensor, turn: Tensor) -> Tensor:
    """Return states (B, ..., C) turned by the angles of their positions: cosines and sines (B, 2, ..., C)."""
    cosine, sine = turn.unbind(1)
    first, second = states.chunk(2, dim=-1)
    return states * cosine + torch.cat([-second, first], dim=-1) * sine


@torch.no_grad()
def below(whole: LastToken, rows: Rows) -> Rows:
    """Return the inputs of a `LastBlock` for prompts, padded on the left, and their labels if they have any.

    `last`, the hidden state of the last token (B, H); `hidden`, those of all tokens, normalised (B, T, H); `keys`
    (B, groups, T, C); `turn`, cosines and sines of the position of the last token (B, 2, C); `mask` (B, T), true where
    a token is no padding.
    """
    caught = dict[str, Any]()

    def catch(_: nn.Module, given: tuple[Tensor, ...], named: dict[str, Any]) -> None:
        caught.update(named, hidden=given[0])

    block: Any = LastBlock(whole).block
    hook = block.register_forward_pre_hook(catch, with_kwargs=True)
    try:
        whole(rows["input_ids"], rows["attention_mask"])
    finally:
        hook.remove()
    turn, hidden = torch.stack(caught["position_embeddings"], dim=1), block.input_layernorm(caught["hidden"])
    keys = block.self_attn.k_proj(hidden).unflatten(-1, (-1, turn.shape[-1]))
    made = {
        "last": caught["hidden"][:, -1].contiguous(),
        "hidden": hidden,
        "keys": _turned(keys, turn.unsqueeze(3)).transpose(1, 2).contiguous(),
        "turn": turn[:, :, -1].contiguous(),
        "mask": rows["attention_mask"].bool(),
    }
    return made | {name: rows[name] for name in ("labels",) if name in rows}
