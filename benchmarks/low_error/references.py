"""E[x²] and E[x⁴] of the targets that have no closed form: by quadrature, or by long runs.

    python -m benchmarks.low_error.references [TARGET ...]     makes references.json anew

| target        | from                                                                                              |
|---------------|---------------------------------------------------------------------------------------------------|
| brownian      | quadrature over the two scales, given which the path is normal                                    |
| credit, items | a long run of the NUTS of blackjax; one of ours must agree, or it is not written                  |

Errors are what a spacing a quarter wider changes, or standard errors from the means of independent chains.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

import torchbayes as tb
from benchmarks.low_error.crossing import REFERENCES, Run
from benchmarks.low_error.runs import blackjax, ours
from benchmarks.low_error.targets import TARGETS, softplus
from benchmarks.peers.client import ROOT
from benchmarks.statistical.quadrature import lattice
from benchmarks.statistical.references import Means, compared

AGREED = 5.0  # standard errors by which two long runs may differ in the worst of their means
# gradients of a chain of blackjax and of ours, after tuning
LENGTHS = {"credit": (150_000, 20_000), "items": (40_000, 5_000)}


def brownian(spacing: float = 0.25) -> Means:
    """Return the means by quadrature."""
    return compared(*(_brownian(own) for own in (spacing, 1.25 * spacing)))


def given_scales(scales_P2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what is normal in `brownian` given its scales, both positive, (..., 2).

    Returns:
        The log density of the observations (...), and mean and variances of the path (..., 30).
    """
    data = {name: torch.from_numpy(values) for name, values in TARGETS["brownian"].posterior.data.items()}
    move, noise = scales_P2[..., 0, None], scales_P2[..., 1, None]
    count = len(data["seen"])
    steps_TT = 2 * torch.eye(count, dtype=torch.float64) - torch.diag(torch.ones(count - 1), 1).double()
    steps_TT = steps_TT - torch.diag(torch.ones(count - 1), -1).double()
    steps_TT[-1, -1] = 1.0
    precision_TT = steps_TT / move[..., None] ** 2 + torch.diag_embed(data["seen"] / noise**2)
    factor_TT = torch.linalg.cholesky(precision_TT)
    slope_T = data["seen"] * data["observed"] / noise**2
    mean_T = torch.cholesky_solve(slope_T.unsqueeze(-1), factor_TT).squeeze(-1)
    seen = float(data["seen"].sum())
    log_mass = 0.5 * (slope_T * mean_T).sum(-1) - factor_TT.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    log_mass = log_mass - 0.5 * (slope_T * data["observed"]).sum(-1)
    log_mass = log_mass - count * move.squeeze(-1).log() - seen * noise.squeeze(-1).log()
    return log_mass, mean_T, torch.cholesky_inverse(factor_TT).diagonal(dim1=-2, dim2=-1)


def _brownian(spacing: float) -> Tensor:
    """Return means of x² and x⁴ on a lattice of the two parameters of the scales."""

    def log_density(free_P2: Tensor) -> Tensor:
        scales_P2 = softplus(torch, free_P2)
        prior = -0.125 * scales_P2.log().square() - scales_P2.log() - softplus(torch, -free_P2)
        return given_scales(scales_P2)[0] + prior.sum(-1)

    points = lattice(log_density, 2, spacing)
    scales_P2, share_P = softplus(torch, points.values_PW), points.log_P.softmax(0)
    _, mean_PT, variance_PT = vmap(given_scales, chunk_size=256)(scales_P2)
    squares_PD = torch.cat([scales_P2.square(), mean_PT.square() + variance_PT], 1)
    fourth_PT = mean_PT**4 + 6 * mean_PT.square() * variance_PT + 3 * variance_PT.square()
    return share_P @ torch.cat([squares_PD, scales_P2**4, fourth_PT], 1)


def by_runs(name: str, *, where: Path) -> Means:
    """Return the means over the chains of a long run.

    Raises:
        ValueError: if a run of ours does not agree.
    """
    long, short = LENGTHS[name]
    peer = estimated(blackjax(name, "nuts", chains=32, where=where, seed=100, length=long))
    own = estimated(ours(name, tb.NUTS(16), seed=101, length=short))
    worst = float(((own.mean_F - peer.mean_F) / (own.error_F**2 + peer.error_F**2).sqrt()).abs().max())
    if worst > AGREED:
        raise ValueError(f"two long runs of {name} differ by {worst:.1f} standard errors.")
    print(f"{name}: our run differs by at most {worst:.1f} standard errors")
    return peer


def estimated(run: Run) -> Means:
    """Return the means over the chains of a run, and their standard errors."""
    means_MF = torch.from_numpy(np.asarray(run.means_MF))
    return Means(means_MF.mean(0), means_MF.std(0) / len(means_MF) ** 0.5)


def main() -> None:
    """Make the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="TARGET", default=["brownian", *LENGTHS])
    parser.add_argument("--where", type=Path, default=ROOT / ".peers", help="where setup.sh made the environments")
    options = parser.parse_args()
    for name in options.names:
        means = (brownian if name == "brownian" else partial(by_runs, name, where=options.where))()
        found = json.loads(REFERENCES.read_text()) if REFERENCES.exists() else {}
        found[name] = {
            "mean": [float(f"{value:.8g}") for value in means.mean_F],
            "error": [float(f"{value:.3g}") for value in means.error_F],
        }
        REFERENCES.write_text(json.dumps(found).replace("}, ", "},\n").replace("], ", "],\n ") + "\n")


if __name__ == "__main__":
    main()
