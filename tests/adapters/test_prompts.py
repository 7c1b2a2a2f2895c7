"""Questions as tokens: padding, masks, labels, and the tokens of answers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.adapters.tiny import base, tokenizer
from tests.oracles import assert_close
from torchbayes.adapters import LastToken, Question, answer_tokens, encode

TWO = Question("the red", ("red", "blue"), 1, line=1)
THREE = Question("what", ("red", "blue", "green"), 0, line=2)
OPEN = Question("what the", ("red", "blue"), line=3)


def plain(question: Question) -> str:
    return f"{question.text} Answer :"


def test_prompts_are_padded_on_the_left_and_labelled():
    made, words = encode([TWO, THREE], tokenizer(), template=plain), tokenizer().get_vocab()
    end = [words["Answer"], words[":"]]
    expected = [[words["the"], words["red"], *end], [words["[PAD]"], words["what"], *end]]
    assert made["input_ids"].tolist() == expected
    assert made["attention_mask"].tolist() == [[1, 1, 1, 1], [0, 1, 1, 1]]
    assert made["labels"].tolist() == [1, 0]
    assert made["choices"].tolist() == [[True, True, False], [True, True, True]]
    assert {name: tensor.dtype for name, tensor in made.items()} == {
        "input_ids": torch.int64,
        "attention_mask": torch.int64,
        "labels": torch.int64,
        "choices": torch.bool,
    }


def test_what_is_not_known_is_left_out():
    assert encode([OPEN], tokenizer()).keys() == {"input_ids", "attention_mask"}
    assert encode([THREE], tokenizer()).keys() == {"input_ids", "attention_mask", "labels"}
    assert encode([OPEN], tokenizer(), classes=4)["choices"].tolist() == [[True, True, False, False]]


def test_the_whole_prompt_of_the_usual_template_is_there():
    words = tokenizer()
    made = encode([TWO], words)["input_ids"][0].tolist()
    said = words.decode(made)
    assert said.endswith("the red Choices : A ) red B ) blue Answer :")


def test_logits_do_not_depend_on_the_padding():
    """Not on its token, which a tokenizer without one takes from elsewhere, nor on how much there is."""
    network = LastToken(base("gpt2").double(), answer_tokens(tokenizer(), 3))
    with_padding, without = (encode([TWO, THREE], tokenizer(padding=known), template=plain) for known in (True, False))
    assert not torch.equal(with_padding["input_ids"], without["input_ids"])
    actual = [network(**{k: v for k, v in rows.items() if k != "labels"}) for rows in (with_padding, without)]
    alone = encode([THREE], tokenizer(), template=plain)
    assert_close(actual[0][1], network(alone["input_ids"])[0], rtol=1e-9)
    assert_close(actual[0].softmax(-1), actual[1].softmax(-1), rtol=1e-9)


def test_answers_are_the_tokens_of_letters():
    words = tokenizer().get_vocab()
    assert answer_tokens(tokenizer(), 4).tolist() == [words[letter] for letter in "ABCD"]
    assert answer_tokens(tokenizer(), 2, before=" ").tolist() == [words["A"], words["B"]]


@pytest.mark.parametrize(
    ("words", "count", "before", "message"),
    [
        (tokenizer, 5, "", "every answer must be a single token, but 'E', the letter E, is unknown to the tokenizer"),
        (tokenizer, 2, "( ", r"but '\( A', the letter A, takes 2 tokens. Give `before=' '` or `before=''`"),
        (lambda: tokenizer(letters="ABab"), 1, "", "`count` must be a whole number from 2 to 26, as letters go; got 1"),
        (tokenizer, 27, "", "got 27"),
    ],
)
def test_letters_that_are_no_single_tokens_are_refused(words: Any, count: int, before: str, message: str):
    with pytest.raises(ValueError, match=message):
        answer_tokens(words(), count, before=before)


def test_letters_that_are_the_same_token_are_refused():
    def lower(text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [7 if text in {"A", "C"} else 8]}

    with pytest.raises(ValueError, match="the letters A and C are the same token, 7"):
        answer_tokens(lower, 3)


@pytest.mark.parametrize(
    ("questions", "settings", "message"),
    [
        ([], {}, "`questions` is empty; there is nothing to encode"),
        ([TWO, OPEN], {}, "line 3: it has no answer, as 1 of 2 questions. Give an answer to each one, or encode those"),
        ([TWO, THREE], {"classes": 2}, "line 2: it has 3 choices, more than the 2 classes. Fit with as many classes"),
        ([TWO], {"classes": 1}, "`classes` must be a whole number of at least 2; got 1"),
        ([TWO], {"max_length": 0}, "`max_length` must be a whole number of at least 1; got 0"),
        (
            [THREE, TWO],
            {"template": plain, "max_length": 3},
            "line 1: its prompt has 4 tokens, more than the limit of 3",
        ),
        ([TWO], {"template": lambda _: " "}, "line 1: its prompt has no tokens"),
    ],
)
def test_questions_that_cannot_be_encoded_are_refused(questions: Any, settings: Any, message: str):
    with pytest.raises(ValueError, match=message):
        encode(questions, tokenizer(), **settings)


def test_a_template_must_return_text():
    with pytest.raises(TypeError, match="`template` must return text; got None for line 1"):
        encode([TWO], tokenizer(), template=lambda _: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match="`template` must be a function from a question to a prompt"):
        encode([TWO], tokenizer(), template="Answer:")  # type: ignore[arg-type]


def test_the_tokenizer_says_how_long_a_prompt_may_be():
    with pytest.raises(ValueError, match="more than the limit of 3"):
        encode([TWO], tokenizer(model_max_length=3), template=plain)
    assert encode([TWO], tokenizer(model_max_length=3), template=plain, max_length=4)["input_ids"].shape == (1, 4)


def test_an_end_behind_the_prompt_is_refused():
    import tokenizers

    words = tokenizer()
    ends = tokenizers.processors.TemplateProcessing("$0 [END]", special_tokens=[("[END]", words.eos_token_id)])
    words.backend_tokenizer.post_processor = ends
    with pytest.raises(ValueError, match=r"puts its end token behind each prompt.*`special_tokens=False`"):
        encode([TWO], words, template=plain)
    assert encode([TWO], words, template=plain, special_tokens=False)["input_ids"].shape == (1, 4)
