"""LastToken: the logits of the answers are those of the whole network, and no others are ever computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.adapters.tiny import ANSWERS, TARGETS, WORDS, adapted, base, prompts, whole_logits
from tests.oracles import assert_close
from torchbayes.adapters import LastToken

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fan_in_fan_out:UserWarning"),  # PEFT sets it for each kind of layer
    pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:FutureWarning"),
]
LENGTHS = [7, 4, 1, 6]
NETWORKS: dict[str, Any] = {
    "plain": base,
    "body": lambda kind, tied: adapted(kind, tied=tied, head=False),
    "head": adapted,
    "dora": lambda kind, tied: adapted(kind, tied=tied, use_dora=True),
    "saved": lambda kind, tied: adapted(kind, tied=tied, head=False, modules_to_save=["lm_head"]),
}


class Sizes(TorchDispatchMode):
    """Counts the elements of every tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.most, self.wide = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor):
                self.most = max(self.most, tensor.numel())
                self.wide += tensor.ndim > 0 and tensor.shape[-1] == WORDS
        return made


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", [*TARGETS])
@pytest.mark.parametrize("adapter", [*NETWORKS])
def test_logits_are_those_of_the_whole_network(adapter: str, kind: str, tied: bool, side: str):
    network = NETWORKS[adapter](kind, tied=tied).double()
    rows = prompts(LENGTHS, side=side)
    actual = LastToken(network, ANSWERS)(**rows)
    assert actual.dtype == torch.float64
    assert_close(actual, whole_logits(network, rows, ANSWERS), rtol=1e-9)


def test_an_output_layer_with_a_bias():
    network = base("llama").double()
    network.lm_head = nn.Linear(8, WORDS, dtype=torch.float64)
    rows = prompts(LENGTHS)
    assert_close(LastToken(network, ANSWERS)(**rows), whole_logits(network, rows, ANSWERS), rtol=1e-9)


def test_prompts_without_a_mask_and_padding_inside_of_a_row():
    network = base("gpt2").double()
    rows = prompts([5, 5])
    assert_close(LastToken(network, ANSWERS)(rows["input_ids"]), whole_logits(network, rows, ANSWERS), rtol=1e-9)
    rows["attention_mask"][0, 2] = rows["attention_mask"][1, -1] = 0
    assert_close(LastToken(network, ANSWERS)(**rows), whole_logits(network, rows, ANSWERS), rtol=1e-9)


@pytest.mark.parametrize("kind", [*TARGETS])
@pytest.mark.parametrize("adapter", ["plain", "head", "dora"])
def test_no_logits_of_all_tokens_are_ever_made(adapter: str, kind: str):
    network = NETWORKS[adapter](kind, tied=True)
    cut, rows = LastToken(network, ANSWERS), prompts([40] * 4)
    with Sizes() as seen, torch.no_grad():
        cut(**rows)
    assert seen.wide == 0
    assert seen.most < 4 * 40 * WORDS
    with Sizes() as seen, torch.no_grad():
        network(**rows)
    assert seen.wide > 0
    assert seen.most >= 4 * 40 * WORDS


def test_low_precision_gives_logits_in_float32():
    network = base("qwen3").bfloat16()
    rows = prompts([6, 6])
    actual = LastToken(network, ANSWERS)(**rows)
    assert actual.dtype == torch.float32
    assert_close(actual, whole_logits(network, rows, ANSWERS).float(), rtol=0.05, atol=0.01)


def test_the_body_runs_once_and_the_network_stays_as_it_is():
    network = adapted("llama")
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    passes = []
    network.get_base_model().model.register_forward_hook(lambda *_: passes.append(1))
    LastToken(network, ANSWERS)(**prompts(LENGTHS))
    assert len(passes) == 1
    after = network.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("kind", [*TARGETS])
def test_all_but_the_output_layer_is_in_the_memory_of_the_network(kind: str):
    network = adapted(kind, tied=True)
    given = dict(network.named_parameters())
    cut = dict(LastToken(network, ANSWERS).named_parameters())
    for name, parameter in cut.items():
        if "lm_head" not in name:
            assert parameter is given[name.removeprefix("network.")]
    assert cut["network.base_model.model.lm_head.lora_B.default.weight"].shape == (4, 2)
    assert cut["network.base_model.model.lm_head.base_layer.weight"].shape == (4, 8)


@pytest.mark.parametrize("kind", [*TARGETS])
def test_trained_embeddings_stay_tied_to_the_output_layer(kind: str):
    """The gradient is that through both, from the whole network."""
    network, rows = base(kind, tied=True).double(), prompts([5, 5])
    cut = LastToken(network, ANSWERS)
    cut(**rows).square().sum().backward()
    weight = network.get_input_embeddings().weight
    actual, weight.grad = weight.grad.clone(), None
    network(**rows).logits[:, -1, ANSWERS].square().sum().backward()
    assert_close(actual, weight.grad, rtol=1e-9)


def test_answers_that_a_row_cannot_choose_have_no_probability():
    choices = torch.tensor([[True, True, False, False], [True, True, True, True]])
    cut, rows = LastToken(base("gpt2").double(), ANSWERS), prompts([4, 6])
    logits, every = cut(**rows, choices=choices), cut(**rows)
    assert_close(logits.softmax(-1)[0, :2], every[0, :2].softmax(-1))
    assert logits[0, 2:].eq(-torch.inf).all()
    assert_close(logits[1], every[1])


def test_a_row_of_nothing_but_padding_has_no_logits():
    rows = prompts([4, 4])
    rows["attention_mask"][1] = 0
    logits = LastToken(base("llama"), ANSWERS)(**rows)
    assert torch.isfinite(logits[0]).all()
    assert logits[1].isnan().all()


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([5], r"`answers` must be the numbers of two tokens or more, \(K,\); got torch.int64 of shape \(1,\)"),
        ([0.5, 1.0], "got torch.float32"),
        ([5, 97], "`answers` must be tokens from 0 to 96, the rows of the output layer; got 97"),
        ([5, -1], "got -1"),
        ([5, 5], r"`answers` must be different tokens; got \[5, 5\]"),
    ],
)
def test_answers_that_are_no_tokens_are_refused(answers: list[Any], message: str):
    with pytest.raises(ValueError, match=message):
        LastToken(base("gpt2"), answers)


def test_networks_that_are_no_causal_language_models_are_refused():
    import transformers

    with pytest.raises(TypeError, match=r"`network` must be an nn.Module"):
        LastToken("gpt2", ANSWERS)  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match=r"must be a causal language model.*got Linear. Load it by AutoModelForCausalLM"
    ):
        LastToken(nn.Linear(3, 4), ANSWERS)
    config = transformers.GPT2Config(vocab_size=WORDS, n_embd=8, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=2)
    with pytest.raises(TypeError, match="got GPT2Model"):
        LastToken(transformers.GPT2Model(config), ANSWERS)
    network = base("llama")
    network.lm_head = nn.Sequential(nn.LayerNorm(8))
    with pytest.raises(TypeError, match=r"the output layer `lm_head` must be linear.*type Sequential"):
        LastToken(network, ANSWERS)
    network.lm_head = nn.Linear(8, WORDS)
    network.lm_head.weight = nn.Parameter(torch.zeros(WORDS, 8, dtype=torch.int8), requires_grad=False)
    with pytest.raises(TypeError, match=r"quantised to torch.int8, and cannot be cut.*llm_int8_skip_modules"):
        LastToken(network, ANSWERS)


def test_learned_prompts_are_refused():
    peft = pytest.importorskip("peft")
    network = peft.get_peft_model(base("gpt2"), peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))
    with pytest.raises(TypeError, match=r"a learned prompt .PromptTuningConfig., which moves the tokens"):
        LastToken(network, ANSWERS)
