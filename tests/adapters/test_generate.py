"""Answers of a model average: probabilities by brute force, caches, padding, and what is said of each token."""

from __future__ import annotations

import math
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from tests.adapters.tiny import ANSWERS, TARGETS, WORDS, adapted, base, prompts
from tests.oracles import assert_close, normal
from torchbayes.adapters import LastToken, decoding, generate, load_draw, score

pytest.importorskip("peft")
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fan_in_fan_out:UserWarning"),  # PEFT sets it for each kind of layer
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:FutureWarning"),
]
LONG = 5


def posterior_of(network: Any, *, members: int = 3, answers: bool = False) -> tb.Point:
    """Members that disagree, over the adapter of a network, alone or in a LastToken."""
    inside = LastToken(network, ANSWERS) if answers else network
    model = tb.Model(inside, tb.likelihoods.Categorical(ignore_index=-100), random="*lora*")
    return tb.Point(model, normal(members, model.layout.size, seed=3))


def endless(network: Any) -> Any:
    """The network, without a token that ends answers."""
    base_model = network.get_base_model()
    base_model.generation_config.eos_token_id = base_model.config.eos_token_id = None
    return network


@torch.no_grad()
def by_hand(posterior: Any, network: Any, tokens: list[int], count: int) -> Tensor:
    """Log probabilities (S, L, V) at the last places of one sequence, in one pass without cache and padding."""
    model, rows = posterior.model, torch.tensor([tokens])
    made = [load_draw(network, model, w).eval()(input_ids=rows, use_cache=False).logits for w in posterior.weights_MD]
    return torch.stack(made)[:, 0, -count - 1 : -1].log_softmax(-1)


@pytest.mark.parametrize("average", ["sequences", "tokens"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("kind", "answers"), [*zip(TARGETS, (False, True, False), strict=True)])
def test_every_number_is_that_of_whole_passes(
    kind: str, answers: bool, side: str, average: Any, monkeypatch: pytest.MonkeyPatch
):
    """Prompts of several lengths at once, with caches, equal each one alone without."""
    network = endless(adapted(kind).double().train())
    posterior, rows = posterior_of(network, answers=answers), prompts([5, 2, 3], side=side)
    made = generate(posterior, network, rows, max_new_tokens=LONG, average=average, temperature=1.5)
    assert made.tokens.shape == (3, LONG)
    assert made.attention_mask.all()
    rtol = 1e-9 if kind == "gpt2" else 1e-5  # the norms of the others compute in single precision
    for b, (ids, real) in enumerate(zip(rows["input_ids"], rows["attention_mask"], strict=True)):
        answer = made.tokens[b].tolist()
        log_SLV = by_hand(posterior, network, [*ids[real.bool()].tolist(), *answer], LONG)
        of_answer_SL = log_SLV[:, torch.arange(LONG), answer]
        before_SL = of_answer_SL.cumsum(1) - of_answer_SL
        weights_SL = before_SL.softmax(0) if average == "sequences" else torch.full_like(before_SL, 1 / 3)
        mean_LV = (weights_SL.unsqueeze(-1) * log_SLV.exp()).sum(0)
        entropy_L = -(mean_LV * mean_LV.log()).sum(-1)
        expected_L = -(weights_SL * (log_SLV.exp() * log_SLV).sum(-1)).sum(0)
        assert_close(made.log_prob[b], mean_LV[torch.arange(LONG), answer].log(), rtol=rtol)
        assert_close(made.entropy[b], entropy_L, rtol=rtol)
        assert_close(made.expected_entropy[b], expected_L, rtol=rtol)
        assert_close(made.mutual_information[b], entropy_L - expected_L, rtol=10 * rtol, atol=rtol / 10)
        assert_close(made.log_prob_SB[:, b], of_answer_SL.sum(1), rtol=rtol)
    whole = made.log_prob_SB.logsumexp(0) - math.log(3)
    if average == "sequences":  # log mean_s Π_t p_s, whichever tokens came
        assert_close(made.answers.log_prob, whole, rtol=1e-9)
    else:
        assert not torch.allclose(made.answers.log_prob, whole, rtol=1e-3)
    assert network.training
    known = {"input_ids": made.tokens, "attention_mask": torch.ones(3, LONG)}
    known["attention_mask"][1, 3:] = 0
    monkeypatch.setattr(decoding, "_AT_ONCE", 2 * 3 * 3 * WORDS)  # logits of two places
    given = score(posterior, network, rows, answers=known, average=average)
    for name in ("log_prob", "entropy", "expected_entropy", "mutual_information"):
        actual, expected = getattr(given, name), getattr(made, name)
        assert_close(actual[[0, 2]], expected[[0, 2]], rtol=10 * rtol, atol=rtol / 10)
        assert_close(actual[1, :3], expected[1, :3], rtol=10 * rtol, atol=rtol / 10)
        assert not actual[1, 3:].any()
    assert given.answers.length.tolist() == [LONG, 3, LONG]


class Chances(torch.nn.Module):
    """A language model of 3 tokens, whose next token depends on the last two; it has no cache."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(normal(3, 3, 3, seed=1))

    def forward(self, input_ids: Tensor) -> Tensor:
        before = torch.nn.functional.pad(input_ids, (1, 0))[:, :-1]
        return self.table[before, input_ids]


def test_probabilities_of_all_answers_and_their_uncertainty():
    """All answers of 3 tokens: they are drawn as often as the mixture says, and sums have the expectations of it."""
    network = Chances()
    model = tb.Model(network, tb.likelihoods.Categorical(ignore_index=-100))
    posterior = tb.Point(model, 2 * normal(4, 27, seed=2))
    rows, count = torch.tensor([[0, 1]]).expand(4000, -1), 4000
    made = generate(posterior, network, rows, max_new_tokens=3, temperature=1.0, seed=5)
    tables = posterior.weights_MD.view(4, 3, 3, 3).log_softmax(-1)
    every = torch.tensor([*product(range(3), repeat=3)])
    path = torch.cat([torch.tensor([[0, 1]]).expand(27, -1), every], 1)
    each_SA = torch.stack([tables[:, path[:, t], path[:, t + 1], path[:, t + 2]] for t in range(3)]).sum(0)
    exact_A = each_SA.exp().mean(0)
    assert_close(exact_A.sum(), torch.tensor(1.0))
    code = made.tokens @ torch.tensor([9, 3, 1])
    assert_close(made.answers.log_prob, exact_A.log()[code], rtol=1e-9)
    shares = torch.bincount(code, minlength=27) / count
    assert bool(((shares - exact_A).abs() < 4 * (exact_A * (1 - exact_A) / count).sqrt()).all())
    total = -(exact_A * exact_A.log()).sum()
    expected = -(each_SA.exp() * each_SA).sum(1).mean()
    for actual, value in zip(made.answers[1:4], (total, expected, total - expected), strict=True):
        assert abs(float(actual.mean() - value)) < 4 * float(actual.std()) / count**0.5


def test_the_first_token_is_that_of_predict():
    network = endless(adapted("qwen3", head=False).double())
    posterior, rows = posterior_of(network), prompts([4, 4])
    functions = posterior.functions(3)
    made = generate(functions, network, rows["input_ids"], max_new_tokens=1)
    actual = tb.predict(functions, {"input_ids": rows["input_ids"]})
    assert torch.equal(made.tokens[:, 0], actual.probs[:, -1].argmax(-1))
    assert_close(made.log_prob[:, 0], actual.probs[:, -1].amax(-1).log(), rtol=1e-5)
    for name in ("entropy", "expected_entropy", "mutual_information"):
        assert_close(getattr(made, name)[:, 0], getattr(actual, name)[:, -1], rtol=1e-4)


def test_one_draw_is_what_transformers_generates():
    network = adapted("llama").double()
    posterior, rows = posterior_of(network, members=1), prompts([6, 3, 4])
    made = generate(posterior, network, rows, draws=1, max_new_tokens=8)
    draw = load_draw(network, posterior.model, posterior.weights_MD[0])
    expected = draw.generate(**rows, max_new_tokens=8, do_sample=False, pad_token_id=0)[:, rows["input_ids"].shape[1] :]
    assert torch.equal(made.tokens[made.attention_mask.bool()], expected[made.attention_mask.bool()])
    assert_close(made.mutual_information, torch.zeros_like(made.entropy), atol=1e-12)


class Summing(nn.Module):
    """Logits that are a running sum of embeddings, as a network with a cache under the name of Transformers 5.24."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lengths = nn.Embedding(WORDS, WORDS).double(), list[int]()

    def read(self, input_ids: Tensor, total: Tensor | None) -> Tensor:
        self.lengths.append(input_ids.shape[1])
        return self.embedding(input_ids).cumsum(1) + (0 if total is None else total)

    def forward(self, input_ids: Tensor, position_ids: Tensor, cache: Tensor | None = None) -> SimpleNamespace:
        logits = self.read(input_ids, cache)
        return SimpleNamespace(logits=logits, cache=logits[:, -1:])


class OldSumming(Summing):
    """The same under the name of before."""

    def forward(self, input_ids: Tensor, past_key_values: Tensor | None = None) -> SimpleNamespace:  # type: ignore[override]
        logits = self.read(input_ids, past_key_values)
        return SimpleNamespace(logits=logits, past_key_values=logits[:, -1:])


@torch.no_grad()
@pytest.mark.parametrize("kind", [Summing, OldSumming])
def test_a_cache_is_used_under_either_of_its_names(kind: type[Summing]):
    network, tokens = kind(), prompts([7, 7])["input_ids"]
    draw, real = decoding.Draw(network), torch.ones_like(tokens)
    for read in (4, 5, 6, 7):
        assert_close(draw(tokens[:, :read], real[:, :read])[:, -1], network.embedding(tokens[:, :read]).sum(1))
    assert network.lengths == [4, 1, 1, 1]


@torch.no_grad()
def test_a_recurrent_network_reads_on_as_from_the_start():
    """Its state wants another mask than a cache of keys and values does."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.MambaConfig(vocab_size=WORDS, hidden_size=8, num_hidden_layers=1, state_size=4)
    network = transformers.MambaForCausalLM(config).double()
    tokens, real = prompts([7, 5])["input_ids"], prompts([7, 5])["attention_mask"]
    draw = decoding.Draw(network)
    for read in (4, 5, 6, 7):
        whole = decoding.Draw(network)(tokens[:, :read], real[:, :read])
        assert_close(draw(tokens[:, :read], real[:, :read]), whole, rtol=1e-5)  # its norms compute in single precision


def test_answers_end_and_the_rest_is_padding():
    network = endless(adapted("gpt2").double())
    posterior, rows = posterior_of(network), prompts([5, 2, 3])
    free = generate(posterior, network, rows, max_new_tokens=LONG)
    settings = network.get_base_model().generation_config
    settings.eos_token_id, settings.pad_token_id = [int(free.tokens[0, 1]), int(free.tokens[2, 0])], 7
    made = generate(posterior, network, rows, max_new_tokens=LONG)
    lengths = made.answers.length.tolist()
    assert lengths[2] == 1
    assert lengths[0] <= 2
    for b, n in enumerate(lengths):
        assert torch.equal(made.tokens[b, :n], free.tokens[b, :n])
        assert (made.tokens[b, n:] == 7).all()
        alone = generate(posterior, network, one(rows, b), max_new_tokens=LONG)
        assert_close(made.log_prob_SB[:, b], alone.log_prob_SB[:, 0], rtol=1e-9)
        assert not made.entropy[b, n:].any()


def one(rows: dict[str, Tensor], b: int) -> dict[str, Tensor]:
    return {name: tensor[b : b + 1] for name, tensor in rows.items()}


def test_what_a_cache_has_read_is_not_read_again(monkeypatch: pytest.MonkeyPatch):
    network = endless(adapted("llama"))
    posterior, lengths = posterior_of(network.double(), members=2), list[int]()
    layer = network.get_base_model().model.embed_tokens
    layer.register_forward_hook(lambda _, given, made: lengths.append(given[0].shape[1]))
    generate(posterior, network, prompts([6, 6]), max_new_tokens=4)
    assert lengths == [6, 6, 1, 1, 1, 1, 1, 1]
    lengths.clear()
    score(posterior, network, prompts([6, 6]), answers=prompts([8, 8]))  # the number of words is known then
    assert lengths == [6, 6, 7, 7]
    lengths.clear()
    monkeypatch.setattr(decoding, "_AT_ONCE", 3 * 2 * 2 * WORDS)  # logits of three places
    score(posterior, network, prompts([6, 6]), answers=prompts([8, 8]))
    assert lengths == [6, 6, 3, 3, 3, 3, 1, 1]


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")
def test_low_precision_and_a_fit():
    network = adapted("qwen3").bfloat16()
    model = tb.Model(LastToken(network, ANSWERS), tb.likelihoods.Categorical(), random="*lora*")
    asked = {**prompts([5, 3, 4, 4]), "labels": torch.tensor([0, 1, 2, 3])}
    posterior = tb.fit(model, asked, tb.IVON(epochs=2, batch_size=2))
    made = generate(posterior, network, asked, max_new_tokens=3, temperature=1.0, seed=2)
    assert made.log_prob_SB.shape == (10, 4)
    assert made.log_prob.dtype == torch.float64
    assert (made.mutual_information >= 0).all()
    again = generate(posterior, network, asked, max_new_tokens=3, temperature=1.0, seed=2)
    assert torch.equal(made.tokens, again.tokens)
    assert_close(made.entropy, made.expected_entropy + made.mutual_information, rtol=1e-9)


def test_what_cannot_be_generated_is_refused():
    network = adapted("llama")
    posterior, rows = posterior_of(network), prompts([5, 3])
    with pytest.raises(TypeError, match="`network` is a LastToken, which has no logits but those of the answers"):
        generate(posterior, LastToken(network, ANSWERS), rows)
    with pytest.raises(ValueError, match=r"`max_new_tokens` must be at most 59, as the longest prompt has 5 of the 64"):
        generate(posterior, network, rows, max_new_tokens=60)
    with pytest.raises(ValueError, match="row 1 of `prompts` is nothing but padding"):
        generate(posterior, network, {**rows, "attention_mask": torch.tensor([[1] * 5, [0] * 5])})
    with pytest.raises(ValueError, match=r"must have the shape of their tokens, \(2, 5\)"):
        generate(posterior, network, {**rows, "attention_mask": torch.ones(2, 4)})
    with pytest.raises(ValueError, match="`network` has no parameter `base_model"):
        generate(posterior, base("llama"), rows, max_new_tokens=2)
    with pytest.raises(ValueError, match="multiple of the 3 members; got 4"):
        generate(posterior, network, rows, draws=4, max_new_tokens=2)
    broken = tb.Functions(posterior.model, torch.full_like(posterior.weights_MD, 1e30))
    with pytest.raises(ValueError, match="the logits of draw 0 are NaN for prompt 0"):
        generate(broken, network, rows, max_new_tokens=2)
    with pytest.raises(ValueError, match="the network cannot take inputs of shape"):
        generate(posterior, network, torch.full((1, 2), WORDS), max_new_tokens=2)
    for wrong in (torch.ones(1, 2).long(), {"input_ids": torch.ones(2, 2).long(), "attention_mask": torch.eye(2)}):
        with pytest.raises(ValueError, match="`answers` must be one answer for each of the 2 prompts"):
            score(posterior, network, rows, answers=wrong)
    with pytest.raises(ValueError, match="`answers` must be tokens from 0 to 96; got 97"):
        score(posterior, network, rows, answers=torch.full((2, 1), WORDS))
    with pytest.raises(ValueError, match="`answers` must be tokens from 0 on; got -100"):
        score(posterior, network, rows, answers=torch.full((2, 1), -100))
    plain = Chances()
    with pytest.raises(ValueError, match="takes no `attention_mask`"):
        generate(tb.Point(tb.Model(plain, tb.likelihoods.Categorical()), torch.ones(1, 27)), plain, rows)
