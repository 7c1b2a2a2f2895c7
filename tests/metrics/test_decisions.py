import pytest
import torch

from tests.metrics.helpers import random_classes, random_normal, random_probs
from torchbayes.metrics import accuracy, confusion, risk_coverage, selective_accuracy
from torchbayes.metrics.scoring import hits


def test_accuracy_of_what_is_kept_by_hand():
    correct_B = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0])
    uncertainty_B = torch.tensor([0.1, 0.9, 0.3, 0.2, 0.8])
    actual = selective_accuracy(correct_B, uncertainty_B)
    torch.testing.assert_close(
        actual.kept, torch.tensor([0.2, 0.4, 0.6, 0.8, 1.0], dtype=torch.float64), rtol=0, atol=1e-15
    )
    torch.testing.assert_close(
        actual.accuracy, torch.tensor([1, 1, 1, 0.75, 0.6], dtype=torch.float64), rtol=0, atol=1e-15
    )


def test_rows_of_equal_uncertainty_are_referred_together():
    correct_B, uncertainty_B = torch.tensor([0.0, 1.0, 1.0, 0.0]), torch.tensor([0.5, 0.5, 0.1, 0.5])
    for order_B in (torch.arange(4), torch.tensor([2, 1, 0, 3])):
        actual = selective_accuracy(correct_B[order_B], uncertainty_B[order_B])
        assert actual.kept.tolist() == [0.25, 1.0]
        assert actual.accuracy.tolist() == [1.0, 0.5]


def test_a_weight_counts_as_copies_of_a_row():
    probs_BK, targets_B = random_probs(40, 3), random_classes(40, 3)
    weights_B = torch.arange(40) % 4
    correct_B, uncertainty_B = hits(probs_BK, targets_B), -probs_BK.amax(-1).double()
    weighed = selective_accuracy(correct_B, uncertainty_B, weights_B=weights_B)
    copied = selective_accuracy(*(v.repeat_interleave(weights_B) for v in (correct_B, uncertainty_B)))
    torch.testing.assert_close(weighed.kept, copied.kept, rtol=1e-12, atol=0)
    torch.testing.assert_close(weighed.accuracy, copied.accuracy, rtol=1e-12, atol=0)
    torch.testing.assert_close(weighed.accuracy[-1], accuracy(probs_BK, targets_B, weights_B=weights_B))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_confusion_equals_scikit_learn(dtype: torch.dtype):
    from sklearn.metrics import confusion_matrix

    probs_BK, targets_B = random_probs(300, 5).to(dtype), random_classes(300, 5)
    actual = confusion(probs_BK, targets_B)
    assert actual.tolist() == confusion_matrix(targets_B, probs_BK.argmax(-1), labels=range(5)).tolist()
    weights_B = torch.arange(300) % 3
    expected = confusion_matrix(targets_B, probs_BK.argmax(-1), labels=range(5), sample_weight=weights_B)
    assert confusion(probs_BK, targets_B, weights_B=weights_B).tolist() == expected.tolist()


def test_confusion_has_the_true_class_first():
    probs_BK = torch.tensor([[0.1, 0.2, 0.7], [0.6, 0.3, 0.1], [0.5, 0.5, 0.0]])
    assert confusion(probs_BK, torch.tensor([0, 0, 1])).tolist() == [[1, 0, 1], [1, 0, 0], [0, 0, 0]]


def curve_by_definition(loss: list[float], doubt: list[float], weights: list[float]) -> tuple[list, list, float]:
    """Coverages, risks and area by sums over rows at every threshold."""
    coverage, risk, area, before = [], [], 0.0, 0.0
    for level in sorted({d for d, w in zip(doubt, weights, strict=True) if w > 0}):
        rows = [(v, w) for v, d, w in zip(loss, doubt, weights, strict=True) if d <= level]
        kept = sum(w for _, w in rows)
        coverage.append(kept / sum(weights))
        risk.append(sum(w * v for v, w in rows) / kept)
        area += (coverage[-1] - before) * risk[-1]
        before = coverage[-1]
    return coverage, risk, area


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("levels", [1, 7, 10_000])
def test_risk_and_coverage_are_those_of_their_definition(levels: int, weighted: bool):
    loss_B = random_normal(60).square()
    uncertainty_B = random_classes(60, levels).double()
    weights_B = random_classes(60, 3, seed=4).double() if weighted else None
    actual = risk_coverage(loss_B, uncertainty_B, weights_B=weights_B)
    given = [1.0] * 60 if weights_B is None else weights_B.tolist()
    coverage, risk, area = curve_by_definition(loss_B.tolist(), uncertainty_B.tolist(), given)
    assert actual.coverage.tolist() == pytest.approx(coverage, rel=1e-12)
    assert actual.risk.tolist() == pytest.approx(risk, rel=1e-12)
    assert actual.aurc.item() == pytest.approx(area, rel=1e-12)


def test_area_without_ties_is_the_mean_of_all_risks_and_with_nothing_but_ties_the_mean_loss():
    loss_B = (random_normal(50) > 0).double()
    actual = risk_coverage(loss_B, random_normal(50, seed=1))
    assert actual.aurc.item() == pytest.approx(actual.risk.mean().item(), rel=1e-12)
    assert risk_coverage(loss_B, torch.zeros(50)).aurc.item() == pytest.approx(loss_B.mean().item())
    assert risk_coverage(loss_B[:1], torch.zeros(1)).risk.tolist() == [loss_B[0].item()]


def test_risk_is_one_minus_selective_accuracy():
    correct_B, uncertainty_B = (random_normal(50) > 0).double(), random_classes(50, 9).double()
    kept, actual = selective_accuracy(correct_B, uncertainty_B), risk_coverage(1 - correct_B, uncertainty_B)
    torch.testing.assert_close(actual.coverage, kept.kept, rtol=0, atol=0)
    torch.testing.assert_close(actual.risk, 1 - kept.accuracy, rtol=1e-12, atol=1e-12)


def test_correctness_is_a_share():
    with pytest.raises(ValueError, match=r"`correct_B` must lie in \[0, 1\]; got 0 to 2"):
        selective_accuracy(torch.tensor([0.0, 2.0]), torch.zeros(2))
