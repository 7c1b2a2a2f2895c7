"""Means of the parameters and their squares: exact, by quadrature, or by a long run of another form of the density.

    python -m benchmarks.statistical.references [POSTERIOR ...]     makes references.json anew

| posteriors | from |
|---|---|
| ill, correlated, funnel | closed form |
| linear, groups, groups-centred | quadrature along the one scale: given it, all else is normal |
| arma | quadrature on a lattice of three parameters: given these, the mean of the series is normal |
| logistic, poisson, student, gp, garch | quadrature on a lattice |
| mixture | a long run of HMC with a dense mass: where one component is empty, its parameters have their wide prior |
| horseshoe | a long run of NUTS in its seven scales, the coefficients integrated out |

Long runs must agree with one of blackjax, or they are not written. Errors of quadrature are what a wider spacing
changes.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import torchbayes as tb
from benchmarks.peers.client import ROOT
from benchmarks.statistical.posteriors import POSTERIORS
from benchmarks.statistical.quadrature import NormalGiven, lattice, on_lattice
from benchmarks.statistical.runs import blackjax, log_density_of, ours

FILE = Path(__file__).with_name("references.json")
LENGTHS = (1000, 5000, 4)  # burn-in, draws, chains of blackjax
AGREED = 5.0  # standard errors by which two long runs may differ in the worst of their means
EXACT = {
    "ill": [0.0] * 20 + [10.0 ** (2 * (-2 + 3 * number / 19)) for number in range(20)],
    "correlated": [0.0] * 10 + [1.0] * 10,
    "funnel": [0.0] * 6 + [1.0] + [math.exp(0.5)] * 5,
}
# spacing of the lattice in standard deviations, coarse where a density is close to a normal one
SPACINGS = {
    "logistic": 0.85, "poisson": 0.45, "student": 0.65, "gp": 0.3, "garch": 0.45,
}  # fmt: skip


class Means(NamedTuple):
    """Means of parameters and squares, and their standard errors, each (2 D,)."""

    mean_F: Tensor
    error_F: Tensor


def reference(name: str) -> Means:
    """Return the means of parameters and squares, and their standard errors."""
    if name in EXACT:
        exact_F = torch.tensor(EXACT[name], dtype=torch.float64)
        return Means(exact_F, torch.zeros_like(exact_F))
    results = json.loads(FILE.read_text())[name]
    return Means(*(torch.tensor(results[part], dtype=torch.float64) for part in ("mean", "error")))


def by_lattice(name: str, spacing: float) -> Means:
    """Return the means by quadrature on a lattice, with what a spacing a quarter wider changes."""
    log_density, size = log_density_of(name), POSTERIORS[name].size
    return compared(*(on_lattice(log_density, size, each).values_F for each in (spacing, 1.25 * spacing)))


def linear() -> Means:
    """Return the means along the log noise scale, given which the coefficients are normal."""
    values_P, normal = torch.arange(-4, 4, 0.005, dtype=torch.float64), NormalGiven(log_density_of("linear"), 6, [5])
    return compared(*(normal.moments(normal.on_line(points_P)).values_F for points_P in (values_P, values_P[::2])))


def groups(*, centred: bool, spacing: float = 0.005) -> Means:
    """Return the means along log τ, given which all else is normal; effects are θ = μ + τ z."""
    values_P = torch.arange(-30, 20, spacing, dtype=torch.float64)
    normal = NormalGiven(log_density_of("groups"), 8, [1])
    results = []
    for points_P in (values_P, values_P[::2]):
        change_PRR = torch.eye(7, dtype=torch.float64).repeat(len(points_P), 1, 1)
        if centred:
            change_PRR[:, 1:, 1:] *= points_P.exp()[:, None, None]
            change_PRR[:, 1:, 0] = 1.0
        results.append(normal.moments(normal.on_line(points_P), change_PRR).values_F)
    return compared(*results)


def arma(spacing: float = 0.5) -> Means:
    """Return the means on a lattice of three parameters, given which the mean of the series is normal."""
    normal = NormalGiven(log_density_of("arma"), 4, [1, 2, 3])
    return compared(*(normal.moments(lattice(normal.marginal, 3, each)).values_F for each in (spacing, 1.25 * spacing)))


def compared(fine_F: Tensor, coarse_F: Tensor) -> Means:
    """Return the means by the finer of two rules, with what the other changes."""
    return Means(fine_F, (fine_F - coarse_F).abs())


def given_scales(scales_S7: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what is normal in the horseshoe given its scales: its coefficients z, y | z ~ N(X D z, σ²), z ~ N(0, I).

    Args:
        scales_S7: log local scales, log global scale and log σ, (..., 7).

    Returns:
        The log density of the scales, (...), and mean and variances of z given them, (..., 5).
    """
    data = {name: torch.from_numpy(values) for name, values in POSTERIORS["horseshoe"].data.items()}
    x_NP, y_N, log_noise = data["x"], data["y"], scales_S7[..., 6]
    local_P, overall = scales_S7[..., :5].exp(), scales_S7[..., 5].exp()
    times_P, per_noise = local_P * overall.unsqueeze(-1), (-2 * log_noise).exp()
    products_PP = times_P.unsqueeze(-1) * (x_NP.T @ x_NP) * times_P.unsqueeze(-2)
    precision_PP = torch.eye(5, dtype=torch.float64) + products_PP * per_noise[..., None, None]
    slope_P = times_P * (x_NP.T @ y_N) * per_noise.unsqueeze(-1)
    factor_PP = torch.linalg.cholesky(precision_PP)
    mean_P = torch.cholesky_solve(slope_P.unsqueeze(-1), factor_PP).squeeze(-1)
    log_evidence = 0.5 * (slope_P * mean_P).sum(-1) - factor_PP.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    log_evidence = log_evidence - 0.5 * (y_N @ y_N) * per_noise - 50 * log_noise
    prior = (scales_S7[..., :5] - 2 * torch.log1p(local_P**2 / 3)).sum(-1) - 0.5 * log_noise**2
    prior = prior + scales_S7[..., 5] - 2 * torch.log1p(overall**2 / 3)
    return log_evidence + prior, mean_P, torch.cholesky_inverse(factor_PP).diagonal(dim1=-2, dim2=-1)


def horseshoe(*, kept: Path, where: Path) -> Means:
    """Return the means of a long run in the scales.

    Raises:
        ValueError: if a long run of blackjax in all parameters does not agree.
    """
    density = tb.FunctionDensity(lambda scales_M7: given_scales(scales_M7)[0])
    start_M7 = torch.randn(32, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    method = tb.NUTS(32, 4000, 1000, mass="dense", target_acceptance=0.9)
    scales_MS7 = tb.sample(density, method, start_M7, callbacks=()).weights_MSD
    _, mean_MSP, variance_MSP = given_scales(scales_MS7)
    firsts_MSF = torch.cat([mean_MSP, scales_MS7], -1)
    squares_MSF = torch.cat([mean_MSP.square() + variance_MSP, scales_MS7.square()], -1)
    return agreed("horseshoe", torch.cat([firsts_MSF, squares_MSF], -1), kept=kept, where=where)


def mixture(*, kept: Path, where: Path) -> Means:
    """Return the means of a long run.

    Raises:
        ValueError: if a long run of blackjax does not agree.
    """
    values_MSF = ours("mixture", tb.HMC(32, 5000, 1000, mass="dense", jitter=0.3)).values_MSF
    return agreed("mixture", values_MSF, kept=kept, where=where)


def agreed(name: str, values_MSF: Tensor, *, kept: Path, where: Path) -> Means:
    """Return the means over the draws of a long run.

    Raises:
        ValueError: if a long run of blackjax does not agree.
    """
    ours = estimated(values_MSF)
    peer = estimated(blackjax(name, LENGTHS, file=kept / f"ref-{name}.npz", where=where, seed=100).values_MSF)
    worst = float(((ours.mean_F - peer.mean_F) / (ours.error_F**2 + peer.error_F**2).sqrt()).abs().max())
    if worst > AGREED:
        raise ValueError(f"two long runs of {name} differ by {worst:.1f} standard errors.")
    print(f"{name}: the run of blackjax differs by at most {worst:.1f} standard errors")
    return ours


def estimated(values_MSF: Tensor) -> Means:
    """Return the means over draws, and their standard errors."""
    error_F = (values_MSF.flatten(0, 1).var(0) / tb.diagnostics.ess(values_MSF)).sqrt()
    return Means(values_MSF.mean((0, 1)), error_F)


def ways(*, kept: Path, where: Path) -> dict[str, Callable[[], Means]]:
    """Return what makes each reference that is kept in the file.

    Args:
        kept: where runs of blackjax are kept.
        where: the environments of benchmarks/peers/setup.sh, which only the long runs need.
    """
    return {
        "linear": linear,
        "groups": partial(groups, centred=False),
        "groups-centred": partial(groups, centred=True),
        "arma": arma,
        **{name: partial(by_lattice, name, spacing) for name, spacing in SPACINGS.items()},
        "mixture": partial(mixture, kept=kept, where=where),
        "horseshoe": partial(horseshoe, kept=kept, where=where),
    }


def main() -> None:
    """Make the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [name for name in POSTERIORS if name not in EXACT]
    parser.add_argument("names", nargs="*", metavar="POSTERIOR", default=names)
    parser.add_argument("--where", type=Path, default=ROOT / ".peers", help="where setup.sh made the environments")
    parser.add_argument("--kept", type=Path, help="where runs are kept, and read if they are there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        made = ways(kept=options.kept or Path(folder), where=options.where)
        for name in options.names:
            mean_F, error_F = made[name]()
            results = json.loads(FILE.read_text()) if FILE.exists() else {}
            results[name] = {
                "mean": [float(f"{value:.10g}") for value in mean_F],
                "error": [float(f"{value:.3g}") for value in error_F],
            }
            print(f"{name}: errors up to {float(error_F.max()):.1g}", flush=True)
            FILE.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
