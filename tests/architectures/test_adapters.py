"""LoRA adapters of PEFT: `random="*lora*"`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from tests.architectures.helpers import METHODS, check, ggn, precision
from tests.architectures.test_transformers import CLASSES, network, rows_of
from tests.covering import with_studies
from tests.oracles import assert_close
from torchbayes.curvature import factors
from torchbayes.curvature.discovery import layer_support, network_layers

peft = pytest.importorskip("peft")
pytestmark = [
    pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning"),  # these fits are of a few steps
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:FutureWarning"),  # PEFT's calls
]
TARGETS = {
    "bert": ["query", "value"],
    "gpt2": ["c_attn"],
    "vit": ["q_proj", "v_proj"],
    "distilbert": ["q_lin", "v_lin"],
}


def adapted(name: str) -> nn.Module:
    torch.manual_seed(4)
    fan_in_fan_out = name == "gpt2"
    config = peft.LoraConfig(r=2, target_modules=TARGETS[name], fan_in_fan_out=fan_in_fan_out, init_lora_weights=False)
    return peft.get_peft_model(network(name), config)


def rows(name: str) -> dict[str, Tensor]:
    return rows_of(name)


EVERY = [("bert", "ivon"), ("distilbert", "hmc"), ("gpt2", "vi_by_layers"), ("vit", "diagonal")]


@pytest.mark.parametrize(("name", "method"), with_studies(EVERY, TARGETS, METHODS))
def test_every_method(name: str, method: str, tmp_path: Path):
    model = tb.Model(adapted(name), tb.likelihoods.Categorical(), random="*lora*")
    assert all("lora" in each for each in model.layout.names)
    check(model, method, rows(name), tmp_path)


@pytest.mark.parametrize("classifier", [False, True])
def test_a_factory_is_called_once_and_its_base_is_shared(classifier: bool):
    made: list[Any] = []

    def make() -> nn.Module:
        kind = {"task_type": "SEQ_CLS"} if classifier else {}  # a classifier is trained beside the adapter
        made.append(peft.get_peft_model(network("bert"), peft.LoraConfig(r=2, target_modules=["query"], **kind)))
        return made[-1]

    globs = ["*lora*", "*modules_to_save*"]
    model = tb.Model(make, tb.likelihoods.Categorical(), random=globs if classifier else "*lora*")
    posterior = tb.fit(model, rows("bert"), tb.MAP(members=2, epochs=2, batch_size=4))
    probs = tb.predict(posterior, {key: value for key, value in rows("bert").items() if key != "labels"}).probs
    assert_close(probs.sum(-1), torch.ones(probs.shape[:-1]), rtol=1e-5)
    assert len(made) == 1
    given = dict(made[0].named_parameters())
    assert all(t.data_ptr() == given[name].data_ptr() for name, t in model.network.constants.items())
    assert any("classifier" in name for name in model.layout.names) == classifier


@pytest.mark.filterwarnings("ignore:Merging")
def test_an_adapter_that_is_merged_into_the_base_later_is_refused():
    given: Any = adapted("bert")
    model = tb.Model(given, tb.likelihoods.Categorical(), random="*lora*")
    posterior = tb.fit(model, rows("bert"), tb.MAP(epochs=1, batch_size=4))
    given.merge_adapter()
    with pytest.raises(ValueError, match=r"was changed later: `.*query.base_layer.weight` and \d+ more, which are not"):
        tb.evaluate(posterior, rows("bert"))


@pytest.mark.parametrize("name", [*TARGETS])
def test_laplace_is_that_of_the_network_by_autograd(name: str):
    model = tb.Model(adapted(name).double(), tb.likelihoods.Categorical(), random="*lora*")
    batch = model.unpack(rows(name))
    layers = network_layers(model, layer_support(model, model.given_weights(), batch.inputs))
    assert {layer.description for layer in layers.layers} == {"affine"}
    assert layers.whole is None
    exact, start = ggn(model, batch.inputs, CLASSES), model.given_weights()
    dense: Any = tb.fit(model, rows(name), tb.Laplace(structure="dense", check_mode=False, prior="model"), start=start)
    assert_close(precision(dense), exact + torch.eye(len(exact)), rtol=1e-7, atol=1e-8)
    diagonal: Any = tb.fit(
        model, rows(name), tb.Laplace(structure="diagonal", check_mode=False, prior="model"), start=start
    )
    assert_close(precision(diagonal).diagonal(), exact.diagonal() + 1, rtol=1e-8)


@pytest.mark.filterwarnings("ignore:the Kronecker factors of long sides are kept at low rank")
@pytest.mark.parametrize("name", [*TARGETS])
def test_factors_of_low_rank_approach_the_whole_ones(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """These networks are small, so that sides count as long from 3 times the other on."""
    monkeypatch.setattr(factors, "RATIO", 3)
    model = tb.Model(adapted(name).double(), tb.likelihoods.Categorical(), random="*lora*")
    start = model.given_weights()
    whole, one, two = (
        tb.fit(model, rows(name), tb.Laplace(rank=rank, check_mode=False, prior="model"), start=start)
        for rank in (None, 1, 2)
    )
    blocks: Any = [each.curvature.blocks for each in (whole, one, two)]  # type: ignore[attr-defined]
    assert any(len(block.eigenvalues_MGOI[0].flatten()) < block.size for block in blocks[1])
    for actual in (one, two):
        assert_close(actual.curvature.trace(), whole.curvature.trace(), rtol=1e-9)  # type: ignore[attr-defined]
    errors = [float((actual.curvature.dense() - whole.curvature.dense()).norm()) for actual in (one, two)]  # type: ignore[attr-defined]
    assert errors[1] < errors[0] < float(whole.curvature.dense().norm())  # type: ignore[attr-defined]
    loaded = tb.load(two.save(tmp_path / "posterior.safetensors"), model)
    inputs = {key: value for key, value in rows(name).items() if key != "labels"}
    probs = [tb.predict(each, inputs).probs for each in (two, loaded)]
    assert_close(*probs, rtol=1e-9)


def test_an_adapter_before_training_keeps_the_prior_of_one_factor():
    torch.manual_seed(4)
    module = peft.get_peft_model(network("bert"), peft.LoraConfig(r=2, target_modules=TARGETS["bert"]))
    model = tb.Model(module.double(), tb.likelihoods.Categorical(), random="*lora*")
    actual: Any = tb.fit(
        model, rows("bert"), tb.Laplace(rank=1, check_mode=False, prior="model"), start=model.given_weights()
    )
    least = {n: float(v.min()) for n, v in model.layout.split(actual.gaussian.covariance.diagonal()[0]).items()}
    assert min(v for n, v in least.items() if "lora_A" in n) > 1 - 1e-14
    assert min(v for n, v in least.items() if "lora_B" in n) < 1 - 1e-9
    assert torch.isfinite(actual.log_evidence()).all()
