"""Adapters on bases of 4 and 8 bits, as bitsandbytes makes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.adapters import LastToken
from torchbayes.checks import SettingError

bnb = pytest.importorskip("bitsandbytes")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning"),  # these fits are of a few steps
    pytest.mark.filterwarnings("ignore:MatMul8bitLt"),
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:FutureWarning"),
]
TOKENS = torch.arange(60).view(12, 5) % 50
ROWS = {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS)}, torch.arange(12) % 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 50, "hidden_size": 64, "intermediate_size": 64}
    config = transformers.LlamaConfig(num_hidden_layers=2, num_attention_heads=4, **sizes)
    path = tmp_path_factory.mktemp("base")
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    return path


def adapted(folder: Path, bits: int, compute: torch.dtype = torch.float32) -> Any:
    kept: dict[str, Any] = {"llm_int8_skip_modules": ["lm_head"]}
    few = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": compute}
    asked = transformers.BitsAndBytesConfig(**(few if bits == 4 else {"load_in_8bit": True}), **kept)
    base = transformers.AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=asked, dtype=torch.float32, device_map={"": "cpu"}
    )
    torch.manual_seed(1)
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj", "lm_head"], task_type="CAUSAL_LM")
    return peft.get_peft_model(base, config)


def model_of(network: nn.Module) -> tb.Model:
    return tb.Model(LastToken(network, [3, 4]), tb.likelihoods.Categorical(), random="*lora*")


def dense(network: Any) -> nn.Module:
    """Linear layers that hold the numbers which those of 4 bits stand for."""
    for name, layer in [*network.named_modules()]:
        if isinstance(layer, bnb.nn.Linear4bit):
            plain = nn.Linear(layer.in_features, layer.out_features, bias=False)
            weight = layer.weight
            plain.weight = nn.Parameter(bnb.functional.dequantize_4bit(weight.data, weight.quant_state), False)
            owner, _, last = name.rpartition(".")
            setattr(network.get_submodule(owner), last, plain)
    return network


def moved(model: tb.Model) -> Tensor:
    """Weights at which no factor is zero."""
    weights_D = model.given_weights()
    return weights_D + 0.1 * torch.randn(weights_D.shape, generator=torch.Generator().manual_seed(2))


def test_four_bits_give_the_gradient_of_the_numbers_they_stand_for(folder: Path) -> None:
    few, exact = model_of(adapted(folder, 4)), model_of(dense(adapted(folder, 4)))
    weights_MD = moved(exact).unsqueeze(0)
    values = [tb.LogDensity(model, 12, model.unpack(ROWS), plan="loop")(weights_MD) for model in (exact, few)]
    for actual, true in zip(values[1], values[0], strict=True):
        torch.testing.assert_close(actual, true, rtol=1e-4, atol=1e-4)
    assert values[0].gradient.abs().min(dim=1).values > 0  # those of the first layer too
    probs = [
        tb.predict(tb.fit(m, ROWS, tb.HMC(chains=1, steps=3, burn_in=1), seed=1), ROWS[0]).probs for m in (exact, few)
    ]
    torch.testing.assert_close(probs[1], probs[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("bits", [4, 8])
def test_copies_share_memory_and_leave_the_base_as_it_is(folder: Path, bits: int) -> None:
    network = adapted(folder, bits)
    models = [model_of(network) for _ in range(2)]
    outputs = [model.network(model.given_weights(), ROWS[0]) for model in models]
    fitted = tb.fit(models[0], ROWS, tb.IVON(epochs=2, batch_size=4))
    torch.testing.assert_close(outputs[0], outputs[1])
    with torch.no_grad():  # the base alone was never called before
        alone = network.eval()(**ROWS[0]).logits[:, -1, [3, 4]]
    torch.testing.assert_close(outputs[0], alone, rtol=1e-4, atol=1e-4)
    assert tb.predict(fitted, ROWS[0], draws=3).probs.isfinite().all()
    inside = dict(models[0].network.module.named_parameters())
    for name, layer in network.named_modules():
        if isinstance(layer, bnb.nn.Linear4bit | bnb.nn.Linear8bitLt):
            assert inside[f"network.{name}.weight"].data_ptr() == layer.weight.data_ptr()


def test_rounding_of_activations_is_for_no_sampler_with_energies(folder: Path) -> None:
    with pytest.raises(SettingError, match=r"the gradient of the network is not that of its outputs: .*8 bits"):
        tb.fit(model_of(adapted(folder, 8)), ROWS, tb.HMC(chains=1, steps=3, burn_in=1))
    with pytest.raises(TypeError, match=r"computes in torch\.bfloat16 what depends on its random weights"):
        tb.fit(model_of(adapted(folder, 4, torch.bfloat16)), ROWS, tb.HMC(chains=1, steps=3, burn_in=1))


def test_weights_packed_for_a_kernel_without_gradients_are_refused(folder: Path) -> None:
    network = adapted(folder, 4)
    layer = next(layer for layer in network.modules() if isinstance(layer, bnb.nn.Linear4bit))
    layer.weight.quant_state.packing_format_for_cpu = True  # as in its own first call on some CPUs
    with pytest.raises(SettingError, match=r"q_proj.*has packed its weights for a kernel without gradients\. Load"):
        model_of(network)
