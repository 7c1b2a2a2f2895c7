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
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from torchbayes.adapters.decoding import Average, Continuations, Draw, Record
from torchbayes.adapters.draws import load_draw
from torchbayes.adapters.heads import base_of
from torchbayes.adapters.last_token import LastToken, ending, refuse_prompts
from torchbayes.checks import as_seed, check_choice, check_counts, check_kind, check_not_negative, seen
from torchbayes.native.process import undisturbed
from torchbayes.posteriors.functions import Functions
from torchbayes.posteriors.posterior import Posterior
from torchbayes.randomness.seeds import Purpose, generator

_DRAWS = 10  # by default


@undisturbed
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
) -> Continuations:
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
    record = Record(len(drawn), tokens, average)
    open_B = torch.ones(len(tokens), dtype=torch.bool, device=tokens.device)
    choose = partial(_chosen, temperature=float(temperature))
    for number in range(max_new_tokens):
        uniform_B = torch.rand(len(tokens), generator=generator(Purpose.TOKENS, seed, number), dtype=torch.float64)
        logits_SBV = torch.stack([draw(tokens, real)[:, 0] for draw in drawn])
        token = record.add(logits_SBV, uniform_B.to(tokens.device), choose, going=open_B, fill=fill)
        tokens, real = torch.cat([tokens, token], 1), torch.cat([real, torch.ones_like(token)], 1)
        open_B = open_B & ~torch.isin(token[:, 0], stops)
        if not open_B.any():
            break
    return record.continuations()


@undisturbed
@torch.no_grad()
def score(
    posterior: Posterior | Functions,
    network: nn.Module,
    prompts: Tensor | Mapping[str, Any],
    *,
    answers: Tensor | Mapping[str, Any],
    draws: int | None = None,
    average: Average = "sequences",
    seed: int = 0,
) -> Continuations:
    """Return how probable and how uncertain the tokens of given answers are, as `generate` does of its own.

    Args:
        posterior: as for `generate`.
        network: as for `generate`.
        prompts: as for `generate`.
        answers: token ids (B, L), or a mapping with `input_ids` and `attention_mask`, of one answer to each prompt, as
            a tokenizer gives them without special tokens in front; padding stands behind them.
        draws: as for `generate`.
        average: as for `generate`.
        seed: seed of the draws.

    Returns:
        The given answers, and how probable and how uncertain their tokens are.

    Raises:
        ValueError: as `generate` does, or if there is not one answer for each prompt, or padding in front of one.
        TypeError: as `generate` does.
    """
    check_kind((Posterior, Functions), "a posterior, as `fit` returns it", posterior=posterior)
    check_choice(("sequences", "tokens"), average=average)
    (tokens, real), (given_BL, mask_BL) = _prompts(network, prompts), _rows(network, answers, "answers")
    front = ", some with padding in front" if bool((mask_BL.diff(dim=1) > 0).any()) else ""
    if len(given_BL) != len(tokens) or front:
        raise ValueError(
            f"`answers` must be one answer for each of the {len(tokens)} prompts, with padding behind it alone; got "
            f"{len(given_BL)}{front}. Give the tokenizer `padding_side='right'`."
        )
    length, count = tokens.shape[1], given_BL.shape[1]
    _check_positions(network, real, count)
    drawn = _drawn(posterior, network, draws, as_seed(seed))
    record, (_, fill) = Record(len(drawn), tokens, average), _special(network)
    tokens, real, start = torch.cat([tokens, given_BL], 1), torch.cat([real, mask_BL], 1), 0
    while start < count:
        keep = min(count - start, record.places)
        stop = length + start + keep - 1  # the last token has no other behind it
        logits = torch.stack([draw(tokens[:, :stop], real[:, :stop], keep) for draw in drawn])
        if int(given_BL.max()) >= logits.shape[-1]:
            raise ValueError(f"`answers` must be tokens from 0 to {logits.shape[-1] - 1}; got {int(given_BL.max())}.")
        for place in range(keep):
            column = start + place
            going = mask_BL[:, column] != 0
            record.add(logits[:, :, place], given_BL[:, column], lambda _, token: token, going=going, fill=fill)
        record.see(logits.shape[-1])
        start += keep
    return record.continuations()


def _chosen(probs_BV: Tensor, uniform_B: Tensor, *, temperature: float) -> Tensor:
    """Return tokens (B,) of probabilities, where their cumulative sum passes a number from 0 to 1; or the likeliest."""
    if temperature == 0:
        return probs_BV.argmax(-1)
    sums_BV = (probs_BV.log() / temperature).softmax(-1).cumsum(-1)
    places_B1 = torch.searchsorted(sums_BV, uniform_B.unsqueeze(1) * sums_BV[:, -1:], right=True)
    return places_B1[:, 0].clamp_max(probs_BV.shape[-1] - 1)


def _drawn(posterior: Posterior | Functions, network: nn.Module, draws: int | None, seed: int) -> list[Draw]:
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
    return [Draw(load_draw(network, functions.model, weights_D)) for weights_D in functions.weights_SD]


def _prompts(network: nn.Module, prompts: Tensor | Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Return tokens and mask (B, T) on the network's device, so that each row ends with its last token."""
    check_kind(nn.Module, "an nn.Module", network=network)
    if isinstance(network, LastToken):
        raise TypeError(
            "`network` is a LastToken, which has no logits but those of the answers. Give the language model that it "
            "was made of."
        )
    refuse_prompts(network)
    tokens, real = _rows(network, prompts, "prompts")
    if not real.all() and "attention_mask" not in inspect.signature(base_of(network).forward).parameters:
        raise ValueError(
            "`network` takes no `attention_mask`, so that prompts cannot be padded. Give equally long ones."
        )
    return ending(tokens, real)


def _rows(network: nn.Module, rows: Tensor | Mapping[str, Any], name: str) -> tuple[Tensor, Tensor]:
    """Return tokens and mask (B, T) of prompts or answers, on the network's device."""
    given = rows if isinstance(rows, Mapping) else {"input_ids": rows}
    tokens, mask = given.get("input_ids"), given.get("attention_mask")
    if not isinstance(tokens, Tensor) or tokens.is_floating_point() or tokens.dtype == torch.bool:
        raise TypeError(f"`{name}` must hold the numbers of tokens, (B, T), as `input_ids`; got {seen(tokens)}.")
    if tokens.ndim != 2 or not tokens.numel():
        raise ValueError(f"`{name}` must have shape (B, T), with one token at least; got {tuple(tokens.shape)}.")
    if mask is not None and (not isinstance(mask, Tensor) or mask.shape != tokens.shape):
        raise ValueError(
            f"`attention_mask` of `{name}` must have the shape of their tokens, {tuple(tokens.shape)}; got "
            f"{seen(mask)}."
        )
    device = next(network.parameters()).device
    tokens = tokens.to(device).long()
    real = torch.ones_like(tokens) if mask is None else (mask.to(device) != 0).long()
    if not real.any(1).all():
        raise ValueError(f"row {int((~real.any(1)).nonzero()[0])} of `{name}` is nothing but padding. Leave it out.")
    tokens = tokens.where(real != 0, 0)
    if int(tokens.min()) < 0:
        raise ValueError(
            f"`{name}` must be tokens from 0 on; got {int(tokens.min())}. Say by `attention_mask` where there is none."
        )
    return tokens, real


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
    configurations = [getattr(base, name, None) for name in ("generation_config", "config")]
    ends = _first(configurations, "eos_token_id")
    stops: Sequence[int] = [ends] if isinstance(ends, int) else list(ends or ())
    padding = _first(configurations, "pad_token_id")
    fill = padding if isinstance(padding, int) else (*stops, 0)[0]
    return torch.tensor(stops, dtype=torch.long, device=next(network.parameters()).device), fill


def _first(settings: Sequence[Any], name: str) -> Any:
    """Return the first setting of this name that is not None."""
    return next((value for each in settings if (value := getattr(each, name, None)) is not None), None)
