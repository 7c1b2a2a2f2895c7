"""The picture of six posteriors: what is the same in all panels, and what is known of each."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.report.helpers import drawn, line

from torchbayes.comparison.bands import NOTES, Budget, main, observations, picture
from torchbayes.report import figures

pytestmark = pytest.mark.filterwarnings("ignore::torchbayes.ProblemWarning")  # runs as short as these end nowhere
SHORT = Budget(descent=8, steps=6, members=4, draws=8)


def width_at_zero(band: Any) -> float:
    vertices = band.get_paths()[0].vertices
    nearest = np.abs(vertices[:, 0]).min()
    return float(np.ptp(vertices[np.abs(vertices[:, 0]) == nearest, 1]))


def test_there_are_no_observations_in_the_gap() -> None:
    inputs, targets = observations()
    assert inputs.shape == targets.shape == (40, 1)
    left, right = inputs[:20], inputs[20:]
    assert left.min() >= -2
    assert left.max() <= -0.7
    assert right.min() >= 0.6
    assert right.max() <= 2
    residual = targets - torch.sin(2 * inputs) - 0.3 * inputs
    assert 0.15 < residual.std() < 0.25


def test_panels_share_the_data_and_differ_in_their_bands() -> None:
    inputs, targets = observations()
    panels = drawn(picture(SHORT))
    assert [axes.get_title() for axes in panels] == list(NOTES)
    assert [text.get_text() for axes in panels for text in axes.texts] == list(NOTES.values())
    widths = {}
    for axes in panels:
        np.testing.assert_array_equal(line(axes, 1), [inputs[:, 0], targets[:, 0]])
        inner, outer = (width_at_zero(band) for band in axes.collections)
        assert inner < outer
        widths[axes.get_title()] = inner
    assert widths.pop("single network") == 0
    assert min(widths.values()) > 0
    np.testing.assert_allclose(line(panels[0], 0), line(panels[2], 0), atol=1e-5)  # Laplace is around that network


def test_the_program_leaves_one_file(tmp_path, monkeypatch, capsys) -> None:
    band = figures.Band([0.0, 1.0], [0.0, 1.0], [0.1, 0.1], [0.2, 0.2])
    monkeypatch.setattr("torchbayes.comparison.bands.picture", lambda: figures.predictive_band(band, [0.5], [0.5]))
    threads = torch.get_num_threads()
    main([str(tmp_path / "demo")])
    torch.set_num_threads(threads)
    assert (tmp_path / "demo" / "bands.png").read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out == f"Picture: {tmp_path / 'demo' / 'bands.png'}\n"
