"""A draw of weights goes back into the network that it belongs to, and from there to files of PEFT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import torchbayes as tb
from tests.adapters.tiny import ANSWERS, TARGETS, adapted, base, prompts, whole_logits
from tests.oracles import assert_close, classes, normal
from torchbayes.adapters import LastToken, load_draw

peft = pytest.importorskip("peft")
pytestmark = [
    pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning"),  # these fits are of a few steps
    pytest.mark.filterwarnings("ignore:.*fan_in_fan_out:UserWarning"),  # PEFT sets it for each kind of layer
    pytest.mark.filterwarnings("ignore:.*save_embedding_layers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:FutureWarning"),
]
ROWS = prompts([7, 4, 2, 6])


def model_of(network: Any, **settings: Any) -> tb.Model:
    return tb.Model(LastToken(network, ANSWERS), tb.likelihoods.Categorical(), **{"random": "*lora*", **settings})


@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("kind", [*TARGETS])
def test_a_draw_is_saved_and_read_by_peft(kind: str, head: bool, tmp_path: Path):
    """What PEFT reads from the file around a base of its own answers as the draw does."""
    network = adapted(kind, head=head, trained=False)
    model = model_of(network)
    posterior = tb.fit(model, {**ROWS, "labels": classes(4, 4)}, tb.IVON(epochs=2, batch_size=2))
    weights_D = posterior.sample(1, seed=3)[0]
    load_draw(network, model, weights_D).save_pretrained(str(tmp_path))
    again = peft.PeftModel.from_pretrained(base(kind), str(tmp_path)).eval()
    assert_close(whole_logits(again, ROWS, ANSWERS), model.network(weights_D, ROWS), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", [*TARGETS])
def test_the_copy_holds_the_draw_and_the_network_stays(kind: str):
    network = adapted(kind).double()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    model = model_of(network)
    weights_D = normal(model.layout.size, seed=1)
    made = load_draw(network, model, weights_D)
    assert type(made) is type(network)
    assert_close(whole_logits(made, ROWS, ANSWERS), model.network(weights_D, ROWS), rtol=1e-9)
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    given, copied = dict(network.named_parameters()), dict(made.named_parameters())
    for name, parameter in copied.items():
        assert (parameter is given[name]) == ("lora" not in name)
        assert parameter.requires_grad == given[name].requires_grad


def test_rows_of_other_tokens_are_as_they_were():
    network = adapted("llama").double()
    model = model_of(network)
    made = load_draw(network, model, normal(model.layout.size, seed=1))
    name = "base_model.model.lm_head.lora_B.default.weight"
    held, now = network.get_parameter(name), made.get_parameter(name)
    others = torch.ones(len(held), dtype=torch.bool)
    others[ANSWERS] = False
    assert torch.equal(held[others], now[others])
    written = model.layout.split(normal(model.layout.size, seed=1))[f"network.{name}"]
    assert_close(now[ANSWERS], written)


def test_the_weights_of_the_network_itself_change_nothing():
    network = adapted("qwen3").double()
    model = model_of(network)
    made = load_draw(network, model, model.given_weights())
    assert all(torch.equal(made.state_dict()[name], tensor) for name, tensor in network.state_dict().items())


@torch.no_grad()
def test_the_mean_of_an_adapter_without_last_token():
    """Models whose network is that of PEFT itself go back in the same way."""
    network = adapted("gpt2", head=False).double()
    model = tb.Model(network, tb.likelihoods.Categorical(ignore_index=-100), random="*lora*")
    point = tb.Point(model, normal(1, model.layout.size, seed=2))
    made = load_draw(network, model, point.centre.weights_MD[0])
    tokens = {"input_ids": ROWS["input_ids"]}
    assert_close(made(**tokens).logits, model.network(point.weights_MD[0], tokens), rtol=1e-9)


def test_some_random_elements_and_learned_parameters():
    network = adapted("llama", head=False).double()
    name = "network.base_model.model.model.layers.0.self_attn.q_proj.lora_B.default.weight"
    held = network.get_parameter(name.removeprefix("network."))
    chosen = torch.zeros_like(held, dtype=torch.bool)
    chosen[0] = True
    model = model_of(network, random={name: chosen})
    made = load_draw(network, model, torch.ones(2))
    now = made.get_parameter(name.removeprefix("network."))
    assert_close(now[0], torch.ones(2))
    assert torch.equal(now[1:], held[1:])
    noisy = tb.Model(LastToken(network, ANSWERS), tb.likelihoods.Gaussian("learned"), random="*lora*")
    assert noisy.layout.size == sum(p.numel() for n, p in network.named_parameters() if "lora" in n) + 1
    assert isinstance(load_draw(network, noisy, normal(noisy.layout.size)), type(network))


def test_low_precision_rounds_the_draw():
    network = adapted("llama", head=False).bfloat16()
    model = model_of(network)
    weights_D = normal(model.layout.size).float()
    made = load_draw(network, model, weights_D)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight"
    expected: Tensor = model.layout.split(weights_D)[f"network.{name}"].bfloat16()
    assert torch.equal(made.get_parameter(name), expected)


def test_what_does_not_fit_is_refused():
    network = adapted("llama")
    model = model_of(network)
    weights_D = model.given_weights()
    with pytest.raises(ValueError, match=r"`network` has no parameter `base_model.*`, nor \d+ others of the model"):
        load_draw(base("llama"), model, weights_D)
    with pytest.raises(ValueError, match=r"`weights` must hold the \d+ weights of the model"):
        load_draw(network, model, weights_D[1:])
    with pytest.raises(ValueError, match=r"`weights` must have shape \(D,\)"):
        load_draw(network, model, weights_D.unsqueeze(0))
    with pytest.raises(TypeError, match="`model` must be a Model"):
        load_draw(network, network, weights_D)  # type: ignore[arg-type]
    other = peft.get_peft_model(base("llama"), peft.LoraConfig(r=3, target_modules=["q_proj", "v_proj", "lm_head"]))
    with pytest.raises(
        ValueError, match=r"has shape \(2, 8\) in the model and \(3, 8\) in `network`. Give the network"
    ):
        load_draw(other, model, weights_D)
