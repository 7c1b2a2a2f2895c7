r"""Answers written token by token by the average of networks drawn from a posterior, and how sure each token is.

    p(y_t | y_<t, x) = Σ_s ω_s p(y_t | y_<t, x, w_s)

`average` says what is averaged:

    sequences   ω_s ∝ p(y_<t | x, w_s), so that the product over tokens is (1/S) Σ_s Π_t p(y_t | y_<t, x, w_s): the
                posterior predictive of the whole answer, under one draw of the weights for all its tokens
    tokens      ω_s = 1/S: the product over tokens is Π_t (1/S) Σ_s p(y_t | y_<t, x, w_s), as if weights were drawn
                anew for every token

The first is exact. What a draw has said counts as evidence for it, so that over a long answer few draws decide. The
second keeps all draws throughout. Malinin and Gales (2021) call them expectation of products and product of
expectations.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from torchbayes.adapters.draws import load_draw
from torchbayes.adapters.heads import base_of
from torchbayes.adapters.last_token import LastToken, ending, refuse_prompts
from torchbayes.checks import as_seed, check_choice, check_counts, check_kind, check_not_negative, seen
from torchbayes.metrics.uncertainty import average as averaged
from torchbayes.metrics.uncertainty import entropies, rows_at_once
from torchbayes.model.network import taking, tensor_of
from torchbayes.posteriors.functions import Functions
from torchbayes.posteriors.posterior import Posterior
from torchbayes.randomness.seeds import Purpose, generator

Average = Literal["sequences", "tokens"]
"""What the networks are averaged over: whole answers, or each token by itself."""

_DRAWS = 10  # by default


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
class Generated:
    """Answers to B prompts, of at most L tokens.

    Numbers of a token are of the distribution that it was chosen from, at temperature 1, float64, in nats; behind the
    end of an answer they are 0.

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
        return Answers(*(part.sum(1) for part in parts))


@torch.no_grad()
def generate(
    posterior: Posterior | Functions,
    network: nn.Module,
    prompts: Tensor | Mapping[str, Any],
    *,
    draws: int | None = None,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    average: Average = "sequences",
    seed: int = 0,
) -> Generated:
    """Continue prompts by the average of the networks drawn from a posterior.

    Each drawn network is a copy that shares everything but its random weights (`load_draw`), and keeps the keys and
    values of what it has read, if the network can. So S draws take the memory of S adapters and S such caches, and a
    token takes S passes. An answer ends with a token that `network.generation_config` names as `eos_token_id`.

    Args:
        posterior: a posterior over weights of the network, alone or in a `LastToken`, or functions drawn from one.
            For a Laplace posterior too, weights are drawn.
        network: the causal language model that the model was made of; it is run in evaluation mode, and not changed.
        prompts: token ids (B, T), or a mapping with `input_ids` and `attention_mask`, as `encode` and tokenizers give
            it; other entries are ignored. Padding may stand on either side.
        draws: S, a multiple of the members; None for the least such number that is at least 10. Not for functions.
        max_new_tokens: tokens of an answer at most.
        temperature: tokens are drawn from probabilities in proportion to p^(1/temperature), p those of the average; 0
            takes the most probable token.
        average: what is averaged over the draws: "sequences" or "tokens", as above.
        seed: seed of the draws, and of the tokens.

    Returns:
        The answers, and how probable and how uncertain their tokens are.

    Raises:
        ValueError: if there are no prompts, one has no tokens, prompt and answer together may be longer than the
            network takes, it is another one than the model's, a logit is NaN, or a number is out of range.
        TypeError: if an argument is of another kind, or draws have dropout masks or statistics beside their weights.
    """
    check_kind((Posterior, Functions), "a posterior, as `fit` returns it", posterior=posterior)
    check_counts(max_new_tokens=max_new_tokens)
    check_not_negative(temperature=temperature)
    check_choice(("sequences", "tokens"), average=average)
    seed = as_seed(seed)
    tokens, real = _prompts(network, prompts)
    _check_positions(network, real, max_new_tokens)
    drawn = _drawn(posterior, network, draws, seed)
    stops, fill = _special(network)
    length, steps = tokens.shape[1], list[_Step]()
    log_prob_SB = torch.zeros(len(drawn), len(tokens), dtype=torch.float64, device=tokens.device)
    open_B = torch.ones(len(tokens), dtype=torch.bool, device=tokens.device)
    choose = partial(_chosen, temperature=float(temperature))
    for number in range(max_new_tokens):
        weights_SB = (log_prob_SB if average == "sequences" else torch.zeros_like(log_prob_SB)).softmax(0)
        uniform_B = torch.rand(len(tokens), generator=generator(Purpose.TOKENS, seed, number), dtype=torch.float64)
        logits_SBV = torch.stack([draw(tokens, real) for draw in drawn])
        step = _step(logits_SBV, weights_SB, uniform_B.to(tokens.device), choose).only(open_B, fill)
        steps.append(step)
        log_prob_SB = log_prob_SB + step.log_prob_SB
        tokens, real = torch.cat([tokens, step.token], 1), torch.cat([real, torch.ones_like(step.token)], 1)
        open_B = open_B & ~torch.isin(step.token[:, 0], stops)
        if not open_B.any():
            break
    columns = {name: torch.cat([getattr(step, name) for step in steps], 1) for name in _Step._fields[2:]}
    return Generated(tokens=tokens[:, length:], log_prob_SB=log_prob_SB, **columns)


class _Step(NamedTuple):
    """A token of each answer, (B, 1) each but for the first."""

    log_prob_SB: Tensor
    token: Tensor
    attention_mask: Tensor
    log_prob: Tensor
    entropy: Tensor
    expected_entropy: Tensor
    mutual_information: Tensor

    def only(self, open_B: Tensor, fill: int) -> _Step:
        """Return the step of answers that have not ended; the others get padding."""
        open_B1 = open_B.unsqueeze(1)
        numbers = (part.where(open_B1, 0) for part in self[2:])
        return _Step(self.log_prob_SB.where(open_B, 0), self.token.where(open_B1, fill), *numbers)


class _Draw:
    """A drawn network, with the keys and values of the tokens that it has read."""

    def __init__(self, network: nn.Module) -> None:
        self._network, self._cache, self._read = network.eval(), None, 0
        self._takes = inspect.signature(base_of(network).forward).parameters

    def __call__(self, tokens: Tensor, real: Tensor) -> Tensor:
        """Return the logits (B, V) of the token behind rows that are those of the last call, and one token more."""
        first = 0 if self._cache is None else self._read
        given = {
            "attention_mask": real,
            "position_ids": (real.cumsum(-1) - 1).clamp_min(0)[:, first:],
            "use_cache": True,
            "past_key_values": self._cache,
            "logits_to_keep": 1,
        }
        given = {"input_ids": tokens[:, first:], **{name: given[name] for name in given if name in self._takes}}
        with taking(given):
            made = self._network(**given)
        self._cache, self._read = getattr(made, "past_key_values", None), tokens.shape[1]
        return tensor_of(made)[:, -1]


def _step(
    logits_SBV: Tensor, weights_SB: Tensor, uniform_B: Tensor, choose: Callable[[Tensor, Tensor], Tensor]
) -> _Step:
    """Return the next token of each answer, which `choose` takes from averaged probabilities and uniform numbers.

    Rows are taken a few at a time, as they are in double precision.
    """
    if logits_SBV.isnan().any():
        s, b = logits_SBV.isnan().any(-1).nonzero()[0].tolist()
        raise ValueError(f"the logits of draw {s} are NaN for prompt {b}. Look for draws that are not finite.")
    size, parts = rows_at_once(logits_SBV), list[_Step]()
    for logits, weights, uniform in zip(
        logits_SBV.split(size, 1), weights_SB.split(size, 1), uniform_B.split(size), strict=True
    ):
        log_probs = logits.double().log_softmax(-1)
        probs = log_probs.exp()
        token = choose(averaged(probs, weights), uniform).unsqueeze(1)
        log_prob_S = log_probs.gather(-1, token.expand(len(logits), -1, 1)).squeeze(-1)
        log_prob = (log_prob_S + weights.log()).logsumexp(0)
        numbers = (log_prob, *entropies(probs, weights))
        parts.append(_Step(log_prob_S, token, torch.ones_like(token), *(each.unsqueeze(1) for each in numbers)))
    log_probs_S, *columns = zip(*parts, strict=True)
    return _Step(torch.cat(log_probs_S, 1), *map(torch.cat, columns))


def _chosen(probs_BV: Tensor, uniform_B: Tensor, *, temperature: float) -> Tensor:
    """Return tokens (B,) of probabilities, where their cumulative sum passes a number from 0 to 1; or the likeliest."""
    if temperature == 0:
        return probs_BV.argmax(-1)
    sums_BV = (probs_BV.log() / temperature).softmax(-1).cumsum(-1)
    places_B1 = torch.searchsorted(sums_BV, uniform_B.unsqueeze(1) * sums_BV[:, -1:], right=True)
    return places_B1[:, 0].clamp_max(probs_BV.shape[-1] - 1)


def _drawn(posterior: Posterior | Functions, network: nn.Module, draws: int | None, seed: int) -> list[_Draw]:
    """Return S networks drawn from a posterior."""
    if isinstance(posterior, Posterior):
        usual = min(posterior.default_draws, -(-_DRAWS // posterior.members) * posterior.members)
        functions = posterior.functions(usual if draws is None else draws, seed=seed)
    elif draws in {None, posterior.draws}:
        functions = posterior
    else:
        raise ValueError(f"these are {posterior.draws} functions already drawn; got draws={seen(draws)}. Leave it out.")
    if functions.masks_S is not None or functions.model.network.batch_norms:
        raise TypeError(
            "the draws have dropout masks or batch-norm statistics beside their weights, which a network cannot take "
            "back. Take a posterior over weights alone."
        )
    return [_Draw(load_draw(network, functions.model, weights_D)) for weights_D in functions.weights_SD]


def _prompts(network: nn.Module, prompts: Tensor | Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Return tokens and mask (B, T) on the network's device, so that each row ends with its last token."""
    check_kind(nn.Module, "an nn.Module", network=network)
    if isinstance(network, LastToken):
        raise TypeError(
            "`network` is a LastToken, which has no logits but those of the answers. Give the language model that it "
            "was made of."
        )
    refuse_prompts(network)
    given = prompts if isinstance(prompts, Mapping) else {"input_ids": prompts}
    tokens, mask = given.get("input_ids"), given.get("attention_mask")
    if not isinstance(tokens, Tensor) or tokens.is_floating_point() or tokens.dtype == torch.bool:
        raise TypeError(f"`prompts` must hold the numbers of tokens, (B, T), as `input_ids`; got {seen(tokens)}.")
    if tokens.ndim != 2 or not tokens.numel():
        raise ValueError(f"`prompts` must have shape (B, T), with one token at least; got {tuple(tokens.shape)}.")
    if mask is not None and (not isinstance(mask, Tensor) or mask.shape != tokens.shape):
        raise ValueError(
            f"`attention_mask` of the prompts must have the shape of their tokens, {tuple(tokens.shape)}; got "
            f"{seen(mask)}."
        )
    device = next(network.parameters()).device
    tokens = tokens.to(device).long()
    real = torch.ones_like(tokens) if mask is None else (mask.to(device) != 0).long()
    if not real.any(1).all():
        raise ValueError(f"prompt {int((~real.any(1)).nonzero()[0])} is nothing but padding. Leave it out.")
    if not real.all() and "attention_mask" not in inspect.signature(base_of(network).forward).parameters:
        raise ValueError(
            "`network` takes no `attention_mask`, so that prompts cannot be padded. Give equally long ones."
        )
    return ending(tokens, real)


def _check_positions(network: nn.Module, real: Tensor, more: int) -> None:
    """Raise ValueError if prompts with so many more tokens are longer than the network says that it takes."""
    most = getattr(getattr(base_of(network), "config", None), "max_position_embeddings", None)
    longest = int(real.sum(1).max())
    if isinstance(most, int) and longest + more > most:
        raise ValueError(
            f"`max_new_tokens` must be at most {max(most - longest, 0)}, as the longest prompt has {longest} of the "
            f"{most} tokens that the network takes; got {more}."
        )


def _special(network: nn.Module) -> tuple[Tensor, int]:
    """Return the tokens that end an answer, and the one that stands behind the end."""
    base = base_of(network)
    found = [getattr(base, name, None) for name in ("generation_config", "config")]
    ends = _first(found, "eos_token_id")
    stops: Sequence[int] = [ends] if isinstance(ends, int) else list(ends or ())
    padding = _first(found, "pad_token_id")
    fill = padding if isinstance(padding, int) else (*stops, 0)[0]
    return torch.tensor(stops, dtype=torch.long, device=next(network.parameters()).device), fill


def _first(settings: Sequence[Any], name: str) -> Any:
    """Return the first setting of this name that is not None."""
    return next((value for each in settings if (value := getattr(each, name, None)) is not None), None)
