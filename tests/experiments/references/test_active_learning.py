"""Rows to label: a tiny recipe against a study by hand, and verdicts from made-up numbers."""

import numpy as np
import pytest
import torch

import torchbayes as tb
from torchbayes import acquisition
from torchbayes_experiments.references import active_learning as room
from torchbayes_experiments.references.active_learning import EXPERIMENT, WAYS, AcquisitionRecipe

TINY = AcquisitionRecipe(
    sets=("breast_cancer",), pool=40, first=8, acquire=3, rounds=1, hidden=(4,), members=3, epochs=40
)


@pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")
def test_a_tiny_recipe_is_a_study(tmp_path):
    actual = EXPERIMENT.run(TINY, 1, tmp_path)["breast_cancer"]
    pool, test = room.parts_of(TINY, "breast_cancer", 1)
    assert len(pool[0]) == 40
    assert len(test[0]) == round(0.3 * 569)
    assert float(torch.cat([pool[0], test[0]]).mean()) < 0.5
    model = tb.Model(tb.networks.mlp((30,), 2, hidden=(4,)), tb.likelihoods.Categorical(), tb.priors.Normal(1.0))
    assert model.layout.size == 30 * 4 + 4 + 4 * 2 + 2
    for way in WAYS:
        assert len(actual[way]["error"]) == len(actual[way]["nll"]) == 2
        assert actual[way]["error"][0] == actual["random"]["error"][0]
        assert 0 <= actual[way]["rarest"] <= 1
    assert EXPERIMENT.run(TINY, 1, tmp_path)["breast_cancer"] == actual  # read again
    assert acquisition.Sizes(8, 3, 1).rounds == TINY.rounds


def made_up(seed, **errors):
    noise = 0.001 * np.random.default_rng(seed).normal(size=3)
    return {
        "set": {
            way: {"error": (error + noise).tolist(), "nll": (error + noise).tolist(), "rarest": 0.5}
            for way, error in errors.items()
        }
    }


def test_verdicts():
    good = {"bald": 0.3, "batchbald": 0.2, "epig": 0.1, "margin": 0.4, "random": 0.5}
    findings = EXPERIMENT.summarise([made_up(seed, **good) for seed in range(3)])
    assert findings.verdict.outcome == "holds"
    assert len(findings.verdict.parts) == 3 + 2 + 3
    assert EXPERIMENT.summarise([made_up(0, **good)]).verdict.outcome == "inconclusive"
    worse = [made_up(seed, **{**good, "margin": 0.05 + 0.001 * seed}) for seed in range(3)]
    actual = EXPERIMENT.summarise(worse)
    assert [part.outcome for part in actual.verdict.parts] == ["holds"] * 5 + ["does not hold"] * 3
    assert len(findings.tables) == 3
    assert len(findings.figures) == 1
