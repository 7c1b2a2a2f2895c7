"""Causal language models of tiny sizes with random weights, with and without adapters, and a tokenizer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")

WORDS = 97  # prime, so that no other axis is as long
ANSWERS = [5, 60, 3, 9]
TARGETS = {"gpt2": ["c_attn"], "llama": ["q_proj", "v_proj"], "qwen3": ["q_proj", "v_proj"]}


def base(kind: str, *, tied: bool = False) -> Any:
    torch.manual_seed(2)
    ends: dict[str, Any] = {"vocab_size": WORDS, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": tied}
    sizes: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 12}
    heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
    if kind == "gpt2":
        made = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(**ends, n_embd=8, n_layer=1, n_head=2, n_positions=64)
        )
    elif kind == "llama":
        made = transformers.LlamaForCausalLM(transformers.LlamaConfig(**ends, **sizes, **heads))
    else:
        made = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**ends, **sizes, **heads, head_dim=4))
    return made.eval()


def adapted(kind: str, *, tied: bool = False, head: bool = True, trained: bool = True, **settings: Any) -> Any:
    """A base with LoRA, on its output layer as well; with `trained`, no factor is 0."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(
        r=2,
        target_modules=[*TARGETS[kind], *(["lm_head"] if head else [])],
        init_lora_weights=not trained,
        task_type="CAUSAL_LM",
        **settings,
    )
    return peft.get_peft_model(base(kind, tied=tied), config).eval()


def prompts(lengths: list[int], *, side: str = "left", length: int | None = None) -> dict[str, Tensor]:
    """Random prompts of these lengths, padded on a side."""
    longest = length or max(lengths)
    tokens = torch.randint(3, WORDS, (len(lengths), longest), generator=torch.Generator().manual_seed(5))
    start = torch.tensor([longest - n if side == "left" else 0 for n in lengths]).unsqueeze(1)
    places = torch.arange(longest)
    real = (places >= start) & (places < start + torch.tensor(lengths).unsqueeze(1))
    moved = tokens.gather(1, (places - start) % longest)
    return {"input_ids": moved.where(real, 0), "attention_mask": real.long()}


@torch.no_grad()
def whole_logits(network: nn.Module, rows: dict[str, Tensor], answers: list[int]) -> Tensor:
    """Logits of the answers from the whole network, one prompt after the other, without padding."""
    actual = []
    for tokens, real in zip(rows["input_ids"], rows["attention_mask"], strict=True):
        logits = network(input_ids=tokens[real.bool()].unsqueeze(0)).logits
        actual.append(logits[0, -1, answers])
    return torch.stack(actual)


def tokenizer(*, padding: bool = True, letters: str = "ABCD", **settings: Any) -> Any:
    """Words, letters and marks as tokens; everything else is unknown."""
    tokenizers = pytest.importorskip("tokenizers")
    words = ["[UNK]", "[PAD]", "[END]", *letters, ")", ":", "Answer", "Choices", "red", "blue", "green", "the", "what"]
    core = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="[UNK]")
    )
    core.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.WhitespaceSplit(),
        tokenizers.pre_tokenizers.Punctuation(),
    ])
    marks = {"unk_token": "[UNK]", "eos_token": "[END]", **({"pad_token": "[PAD]"} if padding else {})}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core, **marks, **settings)
