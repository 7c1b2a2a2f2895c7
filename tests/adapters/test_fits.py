"""What the library does with modules works on language models that answer questions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import torchbayes as tb
from tests.adapters.tiny import ANSWERS, TARGETS, adapted, base, prompts, whole_logits
from tests.architectures.helpers import ggn, precision
from tests.oracles import assert_close, classes
from torchbayes.adapters import LastToken, load_draw

pytest.importorskip("peft")
pytestmark = [
    pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning"),  # these fits are of a few steps
    pytest.mark.filterwarnings("ignore:.*fan_in_fan_out:UserWarning"),  # PEFT sets it for each kind of layer
    pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:FutureWarning"),
]
CHOICES = torch.ones(8, 4, dtype=torch.bool)
CHOICES[::3, 3] = False  # rows that have three choices
METHODS: dict[str, Any] = {
    "map": tb.MAP(members=2, epochs=2, batch_size=4),
    "tfb": tb.TFB(passes=3, draws=2, batch_size=4),
    "blob": tb.BLoB(epochs=2, batch_size=4),
    "laplace": tb.Laplace(structure="kronecker", check_mode=False, prior="model"),
    "ivon": tb.IVON(members=2, epochs=2, batch_size=4),
    "swag": tb.SWAG(epochs=4, batch_size=4, rank=2),
    "hmc": tb.HMC(chains=1, steps=2, burn_in=1, step_size=1e-2, trajectory=0.03),
}


def rows(*, masked: bool = False) -> dict[str, Tensor]:
    asked = {**prompts([7, 4, 2, 6, 5, 3, 7, 6]), "labels": classes(8, 3, seed=1)}
    return {**asked, "choices": CHOICES} if masked else asked


def model_of(kind: str, *, double: bool = False, **settings: Any) -> tb.Model:
    network = adapted(kind, tied=True, **settings)
    network = network.double() if double else network
    return tb.Model(LastToken(network, ANSWERS), tb.likelihoods.Categorical(), random="*lora*")


def inputs_of(asked: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in asked.items() if name != "labels"}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", [*TARGETS])
@pytest.mark.parametrize("method", [*METHODS])
def test_every_method(method: str, kind: str, masked: bool, tmp_path: Path):
    model, asked = model_of(kind), rows(masked=masked)
    start = model.given_weights() if method in {"tfb", "laplace"} else None
    posterior = tb.fit(model, asked, METHODS[method], start=start)
    loaded = tb.load(posterior.save(tmp_path / "posterior.safetensors"), model)
    pairs: list[Any] = [(posterior, loaded)]
    if isinstance(posterior, tb.LaplacePosterior):
        pairs.append((tb.Linearised(posterior), tb.Linearised(loaded)))  # type: ignore[arg-type]
    for source, same in pairs:
        probs = tb.predict(source, inputs_of(asked)).probs
        assert_close(probs.sum(-1), torch.ones(8), rtol=1e-5)
        assert not masked or bool((probs[~CHOICES] == 0).all())
        expected = -probs.gather(-1, asked["labels"].unsqueeze(-1)).log().double().mean()
        metrics = tb.evaluate(source, asked).metrics
        assert_close(metrics["nll"], expected, rtol=1e-4)
        assert all(torch.as_tensor(value).isfinite() for value in metrics.values())
        assert_close(tb.predict(same, inputs_of(asked)).probs, probs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", [*TARGETS])
def test_laplace_is_that_of_the_network_by_autograd(kind: str):
    """The norms of Llama and Qwen compute in single precision, whatever the weights are."""
    rtol, atol = (1e-7, 1e-8) if kind == "gpt2" else (1e-5, 2e-5)
    model, asked = model_of(kind, double=True), rows()
    exact, start = ggn(model, model.unpack(asked).inputs, 4), model.given_weights()
    for structure, part in {"dense": exact, "diagonal": exact.diagonal()}.items():
        method = tb.Laplace(structure=structure, check_mode=False, prior="model")  # type: ignore[arg-type]
        actual = precision(tb.fit(model, asked, method, start=start))
        actual = actual if structure == "dense" else actual.diagonal()
        assert_close(actual, part + (torch.eye(len(exact)) if structure == "dense" else 1), rtol=rtol, atol=atol)


def test_kronecker_factors_of_the_cut_output_layer_are_those_of_its_inputs():
    """B of the output layer takes one vector A h a row, so that its block for one row is a Kronecker product."""
    model = model_of("llama", double=True)
    asked = {name: tensor[:1] for name, tensor in rows().items()}
    exact, start = ggn(model, model.unpack(asked).inputs, 4), model.given_weights()
    method = tb.Laplace(structure="kronecker", check_mode=False, prior="model")
    actual = precision(tb.fit(model, asked, method, start=start))
    where = model.layout.slices["network.base_model.model.lm_head.lora_B.default.weight"]
    assert where.stop - where.start == 4 * 2
    assert_close(actual[where, where], exact[where, where] + torch.eye(8), rtol=1e-7, atol=1e-9)


def test_an_adapter_learns_the_answers():
    network = adapted("qwen3", trained=False)
    model = tb.Model(LastToken(network, ANSWERS), tb.likelihoods.Categorical(), tb.priors.Normal(1.0), random="*lora*")
    posterior = tb.fit(model, rows(), tb.MAP(members=2, epochs=300, batch_size=8, optimizer=tb.Adam(0.05)))
    assert tb.evaluate(posterior, rows()).metrics["accuracy"] == 1


def test_a_function_that_makes_the_network_is_called_once():
    made = list[Any]()

    def make() -> LastToken:
        made.append(LastToken(adapted("llama", trained=False), ANSWERS))
        return made[-1]

    model = tb.Model(make, tb.likelihoods.Categorical(), random="*lora*")
    posterior = tb.fit(model, rows(), tb.MAP(members=2, epochs=1, batch_size=4))
    assert_close(tb.predict(posterior, inputs_of(rows())).probs.sum(-1), torch.ones(8), rtol=1e-5)
    assert len(made) == 1


def test_members_of_a_tied_base_that_is_trained_as_a_whole_stay_tied():
    """Fresh members are drawn by the initialisers of Hugging Face, which tie weights by name."""
    model = tb.Model(LastToken(base("gpt2", tied=True), ANSWERS), tb.likelihoods.Categorical())
    assert not any("lm_head" in name for name in model.layout.names)
    weights_MD, _ = model.starting_weights([0, 1])
    logits = torch.stack([model.network(weights_D, inputs_of(rows())) for weights_D in weights_MD])
    assert logits.shape == (2, 8, 4)
    assert not torch.equal(logits[0], logits[1])


@pytest.mark.parametrize("tied", [False, True])
def test_fresh_members_of_a_cut_output_layer_that_is_trained_have_its_rows(tied: bool):
    """Hugging Face ties the weights of a base again after it has initialised them."""
    saved = adapted("llama", tied=tied, head=False, modules_to_save=["lm_head"])
    asked, globs = rows(), ["*lora*", "*modules_to_save*"]
    model = tb.Model(LastToken(saved, ANSWERS), tb.likelihoods.Categorical(), random=globs)
    assert model.layout.shapes["network.base_model.model.lm_head.modules_to_save.default.weight"] == (4, 8)
    posterior = tb.fit(model, asked, tb.MAP(members=2, epochs=1, batch_size=4))
    assert tb.predict(posterior, inputs_of(asked)).probs.shape == (8, 4)
    weights_D = posterior.weights_MD[0]
    actual = whole_logits(load_draw(saved, model, weights_D), asked, ANSWERS)
    assert_close(actual, model.network(weights_D, inputs_of(asked)), rtol=1e-4, atol=1e-6)


def test_what_is_not_random_is_in_the_memory_of_the_base():
    network = adapted("llama", tied=True)
    model = tb.Model(LastToken(network, ANSWERS), tb.likelihoods.Categorical(), random="*lora*")
    given, constants = dict(network.named_parameters()), model.network.constants
    shared = {name: tensor for name, tensor in constants.items() if "lm_head" not in name}
    assert all(tensor.data_ptr() == given[name.removeprefix("network.")].data_ptr() for name, tensor in shared.items())
    assert sum(tensor.numel() for tensor in constants.values() if tensor not in {*shared.values()}) == 4 * 8


def test_the_average_as_a_plain_module():
    model, asked = model_of("gpt2"), rows()
    posterior = tb.fit(model, asked, METHODS["ivon"])
    made = posterior.module(4, seed=3)(inputs_of(asked))
    assert_close(made["probs"], tb.predict(posterior, inputs_of(asked), draws=4, seed=3).probs, rtol=1e-5)
