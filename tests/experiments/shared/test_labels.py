"""Shuffled labels: classes keep their sizes, shares are nested, and every arrangement is as likely."""

import math
from collections import Counter

import numpy as np
import pytest
import torch

from torchbayes_experiments.shared.classifiers import shuffled


def test_shuffles_keep_classes_and_grow_with_the_share():
    labels = torch.arange(10).repeat_interleave(30)
    assert torch.equal(shuffled(labels, 0.0, seed=1), labels)
    before, taken = labels, 0
    for share in (0.1, 0.25, 0.5, 0.75, 1.0):
        actual = shuffled(labels, share, seed=1)
        assert Counter(actual.tolist()) == Counter(labels.tolist())
        more = round(share * 300)
        assert int((actual != labels).sum()) <= more
        # of rows that come in later, each changes itself and at most one more
        assert int((actual != before).sum()) <= 2 * (more - taken)
        before, taken = actual, more
    kept_labels = np.mean([float((shuffled(labels, 1.0, seed=s) == labels).double().mean()) for s in range(40)])
    assert kept_labels == pytest.approx(0.1, abs=0.01)  # expected share 0.1, its deviation about 0.003
    assert not torch.equal(shuffled(labels, 1.0, seed=1), shuffled(labels, 1.0, seed=2))
    with pytest.raises(ValueError, match=r"between 0 and 1; got 1\.5"):
        shuffled(labels, 1.5, seed=0)


def test_every_arrangement_is_as_likely():
    # three rows have six arrangements; a shuffle that is wrong favours some
    counts = Counter(tuple(shuffled(torch.arange(3), 1.0, seed=seed).tolist()) for seed in range(3000))
    assert len(counts) == 6
    assert max(abs(count - 500) for count in counts.values()) < 5 * math.sqrt(500 * 5 / 6)
