"""Networks of Hugging Face, of tiny sizes and with random weights: classifiers of texts and images, and GPT-2."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

import torchbayes as tb
from tests.architectures.helpers import METHODS, PARTICULAR, check, ggn, precision, start_of
from tests.covering import with_studies
from tests.oracles import assert_close, classes, normal
from torchbayes.curvature.discovery import layer_support, network_layers

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # these fits are of a few steps

ROWS, WORDS, CLASSES, PADDING = 8, 20, 3, 0
SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
LENGTHS = [3 + row * 5 % 4 for row in range(ROWS)]  # 3 to 6
LABELS = classes(ROWS, CLASSES, seed=1)
TEXTS = [3 + classes(length, WORDS - 3, seed=n) for n, length in enumerate(LENGTHS)]
HEADS = {"bert": "classifier.*", "distilbert": "classifier.*", "gpt2": "score.*", "vit": "classifier.*"}
HEADS |= {"t5": "classification_head.out_proj.*", "llama": "score.*"}
LAST_WORD = ["gpt2", "llama"]  # whose head is at every place, and one is taken


def network(name: str) -> nn.Module:
    torch.manual_seed(2)
    words: dict[str, Any] = {"vocab_size": WORDS, "num_labels": CLASSES, "pad_token_id": PADDING}
    ends = {"bos_token_id": 1, "eos_token_id": 2}
    made: dict[str, Callable[[], Any]] = {
        "bert": lambda: transformers.BertForSequenceClassification(
            transformers.BertConfig(**words, **SIZES, max_position_embeddings=8)
        ),
        "distilbert": lambda: transformers.DistilBertForSequenceClassification(
            transformers.DistilBertConfig(
                **words, dim=8, n_layers=1, n_heads=2, hidden_dim=8, max_position_embeddings=8
            )
        ),
        "gpt2": lambda: transformers.GPT2ForSequenceClassification(
            transformers.GPT2Config(**words, **ends, n_embd=8, n_layer=1, n_head=2, n_positions=8)
        ),
        "llama": lambda: transformers.LlamaForSequenceClassification(
            transformers.LlamaConfig(**words, **ends, **SIZES, max_position_embeddings=8)
        ),
        "t5": lambda: transformers.T5ForSequenceClassification(
            transformers.T5Config(
                **words, eos_token_id=2, decoder_start_token_id=0, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2
            )
        ),
        "vit": lambda: transformers.ViTForImageClassification(
            transformers.ViTConfig(num_labels=CLASSES, **SIZES, image_size=8, patch_size=4, num_channels=1)
        ),
    }
    return made[name]()


def padded(examples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Collate texts to the longest of the batch."""
    longest = max(len(e["input_ids"]) for e in examples)
    return {
        "input_ids": torch.stack([F.pad(e["input_ids"], (0, longest - len(e["input_ids"]))) for e in examples]),
        "attention_mask": torch.stack([(torch.arange(longest) < len(e["input_ids"])).long() for e in examples]),
        "labels": torch.stack([e["labels"] for e in examples]),
    }


def examples(name: str) -> list[dict[str, Tensor]]:
    texts = [torch.cat([t[:-1], torch.tensor([2])]) for t in TEXTS] if name == "t5" else TEXTS  # T5 reads its last word
    return [{"input_ids": text, "labels": label} for text, label in zip(texts, LABELS, strict=True)]


def rows_of(name: str) -> dict[str, Tensor]:
    if name == "vit":
        return {"pixel_values": normal(ROWS, 1, 8, 8, seed=3).float(), "labels": LABELS}
    return padded(examples(name))


def model_of(name: str, random: Any = "*", *, double: bool = False) -> tb.Model:
    made = network(name)
    return tb.Model(made.double() if double else made, tb.likelihoods.Categorical(), random=random)


EVERY = [
    ("bert", "vi"),
    ("distilbert", "kronecker"),
    ("gpt2", "swag"),
    ("llama", "map"),
    ("t5", "sghmc"),
    ("vit", "flow"),
]


@pytest.mark.parametrize(("name", "method"), with_studies(EVERY, HEADS, METHODS))
def test_every_method(name: str, method: str, tmp_path: Path):
    check(model_of(name), method, rows_of(name), tmp_path)


@pytest.mark.parametrize(
    ("name", "method"),
    with_studies(
        [("bert", "vbll"), ("distilbert", "mnf")], [name for name in HEADS if name not in LAST_WORD], PARTICULAR
    ),
)
def test_last_layers_and_multipliers(name: str, method: str, tmp_path: Path):
    check(model_of(name), method, rows_of(name), tmp_path)


@pytest.mark.parametrize("name", LAST_WORD)
def test_a_head_of_which_one_place_is_taken_is_no_last_layer(name: str):
    with pytest.raises(ValueError, match="must return what its last linear layer `score` gives at its only call"):
        tb.fit(model_of(name), rows_of(name), PARTICULAR["vbll"])


@pytest.mark.parametrize("structure", ["dense", "diagonal"])
@pytest.mark.parametrize("name", [*HEADS])
def test_laplace_of_the_last_layer(name: str, structure: Any):
    model, rows = model_of(name, HEADS[name], double=True), rows_of(name)
    method = tb.Laplace(structure=structure, check_mode=False, prior="model")
    actual = precision(tb.fit(model, rows, method, start=model.given_weights()))
    inputs = model.unpack(rows).inputs
    exact = ggn(model, inputs, CLASSES)
    if structure == "dense":
        assert_close(actual, exact + torch.eye(len(exact)), rtol=1e-8, atol=1e-8)
    else:
        assert_close(actual.diagonal(), exact.diagonal() + 1, rtol=1e-8)


@pytest.mark.parametrize(
    ("name", "method"),
    with_studies(
        [("bert", "diagonal"), ("gpt2", "swag"), ("distilbert", "sghmc")],
        ["bert", "gpt2", "distilbert"],
        ["map", "swag", "sghmc", "hmc", "diagonal"],
    ),
)
def test_texts_padded_batch_by_batch_are_as_those_padded_at_once(name: str, method: str):
    net = network(name).double()
    for part in net.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0  # its random numbers depend on the width
    model = tb.Model(net, tb.likelihoods.Categorical())

    def to_six(batch: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        actual = padded(batch)
        ends = (0, 6 - actual["input_ids"].shape[1])
        return {**actual, **{key: F.pad(actual[key], ends) for key in ("input_ids", "attention_mask")}}

    loaders = [
        DataLoader(examples(name), batch_size=3, shuffle=True, collate_fn=collate)  # type: ignore[arg-type]
        for collate in (padded, to_six)
    ]
    ours, theirs = (tb.fit(model, rows, METHODS[method], start=start_of(model, method)) for rows in loaders)
    for tensor, expected in zip(ours.tensors().values(), theirs.tensors().values(), strict=True):
        torch.testing.assert_close(tensor, expected, rtol=1e-6, atol=1e-8)
    actual, expected = (tb.evaluate(ours, rows).metrics["nll"] for rows in loaders)
    assert_close(actual, expected, rtol=1e-8)


@pytest.mark.parametrize("layer", ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"])
def test_transposed_layers_of_gpt2_are_linear_layers(layer: str):
    model, rows = model_of("gpt2", f"transformer.h.0.{layer}.*", double=True), rows_of("gpt2")
    inputs = model.unpack(rows).inputs
    network = network_layers(model, layer_support(model, model.given_weights(), inputs))
    assert network.describe() == f"transformer.h.0.{layer}: affine"
    exact = ggn(model, inputs, CLASSES)
    start = model.given_weights()
    dense = tb.fit(model, rows, tb.Laplace(structure="dense", check_mode=False, prior="model"), start=start)
    assert_close(precision(dense), exact + torch.eye(len(exact)), rtol=1e-8, atol=1e-8)
    diagonal = tb.fit(model, rows, tb.Laplace(structure="diagonal", check_mode=False, prior="model"), start=start)
    assert_close(precision(diagonal).diagonal(), exact.diagonal() + 1, rtol=1e-8)


def test_kronecker_factors_of_gpt2_are_those_of_the_network_with_linear_layers():
    ours, rows = network("gpt2").double(), rows_of("gpt2")
    theirs = network("gpt2").double()
    for name, part in [*theirs.named_modules()]:
        if type(part).__name__ == "Conv1D":
            weight: Any = part.weight
            plain = nn.Linear(*weight.shape, dtype=torch.float64)
            plain.load_state_dict({"weight": weight.detach().T, "bias": part.state_dict()["bias"]})
            theirs.set_submodule(name, plain)
    actual = []
    for net in (ours, theirs):
        model = tb.Model(net, tb.likelihoods.Categorical(), random="transformer.h.*")
        posterior = tb.fit(model, rows, tb.Laplace(check_mode=False, prior="model"), start=model.given_weights())
        assert isinstance(posterior, tb.LaplacePosterior)
        inputs = {key: rows[key] for key in ("input_ids", "attention_mask")}
        actual.append((posterior.log_evidence(), tb.Linearised(posterior).functions(inputs).covariance_MBKK))
    assert_close(actual[0][0], actual[1][0], rtol=1e-10)
    assert_close(actual[0][1], actual[1][1], rtol=1e-9)


def causal(random: str = "*") -> tuple[tb.Model, dict[str, Tensor]]:
    torch.manual_seed(3)
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_embd=4, n_layer=1, n_head=2, n_positions=8, bos_token_id=1, eos_token_id=2
    )
    rows = padded(examples("gpt2"))
    tokens = rows["input_ids"]
    rows["labels"] = tokens.masked_fill(rows["attention_mask"] == 0, -100)
    network = transformers.GPT2LMHeadModel(config).double()
    return tb.Model(network, tb.likelihoods.Categorical(ignore_index=-100), random=random), rows


def test_a_causal_language_model_is_scored_as_by_its_own_loss():
    model, rows = causal()
    point = tb.Point(model, model.given_weights().unsqueeze(0))
    network: Any = model.network.module
    with torch.no_grad():
        mean = network(**rows).loss
    counts = (rows["labels"][:, 1:] != -100).sum()
    assert_close(tb.evaluate(point, rows).metrics["nll"] * ROWS, mean * counts, rtol=1e-6)  # its loss is in float32
    loader = DataLoader([{k: v[n] for k, v in rows.items()} for n in range(ROWS)], batch_size=3)  # type: ignore[arg-type]
    assert_close(tb.evaluate(point, loader).metrics["nll"] * ROWS, mean * counts, rtol=1e-6)


def test_a_causal_language_model_is_fitted():
    """By steps on batches, as those of all descents and chains, and by a pass for the curvature."""
    model, rows = causal()
    few = {key: values[:2] for key, values in rows.items()}
    for name in ("map", "diagonal"):
        posterior = tb.fit(model, few, METHODS[name], start=start_of(model, name))
        assert 0 < tb.evaluate(posterior, few).metrics["nll"] < 6 * 2 * torch.tensor(float(WORDS)).log()
    head, _ = causal("transformer.ln_f.*")
    posterior = tb.fit(
        head, rows, tb.Laplace(structure="dense", check_mode=False, prior="model"), start=head.given_weights()
    )
    assert isinstance(posterior, tb.LaplacePosterior)
    inputs = {key: few[key] for key in ("input_ids", "attention_mask")}
    probs = tb.predict(tb.Linearised(posterior, "probit"), inputs).probs
    assert probs.shape == (2, rows["input_ids"].shape[1], WORDS)
    assert_close(probs.sum(-1), torch.ones(probs.shape[:-1]), rtol=1e-8)
