"""What the report of a comparison leads with: its numbers are those of the results, and of resamples made by hand."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from tests.comparison.references import DIGITS
from tests.pictures import unpainted

import torchbayes as tb
from torchbayes.assess.evaluation import drawn_rows
from torchbayes.catalogue.methods import label_of
from torchbayes.comparison.certainty import RESAMPLES, at_severity, resampled_means
from torchbayes.comparison.figures import glance, pictures
from torchbayes.data import corrupt_data
from torchbayes.randomness.seeds import Purpose, mix

# a few epochs do not train
pytestmark = pytest.mark.filterwarnings("ignore:.*than under a constant:torchbayes.ProblemWarning")


@pytest.fixture
def digits(digits_and_hmc):
    return digits_and_hmc


def resamples(rows, seed=0):
    """How often each row counts in each resample."""
    return torch.cat(list(drawn_rows(torch.ones(rows, dtype=torch.float64), RESAMPLES, seed))).numpy()


def ends(values):
    ordered = np.sort(values)
    return [ordered[round(share * (len(ordered) - 1))] for share in (0.025, 0.975)]


def probs_of(outcome, inputs):
    return outcome.functions(inputs).double().softmax(-1).mean(0).numpy()


def test_the_glance_shows_the_numbers_of_the_results(digits):
    home, actual = digits
    held = json.loads((home / "results.json").read_text())["methods"]
    panels = {panel.title: panel for panel in glance({label_of(n): o for n, o in actual.outcomes.items()}, "HMC")}
    assert list(panels) == ["test set", "calibration", "corrupted images", "foreign images", "closeness"]
    for name, own in held.items():
        label, intervals = label_of(name), own["intervals"]
        expected = {
            "test set": (own["clean"]["nll"], *intervals["nll"]),
            "calibration": (own["clean"]["ece"], *intervals["ece"]),
            "corrupted images": (own["severity"]["5"]["nll"], *intervals["nll_severity_5"]),
            "foreign images": (own["auroc"], *intervals["auroc"]),
        }
        if name != "hmc":
            expected["closeness"] = (own["fidelity"]["total_variation"], *intervals["total_variation"])
        assert {title: panel.values[label] for title, panel in panels.items() if label in panel.values} == expected
        assert all(low <= value <= high for title, (value, low, high) in expected.items() if title != "calibration")
    assert panels["closeness"].floors == [c["total_variation"] for c in held["hmc"]["fidelity"]["halves"]]
    best = min(held, key=lambda name: held[name]["severity"]["5"]["nll"])
    assert label_of(best) in panels["corrupted images"].best
    apart = held["ensemble"]["from_best"]["nll_severity_5"]
    assert apart["value"] == held["ensemble"]["severity"]["5"]["nll"] - held[best]["severity"]["5"]["nll"]


def test_intervals_under_corruption_are_those_of_rows_and_not_of_images(digits):
    _, actual = digits
    outcome, intervals = actual.outcomes["ensemble"], actual.outcomes["ensemble"].certainty.intervals
    terms: dict[str, list] = {"nll": [], "accuracy": [], "overconfidence": [], "total_variation": []}
    for name in DIGITS.corruptions:
        inputs, targets = corrupt_data(actual.setup.data, name, 3, seed=0, limit=50)
        probs, reference = (probs_of(actual.outcomes[method], inputs) for method in ("ensemble", "hmc"))
        right = probs.argmax(1) == targets.numpy()
        terms["nll"].append(-np.log(probs[np.arange(50), targets]))
        terms["accuracy"].append(right)
        terms["overconfidence"].append(probs.max(1) - right)
        terms["total_variation"].append(np.abs(probs - reference).sum(1) / 2)
    counts = resamples(50)
    for metric, rows in terms.items():
        each = counts @ np.mean(rows, axis=0) / counts.sum(1)
        assert list(intervals[at_severity(metric, 3)]) == pytest.approx(ends(each), rel=1e-4, abs=1e-6)
    assert outcome.at(3, "overconfidence") == pytest.approx(np.mean(terms["overconfidence"]), abs=1e-6)
    clean = outcome.clean.scores.confidence[:50].double().mean() - outcome.unshifted["accuracy"]
    assert outcome.unshifted["overconfidence"] == pytest.approx(float(clean))


def test_the_interval_of_detection_is_that_of_both_sides(digits):
    _, actual = digits
    outcome = actual.outcomes["ensemble"]
    inside, areas = outcome.clean.scores.entropy, []
    seed = mix(Purpose.RESAMPLES, 0) % 2**32
    counts, scored = resamples(len(inside)), list(outcome.foreign.values())
    outside = [resamples(len(scores.entropy), seed + place) for place, scores in enumerate(scored)]
    for r in range(0, RESAMPLES, 100):
        each = []
        for scores, weights in zip(scored, outside, strict=True):
            labels = np.r_[np.zeros(len(inside)), np.ones(len(scores.entropy))]
            both = torch.cat([inside, scores.entropy]).double().numpy()
            each.append(roc_auc_score(labels, both, sample_weight=np.r_[counts[r], weights[r]]))
        areas.append(np.mean(each))
    low, high = outcome.certainty.intervals["auroc"]
    assert np.mean((low <= np.array(areas)) & (np.array(areas) <= high)) >= 0.7
    assert low <= outcome.auroc() <= high


def test_every_picture_has_a_caption_and_a_text_of_its_own(digits, monkeypatch):
    unpainted(monkeypatch)
    _, actual = digits
    drawn = pictures(actual.setup, DIGITS, actual.outcomes)
    assert next(iter(drawn)) == "glance"
    page = actual.report.read_text()
    for picture in drawn.values():
        assert len(picture.caption) > 60
        assert picture.alt not in {"", picture.title, picture.caption}
    heads = re.findall(r"<h2>([^<]*)<", page)
    texts = re.findall(r'<img alt="([^"]*)"', page)
    assert len(texts) == len(set(texts)) == page.count("<figcaption>") == len(drawn) + 1  # R-hat of the reference
    assert not set(heads) & set(texts)
    assert "digits" in drawn["reliability"].caption
    assert "entropy of the average of HMC" in drawn["uncertain_images"].caption


def test_the_page_leads_with_the_glance_and_folds_its_tables(digits):
    _, actual = digits
    page = actual.report.read_text()
    assert re.findall(r"<h2>([^<]*)<", page)[0] == "Scores on the test set"
    assert re.findall(r"<h2>([^<]*)<", page)[1] == "All methods at one glance"
    assert "<details open" not in page
    assert page.count("<details>") == page.count("<table>") + 1  # how it was made, settings; scores are open
    assert page.count("<table>") + page.count("<img") == page.count('role="region"')  # each scrolls by itself
    assert page.count("<script>") == 1
    assert not re.search(r"https?:|src=\"(?!data:)|<link", page)
    assert set(re.findall(r'data-method="([^"]*)"', page)) == {"deep ensemble", "SGHMC", "HMC", "constant"}
    # agreement is a share: per cent in tables, pictures and their texts
    assert re.search(r"agreement with HMC: best [\w ]+ \(\d+\.\d %\)", page)
    assert not re.search(r"agreement with HMC: best [\w ]+ \(0\.", page)


def test_a_regression_has_its_own_questions(sine_and_hmc):
    home, actual = sine_and_hmc
    panels = glance({label_of(n): o for n, o in actual.outcomes.items()}, "HMC")
    assert [panel.measure for panel in panels] == ["NLL (nats)", "RMSE (units of the target)", "W1 to HMC"]
    assert panels[1].numbers["deep ensemble"] == actual.outcomes["ensemble"].clean.metrics["rmse"]
    assert len(panels[2].floors) == 3
    outcome = actual.outcomes["ensemble"]
    rows = outcome.fidelity.terms["wasserstein1"].numpy()
    counts = resamples(len(rows))
    value, *interval = panels[2].values["deep ensemble"]
    assert value == outcome.fidelity.clean["wasserstein1"] == pytest.approx(rows.mean())
    assert interval == pytest.approx(ends(counts @ rows / counts.sum(1)), rel=1e-9)
    assert actual.report.read_text().count("<figcaption>") == len(list(home.glob("*.png")))


def test_one_row_says_nothing_of_others():
    assert resampled_means({"nll": torch.ones(1)}, seed=0) == {}
    assert resampled_means({}, seed=0) == {}
    one = resampled_means({"nll": torch.tensor([1.0, 3.0])}, seed=0)["nll"]
    assert one.shape == (RESAMPLES,)
    assert float(one.mean()) == pytest.approx(2.0, abs=0.1)
    assert isinstance(tb.__version__, str)
