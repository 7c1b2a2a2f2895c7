"""Fits of all methods on one adapter: what they share, what is saved, and their numbers against direct ones."""

from __future__ import annotations

import dataclasses
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

import torchbayes as tb
from tests.adapters.tiny import adapted
from tests.lora.made import MARKS, settings
from tests.oracles import assert_close
from torchbayes import lora
from torchbayes.adapters import LastToken
from torchbayes.lora.adapter import scales_of
from torchbayes.lora.learned import problems_of
from torchbayes.lora.scores import BASE, KEPT, source_of

pytestmark = MARKS


@pytest.fixture(scope="module")
def scores(every: lora.Run) -> dict[str, lora.Score]:
    return lora.score(every)


@pytest.mark.parametrize("method", [*lora.METHODS, BASE])
def test_numbers_are_those_of_the_average_by_hand(every: lora.Run, scores: dict[str, lora.Score], method: str):
    posterior = every.setup.without_adapter() if method == BASE else every.posteriors[method]
    source = source_of(posterior, 10)
    rows = every.setup.asked.encoding.inputs(every.setup.asked.questions.test)
    probs, labels = tb.predict(source, rows).probs.double(), every.setup.asked.test["labels"]
    known: Any = scores[method].evaluation.scores
    entropy, actual = known.entropy.double(), scores[method].metrics
    assert_close(entropy, torch.special.entr(probs).sum(-1), rtol=1e-4, atol=1e-5)
    right = (probs.argmax(-1) == labels).double()
    assert_close(actual["nll"], -probs[range(30), labels].log().mean(), rtol=1e-5)
    assert_close(actual["accuracy"], right.mean())
    assert_close(actual["brier"], (probs - torch.nn.functional.one_hot(labels, 3)).square().sum(-1).mean(), rtol=1e-5)
    surest = entropy.sort().values[math.ceil(KEPT * 30) - 1]
    assert_close(actual["selective_accuracy"], right[entropy <= surest].mean())
    others = tb.uncertainty(source, every.setup.asked.other).entropy
    assert_close(actual["auroc"], roc_auc_score([0] * 30 + [1] * 20, torch.cat([entropy, others.double()])), rtol=1e-6)
    low, high = scores[method].certainty.intervals["nll"]
    assert low <= actual["nll"] <= high


@pytest.mark.filterwarnings("always::torchbayes.ProblemWarning")
def test_warnings_name_the_method(every: lora.Run):
    doubted = {name: posterior.with_problems(["it is made up"]) for name, posterior in every.posteriors.items()}
    with pytest.warns(tb.ProblemWarning) as caught:
        lora.score(
            dataclasses.replace(every, posteriors={name: doubted[name] for name in ("laplace", "swag")}, start=None)
        )
    said = {str(each.message).partition(":")[0] for each in caught if "made up" in str(each.message)}
    assert said == {"Laplace", "SWAG"}


def test_few_questions_of_which_nothing_was_learned_are_said(every: lora.Run):
    """The adapter has learned the rule, and so nothing of answers that are shifted by one."""
    train = every.setup.asked.train
    shifted = {**train, "labels": (train["labels"] + 1) % 3}
    counts = shifted["labels"].bincount().double()
    entropy = -(counts * (counts / 48).log()).sum() / 48
    (said,) = problems_of(every.posteriors["map"], shifted, every.setup.settings)
    assert f"against {float(-entropy):.3g} nats a question" in said
    assert problems_of(every.posteriors["map"], train, every.setup.settings) == []


@pytest.mark.filterwarnings("always::torchbayes.ProblemWarning")
def test_what_is_said_of_a_fit_is_kept(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torchbayes.lora.run.problems_of", lambda *_: ["nothing was learned"])
    with pytest.warns(tb.ProblemWarning, match=r"^MAP: .*nothing was learned"):
        fitted = lora.fit(settings(folder, epochs=1), "map", directory=tmp_path / "run", callbacks=())
    assert fitted.posteriors["map"].problems == lora.load(tmp_path / "run").posteriors["map"].problems
    assert fitted.posteriors["map"].problems == ("nothing was learned",)


def test_few_questions_that_were_learned_raise_no_problem(every: lora.Run):
    for name in ("map", "ensemble", "swag"):
        assert not [said for said in every.posteriors[name].problems if "no more likely" in said]


def test_adapters_learn_the_rule(scores: dict[str, lora.Score]):
    assert scores[BASE].metrics["accuracy"] < 0.7
    for method in ("map", "ensemble", "laplace", "tfb", "swag"):
        assert scores[method].metrics["accuracy"] > 0.9, method


def test_bases_of_4_bits_give_posteriors_that_load_back(folder: Path, tmp_path: Path):
    pytest.importorskip("bitsandbytes")
    few = settings(folder, load_in_4bit=True, device="cpu", epochs=2)
    fitted = lora.fit(few, ["laplace", "tfb", "scalabl"], directory=tmp_path / "run", callbacks=())
    read, asked = lora.load(tmp_path / "run"), folder / "test.jsonl"
    for method in fitted.posteriors:
        before, after = (
            torch.tensor([p for each in lora.predict(run, asked, method=method) for p in each["probabilities"]])
            for run in (fitted, read)
        )
        assert_close(after, before, atol=1e-6)


def test_a_damaged_posterior_is_in_nobody_elses_way(every: lora.Run, tmp_path: Path):
    assert every.directory is not None
    home = shutil.copytree(every.directory, tmp_path / "run")
    (home / "map" / "posterior.safetensors").write_bytes(b"")
    (home / "map" / "adapter" / "adapter_model.safetensors").write_bytes(b"")
    for method in ("tfb", "scalabl"):
        asked = every.setup.asked.questions.test
        read = lora.load(home, method=method)
        assert lora.predict(read, asked) == lora.predict(every, asked, method=method)
    with pytest.raises(ValueError, match="damaged"):
        lora.load(home, method="map")
    with pytest.raises(ValueError, match=r"must say whose posterior: map, .*; got 'mapp'"):
        lora.load(home, method="mapp")


def test_laplace_and_tfb_are_around_the_trained_adapter(every: lora.Run):
    trained: Any = every.posteriors["map"]
    laplace, tfb = (every.posteriors[name] for name in ("laplace", "tfb"))
    assert_close(laplace.mean_MD, trained.weights_MD)  # type: ignore[attr-defined]
    rows, model = every.setup.asked.encoding.inputs(every.setup.asked.questions.test), every.setup.model("map")
    turned = tfb.mean_MD[0]  # type: ignore[attr-defined]  # another adapter of the same function
    assert_close(model.network(turned, rows), model.network(trained.weights_MD[0], rows), rtol=1e-4, atol=1e-5)


def test_a_run_is_read_as_it_was_written(every: lora.Run, folder: Path):
    loaded = lora.load(folder / "run")
    rows = every.setup.asked.encoding.inputs(every.setup.asked.questions.test)
    assert [*loaded.posteriors] == [*lora.METHODS]
    for name, posterior in every.posteriors.items():
        actual, expected = (tb.predict(each, rows).probs for each in (loaded.posteriors[name], posterior))
        assert_close(actual, expected, rtol=1e-5)  # rounding of the sums of a copy


@pytest.mark.parametrize("method", ["laplace", "scalabl", "sghmc"])
def test_other_programs_read_the_mean_as_an_adapter_of_peft(every: lora.Run, folder: Path, method: str):
    import peft
    import transformers

    base = transformers.AutoModelForCausalLM.from_pretrained(folder / "base")
    network = peft.PeftModel.from_pretrained(base, folder / "run" / method / "adapter").eval()
    rows = every.setup.asked.encoding.inputs(every.setup.asked.questions.test)
    posterior: Any = every.posteriors[method]
    weights_D = posterior.weights_MSD[0, -1] if method == "sghmc" else posterior.mean_MD[0]
    with torch.no_grad():
        actual = LastToken(network, every.setup.asked.encoding.answers)(**rows)
    assert_close(actual, every.setup.model(method).network(weights_D, rows), rtol=1e-5, atol=1e-6)
    assert not [*(folder / "run").rglob("*.bin")][1:]  # the draws of SGHMC alone, which are numbers


class Stop(Exception):
    """Ends a fit as a kill would."""


def test_an_interrupted_run_goes_on_as_if_it_had_not_been(folder: Path, tmp_path: Path):
    asked = settings(folder, epochs=3)
    whole = lora.fit(asked, ["map", "blob"], callbacks=())

    seen = list[int]()

    def stop(event: tb.Event) -> None:
        seen.append(event.epoch)
        if len(seen) == 5:  # in the second epoch of the second fit
            raise Stop

    with pytest.raises(Stop):
        lora.fit(asked, ["map", "blob"], directory=tmp_path, callbacks=[stop])
    resumed = lora.fit(asked, ["map", "blob"], directory=tmp_path, resume=True, callbacks=())
    for name in ("map", "blob"):
        first, second = (run.posteriors[name].sample(2, seed=1) for run in (whole, resumed))
        assert_close(first, second)


def test_a_trained_adapter_is_taken_as_it_is_or_refined(every: lora.Run, folder: Path):
    there = str(folder / "run" / "map" / "adapter")
    taken: Any = lora.fit(settings(folder, adapter=there), "map", callbacks=()).posteriors["map"]
    assert_close(taken.weights_MD, every.posteriors["map"].weights_MD)  # type: ignore[attr-defined]
    refined = settings(folder, adapter=there, refine=True, epochs=1, lr=1e-3)
    further: Any = lora.fit(refined, "map", callbacks=()).posteriors["map"]
    distance = float((further.weights_MD - taken.weights_MD).norm() / taken.weights_MD.norm())
    assert 0 < distance < 0.1


@pytest.mark.parametrize("head", [True, False])
def test_the_prior_moves_each_output_of_a_layer_as_far_as_it_is_asked_to(head: bool):
    network = adapted("llama", head=head, lora_alpha=6)
    reach, draws = 0.7, 20_000
    scales = scales_of(network, reach)
    assert len(scales) == (6 if head else 4)
    layer = network.base_model.model.model.layers[0].self_attn.v_proj
    first, second = (
        scales[f"base_model.model.model.layers.0.self_attn.v_proj.lora_{each}.default.weight"] for each in "AB"
    )
    noise = torch.Generator().manual_seed(0)
    a = first * torch.randn(draws, 2, 8, generator=noise, dtype=torch.float64)
    b = second * torch.randn(draws, 4, 2, generator=noise, dtype=torch.float64)
    moved = layer.scaling["default"] * (b @ a @ torch.ones(8, dtype=torch.float64))
    assert_close(moved.square().mean(), reach**2, rtol=5 * (2 / (4 * draws)) ** 0.5 * 2)


@pytest.mark.parametrize(
    ("rows", "batch", "expected"),
    [
        (1000, 4, (10, 2500, 1e-4 * 2**0.5)),
        (40_000, 8, (1, 5000, 1e-4)),
        (40, 4, (50, 500, 1e-4 * 10**0.5)),
        (8, 4, (250, 500, 1e-4 * 10**0.5)),
    ],
)
def test_how_long_and_how_fast(rows: int, batch: int, expected: tuple[int, int, float]):
    length = lora.Settings("base", "data", batch_size=batch).length(rows)
    assert (length.epochs, length.steps) == expected[:2]
    assert_close(length.lr, expected[2])


def test_questions_are_held_out_where_there_is_no_test(folder: Path):
    from torchbayes.lora.asked import read

    asked = settings(folder, test=None, held_out=0.25)
    first, again, other = (read(dataclasses.replace(asked, seed=seed)) for seed in (0, 0, 1))
    lines = [question.line for question in (*first.train, *first.test)]
    assert (len(first.test), sorted(lines)) == (12, [*range(1, 49)])  # type: ignore[type-var]
    assert first == again != other


def test_answers_to_questions(every: lora.Run, folder: Path):
    said = lora.predict(every, folder / "other.jsonl", method="swag")
    rows = every.setup.asked.encoding.inputs(every.setup.asked.questions.other)
    probs_SBK = every.posteriors["swag"].functions(10)(rows).double().softmax(-1)
    mean_BK: Tensor = probs_SBK.mean(0)
    for place, each in enumerate(said):
        kept = len(each["choices"])
        assert_close(torch.tensor(each["probabilities"]).double(), mean_BK[place, :kept], rtol=1e-5, atol=1e-6)
        assert each["answer"] == "ABC"[int(mean_BK[place].argmax())]
    inner = torch.special.entr(probs_SBK).sum(-1).mean(0)
    actual = torch.tensor([each["mutual_information"] for each in said]).double()
    assert_close(actual, torch.special.entr(mean_BK).sum(-1) - inner, rtol=1e-3, atol=2e-6)
