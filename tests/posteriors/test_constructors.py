"""What posteriors are made of: real numbers in floating point, and of members finite ones."""

import dataclasses
import math

import pytest
import torch

import torchbayes as tb
from tests.laws.cases import POSTERIORS, model_of
from torchbayes.diagnostics import to_arviz
from torchbayes.posteriors.problems import ProblemWarning


@pytest.mark.parametrize("kind", [kind for kind in POSTERIORS if not kind.startswith("laplace")])
def test_weights_are_finite_real_numbers(kind):
    posterior = POSTERIORS[kind](model_of(), 2)
    for name in ("weights_MD", "mean_MD", "scale_MD", "points_MPD", "vertices_MPD", "weights_MSD"):
        whole = getattr(posterior, name, None)
        if not isinstance(whole, torch.Tensor) or name not in {f.name for f in dataclasses.fields(posterior)}:
            continue
        for wrong in (whole + 0j, whole.long()):
            with pytest.raises(TypeError, match=rf"`{name}` must be real numbers in floating point; got torch\.\w+"):
                dataclasses.replace(posterior, **{name: wrong})
        for value in (-math.inf, math.inf, math.nan):
            wrong = whole.clone()
            wrong.view(-1)[-1] = value
            if name == "weights_MSD":  # of a chain that went astray
                with pytest.warns(ProblemWarning, match="weights that were drawn are not finite"):
                    dataclasses.replace(posterior, weights_MSD=wrong).functions()
                continue
            with pytest.raises(ValueError, match=rf"`{name}` must be finite; 1 of its"):
                dataclasses.replace(posterior, **{name: wrong})


def test_arviz_takes_the_chains_of_a_posterior_and_says_what_else_it_takes():
    pytest.importorskip("arviz")
    weights_MSD = torch.randn(2, 30, model_of().layout.size, dtype=torch.float64)
    actual = to_arviz(tb.Draws(model_of(), weights_MSD))
    assert (actual.posterior["weights"].to_numpy() == weights_MSD.numpy()).all()
    with pytest.raises(TypeError, match=r"got an object of type Point\. .* draw them: posterior\.sample"):
        to_arviz(POSTERIORS["point"](model_of(), 2))  # pyright: ignore[reportArgumentType]
