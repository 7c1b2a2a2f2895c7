"""A small language model: it learns what counts of pairs cannot know, and perplexities are those of direct counting."""

from __future__ import annotations

import gzip
import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from torchbayes_experiments.shared import language as room
from torchbayes_experiments.shared.language import Base, Texts

pytest.importorskip("transformers")
TINY = Base(words=60, width=16, layers=1, inner=24, heads=2, block=16, steps=120, batch_size=16, lr=0.02)
LINES = ("the cat sat on the mat", "a dog sat by a log", "the fox ran on")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a model, of texts in which the second word before tells what follows `sat` and `on`."""
    texts = Texts([LINES[n % 3] for n in range(400)], ["ring me at 2"] * 20, [False] * 20)
    home = tmp_path_factory.mktemp("base")
    return home, texts, room.pretrained(TINY, texts, home)


def test_a_network_learns_what_pairs_of_words_do_not_tell(folder):
    home, _, (network, _) = folder
    numbers = room.load_or_compute(home / "perplexity.json", lambda: {})
    assert 1 < numbers["network"] < numbers["bigram"] < numbers["unigram"] < TINY.words
    assert numbers["weights"] == sum(weight.numel() for weight in network.parameters())


def test_a_second_call_reads_the_same_model(folder, monkeypatch):
    home, texts, (network, tokenizer) = folder
    monkeypatch.setattr(room, "train", lambda *_: pytest.fail("it was trained again"))
    again, words = room.pretrained(TINY, texts, home)
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), again.parameters(), strict=True))
    assert words.get_vocab() == tokenizer.get_vocab()
    with pytest.raises(ValueError, match="holds a base of other settings"):
        room.pretrained(replace(TINY, steps=7), texts, home)
    assert tokenizer.convert_tokens_to_ids("mat</w>") != tokenizer.unk_token_id  # a frequent word is one token


def test_the_same_texts_give_the_same_model(folder):
    _, texts, (_, tokenizer) = folder
    rows = room.blocks(tokenizer, texts.reviews[:50], 16)
    few = replace(TINY, steps=3)
    first, second = room.train(few, rows), room.train(few, rows)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_blocks_hold_all_texts_in_order(folder):
    tokenizer, lines = folder[2][1], [*LINES, *LINES]
    flat = room.blocks(tokenizer, lines, 4).flatten().tolist()
    whole = [token for line in lines for token in (*tokenizer(line)["input_ids"], tokenizer.eos_token_id)]
    assert flat == whole[: len(flat)]
    assert len(whole) - len(flat) < 4


def test_texts_are_words_without_marks(tmp_path, monkeypatch):
    """Ids of IMDB are three above the rank of a word; below are padding, start and words that are left out."""
    for name in ("imdb", "sms_spam"):
        (tmp_path / name).mkdir()
    for part in ("train", "test"):
        arrays: dict[str, Any] = {
            "tokens": np.array([1, 4, 6, 2, 5, 1, 5]),
            "offsets": np.array([0, 5, 7]),
            "labels": np.array([0, 1]),
        }
        np.savez(tmp_path / "imdb" / f"{part}.npz", **arrays)
    (tmp_path / "imdb" / "imdb_word_index.json.gz").write_bytes(gzip.compress(b'{"film": 2, "the": 1, "ends": 3}'))
    lines = "ham\tI'm here, at 2!\nspam\tWIN: a PRIZE\n"
    (tmp_path / "sms_spam" / "SMSSpamCollection.gz").write_bytes(gzip.compress(lines.encode()))
    monkeypatch.setenv("TORCHBAYES_DATA", str(tmp_path))
    expected = Texts(["the ends film", "film"], ["i'm here at 2", "win a prize"], [False, True])
    assert room.read_texts() == expected


def test_probabilities_of_counts_are_those_of_direct_counting():
    size, trained = 5, torch.tensor([[0, 1, 2, 1], [2, 1, 1, 3]])
    unigram_V = [(trained.eq(v).sum().item() + 1) / (trained.numel() + size) for v in range(size)]
    seen = [pair for row in trained.tolist() for pair in pairwise(row)]

    def bigram(before: int, after: int) -> float:
        followers = [b for a, b in seen if a == before]
        if not followers:
            return unigram_V[after]
        taken = 0.75 * len(set(followers)) / len(followers)
        return max(followers.count(after) - 0.75, 0) / len(followers) + taken * unigram_V[after]

    before, after = (np.array(places).reshape(-1) for places in np.meshgrid(np.arange(size), np.arange(size)))
    unigram, pairs = room._counted(trained, size, before, after)
    assert unigram.tolist() == pytest.approx([unigram_V[b] for b in after])
    assert pairs.tolist() == pytest.approx([bigram(a, b) for a, b in zip(before.tolist(), after.tolist(), strict=True)])
    for a in range(size):
        assert math.fsum(pairs[before == a]) == pytest.approx(1)


def test_the_perplexity_of_a_network_is_that_of_its_probabilities(folder):
    _, texts, (network, tokenizer) = folder
    rows = room.blocks(tokenizer, texts.reviews[:30], 16)
    probs = network(input_ids=rows).logits.double().softmax(-1)[:, :-1]
    mean = probs.gather(-1, rows[:, 1:, None]).log().mean()
    assert room.perplexities(network, rows, held_out=rows)["network"] == pytest.approx(math.exp(-mean), rel=1e-5)
