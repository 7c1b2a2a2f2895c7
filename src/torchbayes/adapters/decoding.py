"""Tokens one after the other by several networks: their caches, averaged probabilities, and what is kept of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from torchbayes.adapters.heads import base_of
from torchbayes.metrics.uncertainty import average as averaged
from torchbayes.metrics.uncertainty import entropies, rows_at_once
from torchbayes.model.network import taking, tensor_of

Average = Literal["sequences", "tokens"]
"""What the networks are averaged over: whole answers, or each token by itself."""

_AT_ONCE = 2**25  # logits of all draws that are held at once


class Answers(NamedTuple):
    """Sums over the tokens of each answer, (B,) each, float64, in nats.

    Of an answer drawn at temperature 1 with `average="sequences"` the entropies and the mutual information have as
    expectations those of the distribution over all answers, by the chain rule.

    Attributes:
        log_prob: log p(y | x), of the average.
        entropy: total.
        expected_entropy: the part that more data would not remove.
        mutual_information: the disagreement of the draws.
        length: number of tokens, int64.
    """

    log_prob: Tensor
    entropy: Tensor
    expected_entropy: Tensor
    mutual_information: Tensor
    length: Tensor


@dataclass(frozen=True)
class Continuations:
    """Answers to B prompts, of at most L tokens, generated or given.

    Numbers of a token are of its distribution behind the tokens before it, at temperature 1, float64, in nats; behind
    the end of an answer they are 0.

    Attributes:
        tokens: (B, L), without the prompts; behind the end of an answer they are padding.
        attention_mask: (B, L), 1 where a token belongs to the answer, as the one that ends it does.
        log_prob: log p(y_t | y_<t, x) of the average, (B, L).
        entropy: total entropy of the averaged probabilities of all tokens, (B, L).
        expected_entropy: mean over draws of their entropies, with weights ω, (B, L).
        mutual_information: their difference, the disagreement of the draws, (B, L), at least 0.
        log_prob_SB: log p(y | x, w_s) of the whole answers under each draw.
    """

    tokens: Tensor
    attention_mask: Tensor
    log_prob: Tensor
    entropy: Tensor
    expected_entropy: Tensor
    mutual_information: Tensor
    log_prob_SB: Tensor

    @property
    def answers(self) -> Answers:
        """Sums over the tokens of each answer."""
        parts = (self.log_prob, self.entropy, self.expected_entropy, self.mutual_information, self.attention_mask)
        return Answers(*(field.sum(1) for field in parts))


class Record:
    """What is known of the tokens so far."""

    def __init__(self, draws: int, tokens: Tensor, average: Average) -> None:
        self._average, self._steps = average, list[Step]()
        self._log_prob_SB = torch.zeros(draws, len(tokens), dtype=torch.float64, device=tokens.device)
        self.places = 1  # whose logits of all draws are held at once

    def see(self, words: int) -> None:
        """Note the number of words, which bounds how many places are taken at once."""
        self.places = max(1, _AT_ONCE // (self._log_prob_SB.numel() * words))

    def add(
        self,
        logits_SBV: Tensor,
        numbers_B: Tensor,
        choose: Callable[[Tensor, Tensor], Tensor],
        *,
        going: Tensor,
        fill: int,
    ) -> Tensor:
        """Return the next tokens (B, 1), and note them where answers have not ended."""
        log_prob_SB = self._log_prob_SB if self._average == "sequences" else torch.zeros_like(self._log_prob_SB)
        step = _step(logits_SBV, log_prob_SB.softmax(0), numbers_B, choose).only(going, fill)
        self._log_prob_SB = self._log_prob_SB + step.log_prob_SB
        self._steps.append(step)
        return step.tokens

    def continuations(self) -> Continuations:
        """Return what was noted."""
        columns = {name: torch.cat([getattr(step, name) for step in self._steps], 1) for name in Step._fields[1:]}
        return Continuations(log_prob_SB=self._log_prob_SB, **columns)


class Step(NamedTuple):
    """A token of each answer, (B, 1) each but for the first."""

    log_prob_SB: Tensor
    tokens: Tensor
    attention_mask: Tensor
    log_prob: Tensor
    entropy: Tensor
    expected_entropy: Tensor
    mutual_information: Tensor

    def only(self, open_B: Tensor, fill: int) -> Step:
        """Return the step of answers that have not ended; the others get padding."""
        open_B1 = open_B.unsqueeze(1)
        numbers = (field.where(open_B1, 0) for field in self[2:])
        return Step(self.log_prob_SB.where(open_B, 0), self.tokens.where(open_B1, fill), *numbers)


class Draw:
    """A drawn network, with the keys and values of the tokens that it has read."""

    def __init__(self, network: nn.Module) -> None:
        self._network, self._cache, self._read = network.eval(), None, 0
        self._takes = inspect.signature(base_of(network).forward).parameters
        self._cache_name = _cache_name(self._takes)

    def __call__(self, tokens: Tensor, real: Tensor, keep: int = 1) -> Tensor:
        """Return the logits (B, K, V) behind the last K = `keep` tokens of rows; these continue those of the last call.

        At least K tokens are new.
        """
        first = 0 if self._cache is None else self._read
        given = {
            "attention_mask": real,
            "position_ids": (real.cumsum(-1) - 1).clamp_min(0)[:, first:],
            "logits_to_keep": keep,
        }
        if self._cache_name is not None:
            given |= {"use_cache": True, self._cache_name: self._cache}
        given = {"input_ids": tokens[:, first:], **{name: given[name] for name in given if name in self._takes}}
        with taking(given):
            made = self._network(**given)
        self._cache = None if self._cache_name is None else getattr(made, self._cache_name, None)
        self._read = tokens.shape[1]
        return tensor_of(made)[:, -keep:]


def _cache_name(takes: Container[str]) -> str | None:
    """Return the argument for the keys and values of tokens that were read; None if there is none, and all are read.

    Transformers calls it `cache` from version 5.24 on, the state of a recurrent network too. Such a network, which
    knows no positions, takes another mask with its state.
    """
    if "cache" in takes:
        return "cache" if "position_ids" in takes else None
    return "past_key_values" if "past_key_values" in takes else None


def _step(
    logits_SBV: Tensor, weights_SB: Tensor, uniform_B: Tensor, choose: Callable[[Tensor, Tensor], Tensor]
) -> Step:
    """Return the next token of each answer, which `choose` takes from averaged probabilities and uniform numbers.

    Rows are taken a few at a time, as they are in double precision.
    """
    if logits_SBV.isnan().any():
        s, b = logits_SBV.isnan().any(-1).nonzero()[0].tolist()
        raise ValueError(f"the logits of draw {s} are NaN for prompt {b}. Look for draws that are not finite.")
    size, parts = rows_at_once(logits_SBV), list[Step]()
    for logits, weights, uniform in zip(
        logits_SBV.split(size, 1), weights_SB.split(size, 1), uniform_B.split(size), strict=True
    ):
        log_probs = logits.double().log_softmax(-1)
        probs = log_probs.exp()
        token = choose(averaged(probs, weights), uniform).unsqueeze(1)
        log_prob_S = log_probs.gather(-1, token.expand(len(logits), -1, 1)).squeeze(-1)
        log_prob = (log_prob_S + weights.log()).logsumexp(0)
        numbers = (log_prob, *entropies(probs, weights))
        parts.append(Step(log_prob_S, token, torch.ones_like(token), *(each.unsqueeze(1) for each in numbers)))
    log_probs_S, *columns = zip(*parts, strict=True)
    return Step(torch.cat(log_probs_S, 1), *map(torch.cat, columns))
