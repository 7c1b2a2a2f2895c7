"""Labels of tokens are compared with the outputs that the network's own loss compares them with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.model import Batch

WORDS, LENGTH, ROWS = 7, 5, 12
TOKENS = torch.randint(WORDS, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0))
SKIPPED = TOKENS.masked_fill(torch.arange(LENGTH) < 2, -100)
CATEGORICAL = tb.likelihoods.Categorical(ignore_index=-100)


class Words(nn.Module):
    """Outputs at a place depend on the tokens up to it; the loss may move labels one place, as Hugging Face does."""

    def __init__(self, moves: int, *, zero: bool = False) -> None:
        super().__init__()
        self.moves, self.embed, self.head = moves, nn.Embedding(WORDS, 6), nn.Linear(6, WORDS)
        if zero:
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None
    ) -> SimpleNamespace:
        logits = self.head(self.embed(input_ids).cumsum(1))
        loss = None
        if labels is not None:
            kept = logits[:, : LENGTH - self.moves].flatten(0, 1)
            loss = F.cross_entropy(kept, labels[:, self.moves :].flatten(), ignore_index=-100)
        return SimpleNamespace(logits=logits, loss=loss)


class Silent(Words):
    """Takes no labels."""

    def forward(self, input_ids: Tensor) -> SimpleNamespace:  # type: ignore[override]
        return super().forward(input_ids)


def unpacked(network: nn.Module, batch: Any, likelihood: Any = CATEGORICAL) -> Batch:
    return tb.Model(network, likelihood).unpack(batch)


@pytest.mark.parametrize("labels", [TOKENS, SKIPPED], ids=["all", "some"])
@pytest.mark.parametrize("moves", [0, 1])
def test_the_log_likelihood_is_the_networks_own_loss(moves: int, labels: Tensor):
    network, mask = Words(moves), torch.ones_like(TOKENS)
    model = tb.Model(network, CATEGORICAL)
    batch = model.unpack({"input_ids": TOKENS, "attention_mask": mask, "labels": labels})
    loss = network(TOKENS, mask, labels).loss
    count = int((labels[:, moves:] != -100).sum())
    torch.testing.assert_close(-model.log_likelihood(model.given_weights(), batch).sum() / count, loss)
    assert batch.targets.shape == labels.shape
    assert (batch.targets[:, -1] == -100).all() == bool(moves)
    model.check(batch)


def test_a_causal_model_learns_the_next_token_and_not_the_same():
    """Token t + 1 is token t plus one."""
    tokens = (torch.arange(ROWS).unsqueeze(1) + torch.arange(LENGTH)) % WORDS
    data = [{"input_ids": tokens, "labels": tokens.clone()}]
    model = tb.Model(lambda: Words(1), CATEGORICAL)
    posterior = tb.fit(model, data, tb.MAP(epochs=120, optimizer=tb.Adam(lr=0.05)), callbacks=())
    guessed = tb.predict(posterior, {"input_ids": tokens}).probs.argmax(-1)
    assert guessed.shape == tokens.shape
    assert (guessed[:, :-1] == tokens[:, 1:]).double().mean() > 0.9
    assert tb.evaluate(posterior, data).metrics["accuracy"] > 0.9


def test_tuples_are_read_like_mappings():
    assert torch.equal(unpacked(Words(1), (TOKENS, TOKENS)).targets[:, :-1], TOKENS[:, 1:])
    assert torch.equal(unpacked(Words(0), (TOKENS, TOKENS)).targets, TOKENS)


PAD = torch.arange(LENGTH) >= torch.arange(ROWS).unsqueeze(1) % 3 + 3  # places after the last label
LONGER = torch.cat([TOKENS, TOKENS[:, :1]], dim=1)
AHEAD = {
    "all": (TOKENS, LONGER[:, 1:]),
    "prompts left out": (TOKENS, LONGER[:, 1:].masked_fill(torch.arange(LENGTH) < 2, -100)),
    "the last one only": (TOKENS, LONGER[:, 1:].masked_fill(torch.arange(LENGTH) < LENGTH - 1, -100)),
    "padded afterwards": (TOKENS.masked_fill(PAD, 0), LONGER[:, 1:].masked_fill(PAD, -100)),
    "two tokens": (TOKENS[:, :2], TOKENS[:, 1:3]),
    "one row": (TOKENS[:1], LONGER[:1, 1:]),
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("tokens", "labels"), AHEAD.values(), ids=AHEAD.keys())
def test_labels_that_are_one_place_ahead_stay_where_they_are(tokens: Tensor, labels: Tensor, weighted: bool):
    """Compared one place later again, they would be those of token t + 2."""
    pair: Any = (labels, torch.ones(len(labels))) if weighted else labels
    likelihood = tb.likelihoods.Weighted(CATEGORICAL) if weighted else CATEGORICAL
    actual = unpacked(Words(1), (tokens, pair), likelihood).targets
    assert torch.equal(actual[0] if weighted else actual, labels)


def test_labels_that_are_ahead_need_none_that_is_left_out():
    actual = unpacked(Words(1), AHEAD["all"], tb.likelihoods.Categorical())
    assert torch.equal(actual.targets, LONGER[:, 1:])


def test_equal_tokens_are_the_next_ones_too():
    """Their labels agree with both readings; a network that does not say how it compares them learns no copying."""
    tokens = torch.full_like(TOKENS, 3)
    assert set(unpacked(Words(1), (tokens, tokens)).targets[:, :-1].flatten().tolist()) == {3}
    assert torch.equal(unpacked(Silent(0), (tokens, tokens)).targets, tokens)
    left_out = torch.full_like(TOKENS, -100)
    assert torch.equal(unpacked(Silent(0), (TOKENS, left_out)).targets, left_out)


def test_labels_of_weighted_rows_are_moved_too():
    weights = torch.linspace(0, 1, ROWS)
    base = tb.likelihoods.Weighted(CATEGORICAL)
    for likelihood, given in (
        (base, (SKIPPED, weights)),
        (tb.likelihoods.Weighted(base), ((SKIPPED, weights), weights)),
    ):
        actual = unpacked(Words(1), {"input_ids": TOKENS, "labels": given}, likelihood).targets
        labels, kept = actual if likelihood is base else actual[0]
        assert torch.equal(labels, F.pad(SKIPPED[:, 1:], (0, 1), value=-100))
        assert torch.equal(kept, weights)
    with pytest.raises(ValueError, match="would learn to copy them"):
        unpacked(Silent(0), (TOKENS, (TOKENS, weights)), base)


@pytest.mark.parametrize(("network", "times"), [(Words(1), 3), (Words(1, zero=True), 3), (Silent(0), 0)])
def test_the_question_is_asked_once(network: nn.Module, times: int):
    """By forward passes with the labels, with another first one and with another last one."""
    model, asked = tb.Model(network, CATEGORICAL), []
    model.network.module.register_forward_hook(lambda *_: asked.append(1))
    for _ in range(3):
        model.unpack((TOKENS, LONGER[:, 1:]))
    assert len(asked) == times


def test_the_last_place_needs_a_label_that_is_left_out():
    with pytest.raises(ValueError, match=r"causal language model: .* Use likelihoods.Categorical\(ignore_index=-100\)"):
        unpacked(Words(1), {"input_ids": TOKENS, "labels": TOKENS}, tb.likelihoods.Categorical())
    own = unpacked(Words(1), {"input_ids": TOKENS, "labels": TOKENS}, tb.likelihoods.Categorical(ignore_index=3))
    assert (own.targets[:, -1] == 3).all()


@pytest.mark.parametrize("labels", [TOKENS, SKIPPED], ids=["all", "some"])
@pytest.mark.parametrize("network", [Silent(0), Words(1, zero=True)], ids=["no labels", "no dependence"])
def test_tokens_as_labels_are_refused_where_the_network_does_not_say(network: nn.Module, labels: Tensor):
    with pytest.raises(ValueError, match=r"would learn to copy them. Give Model `batch=`.*tokens\[:, :-1\]"):
        unpacked(network, {"input_ids": TOKENS, "labels": labels})
    other = (TOKENS + 1) % WORDS
    assert torch.equal(unpacked(network, {"input_ids": TOKENS, "labels": other}).targets, other)


def test_a_hook_of_ones_own_is_left_alone():
    model = tb.Model(Words(1), CATEGORICAL, batch=lambda ids: (ids, ids))
    assert torch.equal(model.unpack(TOKENS).targets, TOKENS)


@pytest.mark.parametrize("labels", [TOKENS, SKIPPED], ids=["all", "some"])
def test_a_batch_made_by_hand_whose_labels_are_the_tokens_is_refused(labels: Tensor):
    model = tb.Model(Words(1), CATEGORICAL)
    weights_MD, batch = model.given_weights().unsqueeze(0), Batch({"input_ids": TOKENS}, labels)
    said = r"are the input tokens themselves.*model\.unpack\(\(inputs, labels\)\)"
    with pytest.raises(ValueError, match=said):
        tb.LogDensity(model, ROWS, batch)
    with pytest.raises(ValueError, match=said):
        tb.LogDensity(model, ROWS)(weights_MD, batch.map(lambda t: t.unsqueeze(0)))
    moved = model.unpack(({"input_ids": TOKENS}, labels))
    value = tb.LogDensity(model, ROWS, moved)(weights_MD).log_likelihood
    torch.testing.assert_close(value[0], model.log_likelihood(weights_MD[0], moved).sum().double())


@pytest.mark.parametrize("network", [Words(0), Silent(0)], ids=["at their places", "does not say"])
def test_a_batch_made_by_hand_is_taken_where_tokens_may_be_labels(network: nn.Module):
    model = tb.Model(network, CATEGORICAL)
    value = tb.LogDensity(model, ROWS, Batch({"input_ids": TOKENS}, TOKENS))(model.given_weights().unsqueeze(0))
    assert torch.isfinite(value.log_density).all()


@pytest.mark.parametrize(
    "batch",
    [
        {"input_ids": TOKENS, "labels": TOKENS[:, 0]},
        {"input_ids": TOKENS[:, :1], "labels": TOKENS[:, :1]},
        (TOKENS.double(), TOKENS.double()),
        (TOKENS.double(), TOKENS),
    ],
    ids=["classes", "one token", "numbers", "numbers and labels"],
)
def test_other_targets_are_left_alone(batch: Any):
    actual = unpacked(Words(1), batch)
    given = batch["labels"] if isinstance(batch, dict) else batch[1]
    torch.testing.assert_close(actual.targets, given, check_dtype=False)


def test_outputs_with_more_places_than_labels_are_refused():
    class Prompted(Words):
        def forward(self, input_ids: Tensor, **_: Any) -> SimpleNamespace:  # type: ignore[override]
            return super().forward(F.pad(input_ids, (2, 0)))

    model = tb.Model(Prompted(0), CATEGORICAL)
    with pytest.raises(ValueError, match=r"class labels must have shape \(12, 7\).*got .*\(12, 5\)"):
        model.check(model.unpack({"input_ids": TOKENS, "labels": (TOKENS + 1) % WORDS}))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", ["GPT2LMHeadModel", "LlamaForCausalLM", "BertForMaskedLM", "BertForTokenClassification"]
)
def test_hugging_face(name: str):
    transformers: Any = pytest.importorskip("transformers")
    sizes = {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    own = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "num_labels": WORDS, "intermediate_size": 32}
    kind = getattr(transformers, name)
    network = kind(kind.config_class(**sizes, **own)).eval()
    model = tb.Model(network, CATEGORICAL)
    batch = model.unpack({"input_ids": TOKENS, "labels": SKIPPED})
    moved = not name.startswith("Bert")
    assert torch.equal(batch.targets, F.pad(SKIPPED[:, 1:], (0, 1), value=-100) if moved else SKIPPED)
    with torch.no_grad():
        loss = network(input_ids=TOKENS, labels=SKIPPED).loss
    total = -model.log_likelihood(model.given_weights(), batch).sum()
    torch.testing.assert_close(total / (batch.targets != -100).sum(), loss)
