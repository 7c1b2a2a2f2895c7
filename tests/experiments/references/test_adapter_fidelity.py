"""Fidelity of adapters: the part above the first adapter against the whole model, a tiny run, and every verdict."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest
import torch

import torchbayes as tb
from tests.experiments.shared.pages import page_of
from torchbayes_experiments.references import adapter_fidelity as room
from torchbayes_experiments.references.adapter_fidelity import EXPERIMENT, report, task
from torchbayes_experiments.references.adapter_fidelity import run as running
from torchbayes_experiments.references.adapter_fidelity.run import AdapterFidelityRecipe, Methods
from torchbayes_experiments.references.adapter_fidelity.task import MESSAGES, MIXED, REVIEWS, Adapter, Questions
from torchbayes_experiments.shared.language import Base, Texts

pytest.importorskip("transformers")
pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # these fits are of a few steps
_SHORT: dict[str, Any] = {"epochs": 2, "batch_size": 16}
TINY = AdapterFidelityRecipe(
    Base(words=90, width=16, layers=2, inner=16, heads=4, block=16, steps=3, batch_size=4),
    Questions(train=12, test=10, reviews=10, words=6),
    Adapter(rank=2),
    tb.HMC(chains=2, steps=10, burn_in=4, max_leapfrogs=3),
    Methods(
        ensemble=tb.MAP(members=2, **_SHORT),
        likelihood=tb.MAP(**_SHORT),
        laplace=tb.Laplace(prior="model", check_mode=False),
        tfb=tb.TFB(passes=3, draws=2),
        blob=tb.BLoB(**_SHORT),
        scalabl=tb.BLoB(**_SHORT),
        ivon=tb.IVON(**_SHORT),
        swag=tb.SWAG(**_SHORT, averaging_lr=0.01, rank=2),
        dropout=tb.MCDropout(**_SHORT),
        mean_field=tb.VI(**_SHORT, kl_weight=1.0),
        sghmc=tb.SGHMC(chains=2, steps=12, burn_in=4, thin=2, step_size=1e-6, batch_size=16),
    ),
    draws=4,
)


def made_up_texts() -> Texts:
    """Messages of two lengths, of which a word tells whether they are spam, and reviews of other words."""
    begins = ("call the office of number", "call number")
    messages = [f"{begins[n % 3 == 0]} {n} for {('work', 'prizes')[n % 2]}" for n in range(80)]
    verdicts = ["is this an advert no", "is this an advert yes"] * 80  # so that both answers are tokens
    reviews = [*verdicts, *["a long and winding plot it has indeed", "so dull"] * 8]
    return Texts(reviews, [*messages, *messages, "too short"], [n % 2 == 1 for n in range(80)] * 2 + [False])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    directory = tmp_path_factory.mktemp("fidelity") / "seed_1"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running.language, "read_texts", made_up_texts)
        return directory, EXPERIMENT.run(TINY, 1, directory)


@pytest.fixture(scope="module")
def base(tiny):
    network, tokenizer = running.language.pretrained(TINY.base, made_up_texts(), tiny[0].parent / "base")
    asked = task.questions_of(made_up_texts(), TINY.questions, 1)
    return network, tokenizer, {name: task.prompts(some, tokenizer, "cpu") for name, some in asked.items()}


@pytest.mark.parametrize("scaled", [False, True])
def test_the_last_block_is_that_of_the_whole_model(base, scaled):
    """Prompts have different lengths; logits and gradients of the adapters are those of the model of Hugging Face."""
    network, tokenizer, rows = base
    whole = task.adapted(copy.deepcopy(network).double(), tokenizer, TINY.adapter, scaled=scaled)
    weights = {name: weight for name, weight in whole.named_parameters() if weight.requires_grad}
    with torch.no_grad():
        for weight in weights.values():
            weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel())))
    for test in (MESSAGES, REVIEWS):
        assert not rows[test]["attention_mask"].all()
        inputs = {name: some for name, some in task.below(whole, rows[test]).items() if name != "labels"}
        expected = whole(rows[test]["input_ids"], rows[test]["attention_mask"])
        actual = task.LastBlock(whole)(**inputs)
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)  # Llama's norms are in single precision
        gradients = [torch.autograd.grad(part[:, 0].square().sum(), [*weights.values()]) for part in (actual, expected)]
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_questions_are_drawn_by_the_seed_and_tests_are_not():
    texts, asked = made_up_texts(), TINY.questions
    first, second = (task.questions_of(texts, asked, seed) for seed in (0, 1))
    assert first["train"] != second["train"]
    spam = {text: kind for text, kind in zip(texts.messages, texts.spam, strict=True)}
    for name, size in (("train", 24), (MESSAGES, 20)):
        assert [question.answer for question in first[name]] == [0] * (size // 2) + [1] * (size // 2)
        assert len({question.text for question in first[name]}) == size
        matching = [[kind for text, kind in spam.items() if text.endswith(q.text)] for q in first[name]]
        assert matching == [[bool(question.answer)] for question in first[name]]
    tested = {question.text for question in first[MESSAGES]}
    assert tested.isdisjoint(question.text for question in first["train"])
    for name in (MESSAGES, MIXED, REVIEWS):
        assert first[name] == second[name]
    pairs = [*zip(first[MESSAGES], first[MIXED], strict=True)]
    assert all(a.answer == b.answer for a, b in pairs)
    changed = np.mean([x != y for a, b in pairs for x, y in zip(a.text.split(), b.text.split(), strict=True)])
    assert 0.3 < changed < 0.7
    assert all(question.answer is None and len(question.text.split()) in {2, 6} for question in first[REVIEWS])


def test_scores_are_those_of_the_whole_model(tiny, base):
    directory, actual = tiny
    network, tokenizer, rows = base
    whole = task.adapted(network, tokenizer, TINY.adapter)
    model = tb.Model(whole, tb.likelihoods.Categorical(), tb.priors.Normal(0.3), random="*lora*")
    part = tb.Model(task.LastBlock(whole), tb.likelihoods.Categorical(), tb.priors.Normal(0.3), random="*lora*")
    assert [*part.layout.shapes.values()] == [*model.layout.shapes.values()]
    posteriors: Any = [tb.load(directory / name / "posterior.safetensors", part) for name in ("hmc", "ensemble")]
    hmc, ensemble = posteriors
    inputs = {name: rows[MESSAGES][name] for name in ("input_ids", "attention_mask")}
    labels = rows[MESSAGES]["labels"]
    reference = tb.predict(tb.Draws(model, hmc.weights_MSD), inputs).probs.double()
    for name, count in (("MAP", 1), ("ensemble", 2)):
        average = tb.predict(tb.Point(model, ensemble.weights_MD[:count]), inputs)
        scores = actual["tests"][MESSAGES][name]
        assert scores["nll"] == pytest.approx(float(-average.log_prob(labels).double().mean()), rel=1e-4)
        apart = (average.probs.double() - reference)[:, 0].abs()
        assert scores["total_variation"] == pytest.approx(float(apart.mean()), rel=1e-3)
        assert scores["tv95"] == pytest.approx(float(apart.quantile(0.95)), rel=1e-3)
    chains = [tb.predict(tb.Draws(model, hmc.weights_MSD[m : m + 1]), inputs).probs.double() for m in range(2)]
    between = (chains[0] - chains[1])[:, 0].abs().mean()
    assert actual["tests"][MESSAGES]["HMC, one chain"]["total_variation"] == pytest.approx(float(between), rel=1e-3)
    untouched = tb.predict(tb.Point(model, model.given_weights()[None]), inputs).log_prob(labels).double()
    assert actual["tests"][MESSAGES]["zero-shot"]["nll"] == pytest.approx(float(-untouched.mean()), rel=1e-4)


def test_a_second_call_reads_what_is_there(tiny, monkeypatch):
    monkeypatch.setattr(running.language, "read_texts", made_up_texts)
    monkeypatch.setattr(running.tb, "fit", lambda *_, **__: pytest.fail("it was fitted again"))
    assert room.EXPERIMENT.run(TINY, 1, tiny[0]) == tiny[1]


# --- verdicts


GOOD = {  # total variation from HMC, NLL and ECE
    "HMC": (0.0, 0.60, 0.02),
    "HMC, one chain": (0.01, 0.60, 0.02),
    "zero-shot": (0.2, 0.75, 0.2),
    "constant": (0.2, 0.70, 0.02),
    "MLE": (0.15, 0.9, 0.2),
    "MAP": (0.1, 0.65, 0.1),
    "ensemble": (0.05, 0.62, 0.05),
    "Laplace, linearised": (0.06, 0.62, 0.05),
    "TFB": (0.07, 0.62, 0.05),
    "BLoB": (0.07, 0.62, 0.05),
    "ScalaBL": (0.09, 0.63, 0.06),
    "mean field": (0.08, 0.64, 0.05),
}


def made_up(rhat=1.01, **changed):
    numbers = GOOD | {name.replace("_", " "): value for name, value in changed.items()}
    near = {
        name: {"total_variation": tv, "tv95": 2 * tv, "agreement": 1 - tv, "ranks": 0.5}
        for name, (tv, *_) in numbers.items()
    }
    quality = {name: {"accuracy": 0.7, "nll": nll, "ece": ece, "brier": 0.4} for name, (_, nll, ece) in numbers.items()}
    known = {name: near[name] | quality[name] for name in numbers}
    summary = {"median": 1.0, "high": rhat, "maximum": 1.1, "ess": 90.0}
    chains = {"chains": 4, "draws": 200, "acceptance": 0.8, "leapfrogs": 9.0, "divergences": 0, "ebfmi": 0.9}
    return {
        "base": {"network": 200.0, "bigram": 250.0, "unigram": 500.0, "weights": 1.2e6, "tokens": 2e6},
        "chains": chains | {"functions": summary, "weights": summary},
        "tests": {MESSAGES: known, MIXED: known, REVIEWS: {name: near[name] | {"auroc": 0.6} for name in near}},
    }


def jitter(results):
    """Repeats with a little noise, so that no spread is zero."""
    rng, results = np.random.default_rng(0), copy.deepcopy(results)
    for result in results:
        result["chains"]["functions"]["high"] += rng.normal(0, 1e-4)
        for scores in result["tests"].values():
            for metrics in scores.values():
                metrics.update({key: value + rng.normal(0, 1e-4) for key, value in metrics.items()})
    return results


@pytest.mark.parametrize(
    ("results", "outcome", "open_parts"),
    [
        ([made_up()] * 3, "holds", 0),
        ([made_up(ensemble=(0.12, 0.62, 0.05))] * 3, "does not hold", 2),  # further than MAP and than mean field
        ([made_up(mean_field=(0.04, 0.64, 0.05))] * 3, "does not hold", 1),
        ([made_up(TFB=(0.11, 0.62, 0.05))] * 3, "does not hold", 1),
        ([made_up(BLoB=(0.07, 0.95, 0.3))] * 3, "does not hold", 2),
        ([made_up(ScalaBL=(0.09, 0.63, 0.3))] * 3, "does not hold", 1),
        ([made_up(HMC=(0.0, 0.66, 0.02))] * 3, "does not hold", 2),  # MAP has a lower NLL on both tests
        (
            [made_up(HMC=(0.0, 0.72, 0.02))] * 3,
            "inconclusive",
            3,
        ),  # the adapter knows less than how often each is right
        ([made_up(rhat=1.2)] * 3, "inconclusive", 1),
        ([made_up()], "inconclusive", 19),
    ],
)
def test_every_verdict_is_reached(results, outcome, open_parts):
    actual = report.summarise(jitter(results))
    assert actual.verdict.outcome == outcome
    assert sum(part.outcome != "holds" for part in actual.verdict.parts) == open_parts


def test_the_tables_hold_the_means():
    known, _, reviews, chains, base = report.summarise([made_up(), made_up(TFB=(0.11, 0.64, 0.05))]).tables
    assert "| TFB | 0.700 ± 0.000 | 0.630 ± 0.010 | 0.050 ± 0.000 |" in known.markdown()
    assert "| 0.600 ± 0.000 |" in reviews.markdown()
    assert "| messages | 4 × 200 | 9 ± 0 | 0.80 ± 0.00 | 0 |" in chains.markdown()
    assert "| 200" in base.markdown()


def test_end_to_end(tiny, tmp_path):
    page = page_of(EXPERIMENT, TINY, tmp_path, tiny[1])
    assert "Izmailov et al. 2021" in page
    assert (tmp_path / "figure_2.png").exists()
    recorded = json.loads((tmp_path / "recipe.json").read_text("utf-8"))["recipe"]
    assert recorded["hmc"]["steps"] == 10
    assert recorded["questions"]["train"] == 12
