"""Kinds of adapters of PEFT, and where they sit: each is fitted, and a draw goes back into the network."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torchbayes as tb
from tests.adapters.tiny import ANSWERS, base, prompts, whole_logits
from tests.oracles import assert_close, classes
from torchbayes.adapters import LastToken, generate, load_draw

peft = pytest.importorskip("peft")
pytestmark = [
    pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning"),  # these fits are of a few steps
    pytest.mark.filterwarnings("ignore:.*fan_in_fan_out:UserWarning"),  # PEFT sets it for each kind of layer
    pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:FutureWarning"),
]
ROWS = prompts([7, 4, 2, 6])
LAYERS = ["q_proj", "v_proj"]
KINDS: dict[str, tuple[Any, bool]] = {  # settings of PEFT, and whether embeddings and output layer are tied
    "rslora": (lambda: peft.LoraConfig(r=2, target_modules=LAYERS, use_rslora=True), False),
    "head": (lambda: peft.LoraConfig(r=2, target_modules=["lm_head"]), False),
    "words": (lambda: peft.LoraConfig(r=2, target_modules=["embed_tokens"]), False),
    "tied": (lambda: peft.LoraConfig(r=2, target_modules=["embed_tokens", "lm_head"]), True),
    "dora": (lambda: peft.LoraConfig(r=2, target_modules=LAYERS, use_dora=True), False),
    "ia3": (lambda: peft.IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]), False),
}


@pytest.mark.parametrize("kind", [*KINDS])
def test_it_is_fitted_and_a_draw_goes_back(kind: str):
    settings, tied = KINDS[kind]
    network = peft.get_peft_model(base("llama", tied=tied), settings()).double().eval()
    prior = tb.priors.Normal(1.0, loc=1.0) if kind == "ia3" else tb.priors.Normal(1.0)
    model = tb.Model(LastToken(network, ANSWERS), tb.likelihoods.Categorical(), prior, random=["*lora*", "*ia3*"])
    given = model.given_weights()
    rows = {**ROWS, "labels": classes(4, 4, seed=1)}
    posterior = tb.fit(model, rows, tb.MAP(epochs=20, batch_size=2), start=given)
    weights_D = posterior.sample(1)[0]
    assert not torch.equal(weights_D, given)
    start, end = (float(model.log_joint(w, model.unpack(rows), 4)) for w in (given, weights_D))
    assert end > start
    draw = load_draw(network, model, weights_D)
    assert_close(whole_logits(draw, ROWS, ANSWERS), model.network(weights_D, model.unpack(rows).inputs), rtol=1e-4)
    made = generate(posterior, network, ROWS, max_new_tokens=2)
    assert made.log_prob_SB.shape == (1, 4)


def test_members_begin_at_initialisers_of_their_own():
    for kind in ("rslora", "words", "dora", "ia3"):
        network = peft.get_peft_model(base("llama"), KINDS[kind][0]())
        model = tb.Model(network, tb.likelihoods.Categorical(ignore_index=-100), random=["*lora*", "*ia3*"])
        weights_MD, _ = model.starting_weights([1, 2])
        if kind == "ia3":
            assert torch.equal(weights_MD, torch.ones_like(weights_MD))
        else:
            assert not torch.equal(weights_MD[0], weights_MD[1])
