"""E[x²] and E[x⁴] of `brownian`, by quadrature over its two scales, given which the path is normal.

    python -m benchmarks.low_error.references     writes them into references.json

Errors there are what a spacing a quarter wider changes. `credit` and `items` have no such form; the file has the means
that sampler-benchmarks publishes, of 2,000,000 and 400,000 draws (reubenharry/sampler-benchmarks, commit 7ad0700), with
the standard errors that as many independent draws would have. On `brownian` its means agree with the quadrature to
(difference)²/Var[x²] < 10⁻⁴; on the others the table's runs of NUTS check them by their pooled error.
"""

from __future__ import annotations

import json

import torch
from torch import Tensor
from torch.func import vmap

from benchmarks.low_error.crossing import REFERENCES
from benchmarks.low_error.targets import TARGETS, softplus
from benchmarks.statistical.quadrature import lattice
from benchmarks.statistical.references import Means, compared


def brownian(spacing: float = 0.25) -> Means:
    """Return the means by quadrature."""
    return compared(*(_brownian(each) for each in (spacing, 1.25 * spacing)))


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


def main() -> None:
    """Write the entry of the file."""
    means, results = brownian(), json.loads(REFERENCES.read_text())
    results["brownian"] = {
        "mean": [float(f"{value:.8g}") for value in means.mean_F],
        "error": [float(f"{value:.3g}") for value in means.error_F],
    }
    REFERENCES.write_text(json.dumps(results).replace("}, ", "},\n").replace("], ", "],\n ") + "\n")


if __name__ == "__main__":
    main()
