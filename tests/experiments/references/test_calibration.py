"""Averaging after calibration: scores recomputed on a tiny recipe, and every verdict from made-up numbers."""

import numpy as np
import pytest
import torch

import torchbayes as tb
from tests.experiments.shared.pages import page_of
from torchbayes_experiments.references import calibration as room
from torchbayes_experiments.references.calibration import CALIBRATORS, EXPERIMENT, METHODS, CalibrationRecipe

pytestmark = pytest.mark.filterwarnings("ignore:.* should not be trusted")  # of few epochs
TINY = CalibrationRecipe(sets=("wine",), hidden=(4,), members=2, epochs=3, draws=4)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return EXPERIMENT.run(TINY, 1, tmp_path_factory.mktemp("calibration"))


def test_rows_are_apart_and_standardised_by_the_fitted_ones():
    parts = room.parts_of(CalibrationRecipe(), "breast_cancer", 3)
    assert [len(classes) for _, classes in parts] == [341, 114, 114]
    together = torch.cat([inputs for inputs, _ in parts])
    assert len(together.unique(dim=0)) == 569
    torch.testing.assert_close(parts[0][0].mean(0), torch.zeros(30), atol=1e-5, rtol=0)
    torch.testing.assert_close(parts[0][0].std(0), torch.ones(30))
    other = room.parts_of(CalibrationRecipe(), "breast_cancer", 4)
    assert not torch.equal(parts[0][1], other[0][1])


def test_scores_by_direct_computation(tiny):
    """Of the ensemble and of its members, uncalibrated, and by a temperature fitted on held-out rows."""
    actual = tiny["wine"]
    assert actual.keys() == set(METHODS)
    assert all(each.keys() == set(CALIBRATORS) for each in actual.values())
    fitted, held_out, tested = room.parts_of(TINY, "wine", 1)
    model = room.classifier("mlp", (13,), 3, prior=tb.priors.Normal(1.0), hidden=(4,))
    posterior = tb.fit(model, fitted, tb.MAP(2, 3, 64), seed=1, callbacks=())

    def nll(probs: torch.Tensor) -> float:
        return -float(probs.double().gather(1, tested[1][:, None]).log().mean())

    alone = [tb.Point(model, w[None]) for w in posterior.weights_MD]
    probs = torch.stack([tb.predict(p, tested[0]).probs for p in alone])
    assert actual["ensemble"]["none"]["nll"] == pytest.approx(nll(probs.mean(0)), rel=1e-5)
    assert actual["network"]["none"]["nll"] == pytest.approx(np.mean([nll(p) for p in probs]), rel=1e-5)
    assert actual["ensemble of calibrated"]["none"]["nll"] == pytest.approx(nll(probs.mean(0)), rel=1e-5)
    scaled = [tb.TemperatureScaling.fit(tb.predict(p, held_out[0]), held_out[1]) for p in alone]
    after = torch.stack([s(tb.predict(p, tested[0])).probs for s, p in zip(scaled, alone, strict=True)])
    assert actual["network"]["ts"]["nll"] == pytest.approx(np.mean([nll(p) for p in after]), rel=1e-4)
    assert actual["ensemble of calibrated"]["ts"]["nll"] == pytest.approx(nll(after.mean(0)), rel=1e-4)


def made_up(seed: int, gain: float, calibrated: float):
    """Scores in which averages are better by `gain`, and by `calibrated` after calibration, with noise of .01."""
    rng = np.random.default_rng(seed)
    less = {method: float(method in {"ensemble", "MultiSWAG"}) for method in METHODS}
    return {
        "digits": {
            method: {
                c: {
                    "nll": 1.0 - less[method] * (gain if c == "none" else calibrated) + 0.01 * rng.normal(),
                    "accuracy": 0.9,
                    "ece": 0.05,
                }
                for c in CALIBRATORS
            }
            for method in METHODS
        }
    }


@pytest.mark.parametrize(
    ("gain", "calibrated", "outcome", "count"),
    [
        (0.2, 0.1, "holds", 9),
        (0.2, -0.1, "does not hold", 2),
        (0.2, 0.0, "inconclusive", 2),
        (-0.2, 0.1, "does not hold", 7),
    ],
)
def test_every_verdict_is_reached(gain, calibrated, outcome, count):
    verdict = room.summarise([made_up(seed, gain, calibrated) for seed in range(5)]).verdict
    assert verdict.outcome == outcome
    assert sum(part.outcome == "holds" for part in verdict.parts) == count


def test_end_to_end(tiny, tmp_path):
    page = page_of(EXPERIMENT, TINY, tmp_path, tiny, tiny)
    assert "wine, calibrated by auto: NLL of ensemble below that of network" in page
    assert "| ensemble of calibrated |" in page
