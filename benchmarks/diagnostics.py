"""R-hat and effective sample sizes of resnet20 (270,000 weights), 4 chains of 100 draws, against arviz.

arviz takes one quantity after another: it is timed on a few hundred weights, and its time scaled to all.
"""

from __future__ import annotations

import torch
from rich.console import Console

from benchmarks.harness import Timing, Work, peak_memory, race, report
from torchbayes import diagnostics

CHAINS, DRAWS, WEIGHTS, SUBSET = 4, 100, 270_000, 250


def draws() -> torch.Tensor:
    """Return made-up draws, of which every fourth repeats the one before, as where a proposal is refused."""
    draws_MSD = torch.randn(CHAINS, DRAWS, WEIGHTS, generator=torch.Generator().manual_seed(0))
    draws_MSD[:, 3::4] = draws_MSD[:, 2::4]
    return draws_MSD


def ours(draws_MSD: torch.Tensor) -> dict[str, Work]:
    """Return the work on all weights."""
    return {
        "rhat": lambda: diagnostics.rhat(draws_MSD),
        "ess bulk": lambda: diagnostics.ess_bulk(draws_MSD),
        "ess tail": lambda: diagnostics.ess_tail(draws_MSD),
    }


def arviz_on_some(draws_MSD: torch.Tensor) -> dict[str, Work]:
    """Return the same work by arviz on the first weights."""
    import arviz

    some = {"weights": draws_MSD[..., :SUBSET].numpy()}
    data = arviz.from_dict(posterior=some)
    return {
        "rhat": lambda: arviz.rhat(data),
        "ess bulk": lambda: arviz.ess(data, method="bulk"),
        "ess tail": lambda: arviz.ess(data, method="tail"),
    }


def main() -> None:
    """Print a table for each statistic."""
    draws_MSD = draws()
    by_torchbayes, by_arviz = ours(draws_MSD), arviz_on_some(draws_MSD)
    before = peak_memory()
    for name, work in by_torchbayes.items():
        timings = race({"torchbayes": work, "arviz": by_arviz[name]}, rounds=3, warmup=1)
        scaled = Timing("arviz (scaled)", [s * WEIGHTS / SUBSET for s in timings[1].seconds])
        report(f"{name}, {WEIGHTS:,} weights, {CHAINS} x {DRAWS} draws", [timings[0], scaled], scaled.name)
    Console().print(f"memory beyond the draws: {peak_memory() - before:.0f} MiB")


if __name__ == "__main__":
    main()
