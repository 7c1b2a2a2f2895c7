"""A causal language model as a classifier: the logits of a few answers after the last token of a prompt.

    p(answer k | prompt) = softmax over the answers of the logits of their tokens

This is the probability of an answer given that it is one of the answers, not that of the language model over all its
tokens; likelihood, evidence and metrics refer to it.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchbayes.adapters.heads import base_of, cut, head_of, index_of
from torchbayes.checks import check_kind
from torchbayes.model.initialisation import copied


class LastToken(nn.Module):
    """The logits of K answers at the last token of each prompt: token ids (B, T) -> (B, K).

    The body of the language model runs once. Its output layer is cut to the rows of the answers before it is applied,
    and it is applied to the last token alone, so that there are never logits of all tokens. An adapter of PEFT on the
    output layer is cut as well: its factor B then has K rows.

    The network itself stays as it is. Its copy in here shares all parameters with it, but those of the output layer,
    which is another one with K rows (unless its weight is trained and is that of the embeddings too). Parameters are
    called `network.` and then as in the given network.

    Attributes:
        network: the language model, with the cut output layer.
        answers: the tokens of the answers, (K,), in the order of the classes.
    """

    answers: Tensor

    def __init__(self, network: nn.Module, answers: Sequence[int] | Tensor) -> None:
        """Cut the output layer.

        Args:
            network: a causal language model of Hugging Face, or a PeftModel around one, in any floating-point dtype.
            answers: the tokens of the answers, K different ones, as `answer_tokens` gives them.

        Raises:
            TypeError: if the network is no causal language model, its output layer is quantised or not linear, its
                adapter is a learned prompt, or the answers are no numbers.
            ValueError: if the answers are not at least two different tokens of the network.
        """
        super().__init__()
        check_kind(nn.Module, "an nn.Module", network=network)
        refuse_prompts(network)
        _, head = head_of(network)
        rows = index_of(answers, head.out_features)
        tensors = [*network.parameters(), *network.buffers()]
        self.network = copied(network, {id(tensor): tensor for tensor in tensors})
        device = next(head.parameters()).device
        cut(self.network, rows.to(device))
        self.register_buffer("answers", rows.to(device), persistent=False)
        takes = inspect.signature(base_of(network).forward).parameters
        self._places = "position_ids" in takes
        self._options = {"use_cache": False, **({"logits_to_keep": 1} if "logits_to_keep" in takes else {})}

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, choices: Tensor | None = None) -> Tensor:
        """Return the logits of the answers.

        Args:
            input_ids: tokens (B, T).
            attention_mask: (B, T), not 0 where a token is no padding, which may stand on either side; no token is
                padding if None. A position is the number of tokens before it that are no padding.
            choices: bool (B, K), which answers a row can choose; all if None. The logits of the others are -inf.

        Returns:
            Logits (B, K), at least float32; NaN in rows that are nothing but padding.
        """
        real = torch.ones_like(input_ids) if attention_mask is None else (attention_mask != 0).long()
        tokens, real = ending(input_ids, real)
        given: dict[str, Any] = {"input_ids": tokens, "attention_mask": real, **self._options}
        if self._places:
            given["position_ids"] = (real.cumsum(-1) - 1).clamp_min(0)
        logits = self.network(**given).logits[:, -1]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        logits = logits.masked_fill(real[:, -1:] == 0, torch.nan)
        return logits if choices is None else logits.masked_fill(~choices.bool(), -torch.inf)


def ending(tokens: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Return tokens and mask (B, T) turned so that each row ends with its last token that is no padding."""
    length = tokens.shape[-1]
    places = torch.arange(length, device=tokens.device)
    last = (places * real).amax(-1, keepdim=True)
    source = (places + last + 1) % length
    return tokens.gather(-1, source), real.gather(-1, source)


def refuse_prompts(network: nn.Module) -> None:
    """Raise TypeError for adapters of PEFT that are learned tokens before the prompt."""
    config = getattr(network, "active_peft_config", None) if hasattr(type(network), "get_base_model") else None
    if getattr(config, "is_prompt_learning", False):
        raise TypeError(
            f"the adapter of `network` is a learned prompt ({type(config).__name__}), which moves the tokens. Use one "
            f"that changes layers, such as LoraConfig."
        )
