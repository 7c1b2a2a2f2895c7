import pytest
import torch

from tests.metrics.helpers import random_classes, random_probs
from torchbayes.metrics import accuracy, confusion, selective_accuracy
from torchbayes.metrics.scoring import hits


def test_accuracy_of_what_is_kept_by_hand():
    correct_B = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0])
    uncertainty_B = torch.tensor([0.1, 0.9, 0.3, 0.2, 0.8])
    found = selective_accuracy(correct_B, uncertainty_B)
    torch.testing.assert_close(
        found.kept, torch.tensor([0.2, 0.4, 0.6, 0.8, 1.0], dtype=torch.float64), rtol=0, atol=1e-15
    )
    torch.testing.assert_close(
        found.accuracy, torch.tensor([1, 1, 1, 0.75, 0.6], dtype=torch.float64), rtol=0, atol=1e-15
    )


def test_rows_of_equal_uncertainty_are_referred_together():
    correct_B, uncertainty_B = torch.tensor([0.0, 1.0, 1.0, 0.0]), torch.tensor([0.5, 0.5, 0.1, 0.5])
    for order_B in (torch.arange(4), torch.tensor([2, 1, 0, 3])):
        found = selective_accuracy(correct_B[order_B], uncertainty_B[order_B])
        assert found.kept.tolist() == [0.25, 1.0]
        assert found.accuracy.tolist() == [1.0, 0.5]


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
    found = confusion(probs_BK, targets_B)
    assert found.tolist() == confusion_matrix(targets_B, probs_BK.argmax(-1), labels=range(5)).tolist()
    weights_B = torch.arange(300) % 3
    expected = confusion_matrix(targets_B, probs_BK.argmax(-1), labels=range(5), sample_weight=weights_B)
    assert confusion(probs_BK, targets_B, weights_B=weights_B).tolist() == expected.tolist()


def test_confusion_has_the_true_class_first():
    probs_BK = torch.tensor([[0.1, 0.2, 0.7], [0.6, 0.3, 0.1], [0.5, 0.5, 0.0]])
    assert confusion(probs_BK, torch.tensor([0, 0, 1])).tolist() == [[1, 0, 1], [1, 0, 0], [0, 0, 0]]


def test_correctness_is_a_share():
    with pytest.raises(ValueError, match=r"`correct_B` must lie in \[0, 1\]; got 0 to 2"):
        selective_accuracy(torch.tensor([0.0, 2.0]), torch.zeros(2))
