"""A language model that is split over two processes, with adapters: as the whole one, with checkpoints as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import torchbayes as tb
from tests.oracles import assert_close
from tests.ranks import check, launch
from torchbayes.adapters import LastToken, load_draw, shard
from torchbayes.native.sharding import is_sharded

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
TOKENS = torch.arange(55).view(11, 5) % 50
INPUTS = {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS)}
ROWS = INPUTS, torch.arange(11) % 2


def adapted(*, dora: bool = False) -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 50, "hidden_size": 12, "intermediate_size": 18, "tie_word_embeddings": True}
    config = transformers.LlamaConfig(num_hidden_layers=2, num_attention_heads=3, **sizes)
    base = transformers.LlamaForCausalLM(config).double()
    lora = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", use_dora=dora)
    network = peft.get_peft_model(base, lora).double()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "lora_B" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(3))
    return network


def by_fsdp(network: Any) -> Any:
    """Whole decoder layers, adapters in them, as users of FSDP do."""
    for layer in network.base_model.model.model.layers:
        fully_shard(layer, mesh=init_device_mesh("cpu", (2,)))
    return network


def checkpointed(network: Any) -> Any:
    network.enable_input_require_grads()
    network.gradient_checkpointing_enable()
    return network


def model_of(network: Any) -> tb.Model:
    return tb.Model(LastToken(network, [3, 4]), tb.likelihoods.Categorical(), random="*lora*")


def compare() -> None:
    with tb.Ranks.grid(chains=1) as ranks:
        whole, split = adapted(), shard(adapted())
        tied = [split.get_input_embeddings().weight, split.get_output_embeddings().weight]
        assert is_sharded(tied[0])
        assert tied[0] is tied[1]
        model = model_of(whole)
        weights = model.given_weights()
        descent: Any = tb.MAP(members=2, epochs=2, batch_size=4)
        laplace = tb.Laplace(structure="kronecker", check_mode=False, prior="model")
        for method, *networks in ((descent, checkpointed(shard(adapted())), by_fsdp(adapted())), (laplace, split)):
            expected = tb.predict(tb.fit(model, ROWS, method, start=weights), INPUTS).probs
            for network in networks:
                ours = tb.fit(model_of(network), ROWS, method, start=weights, ranks=ranks)
                assert_close(tb.predict(ours, INPUTS).probs, expected, rtol=1e-6)
        draw = load_draw(split, model_of(split), weights)
        assert_close(draw(**INPUTS).logits, whole(**INPUTS).logits)
        dora = [model_of(network) for network in (adapted(dora=True), shard(adapted(dora=True)))]
        logits = [made.network(made.given_weights(), INPUTS) for made in dora]
        assert_close(logits[1], logits[0])
        assert dora[1].network.sharded


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")
@pytest.mark.slow
def test_a_language_model_is_as_the_whole_one(tmp_path: Path) -> None:
    check(launch(compare, 2, tmp_path))
