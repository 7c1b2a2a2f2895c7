"""Training steps of variational methods against those of other packages, after `peers/setup.sh WHERE variational`.

    python -m benchmarks.variational_peers [--where WHERE]

Networks, batch, data and the numbers of Adam are the same on all sides (`peers/variational_work.py`), one draw a step.
What a package calls its own is timed as it is: Torch-Uncertainty takes the divergence at the draw, Bayesian-Torch
averages it over the weights of a layer instead of summing it, which is as much work, and TyXe runs on Pyro.
"""

from __future__ import annotations

import argparse
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torchbayes as tb
from benchmarks.harness import Work, report
from benchmarks.peers.client import ROOT, Clock, Peer, alternate, clock
from benchmarks.peers.variational_work import BATCH, NUM_DATA, PRIOR_SCALE, RATE, SCALE, problem
from torchbayes.networks import build

# form -> peers of the same form
PEERS = {
    "weights": ("bayesian_torch-weights", "tyxe-weights", "torch_uncertainty-weights"),
    "local": ("tyxe-local",),
    "flipout": ("bayesian_torch-flipout", "tyxe-flipout"),
    "ivon": ("ivon-own",),
    "last_layer": ("vbll-last_layer",),
}


def network(case: str) -> nn.Module:
    """Return a network of `variational_peer.layers`."""
    return build("mlp", (784,), 10, hidden=(400, 400)) if case == "mlp" else build("lenet", (1, 28, 28), 10)


def method(form: str) -> Any:
    """Return our method of a form."""
    if form == "ivon":
        return tb.IVON(epochs=10_000, lr=RATE)
    if form == "last_layer":
        return tb.VBLL(epochs=10_000, optimizer=tb.Adam(RATE), kl_weight=1.0)
    settings: dict[str, Any] = {"estimator": form, "initial_scale": SCALE, "kl_weight": 1.0}
    return tb.VI(epochs=10_000, optimizer=tb.Adam(RATE), **settings)


def step(form: str, case: str) -> Work:
    """Return our step."""
    model = tb.Model(lambda: network(case), tb.likelihoods.Categorical(), tb.priors.Normal(PRIOR_SCALE))
    density, seeds, chosen = tb.LogDensity(model, NUM_DATA, training=True), tb.member_seeds(0, 1), method(form)
    rows = tb.Batch(*(torch.from_numpy(part).unsqueeze(0) for part in problem(case)))
    state = chosen.init(density, *model.starting_weights(seeds), seeds=seeds, steps_per_epoch=-(-NUM_DATA // BATCH))

    def work() -> None:
        nonlocal state
        state, _ = chosen.step(density, state, rows, donate=True)

    return work


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--where", type=Path, default=ROOT / ".peers", help="where setup.sh made the environments")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--patience", type=float, default=60.0, help="seconds to wait in all for a quiet machine")
    options = parser.parse_args()
    for case in ("mlp", "lenet"):
        for form, peers in PEERS.items():
            work = step(form, case)
            for _ in range(3):
                work()
            clocks: dict[str, Clock] = {"torchbayes": clock(work)}
            pids = []
            with ExitStack() as stack:
                for way in peers:
                    peer = stack.enter_context(Peer(f"variational/{way}", case, where=options.where))
                    pids.append(peer.pid)
                    clocks[way] = peer.time
                race = alternate(clocks, ours=pids, rounds=options.rounds, block=0.1, patience=options.patience)
            note = f"Other processes used up to {race.others:.1f} of {os.cpu_count()} cores meanwhile."
            report(f"{case}, {form}: one step", race.timings, "torchbayes", note)


if __name__ == "__main__":
    main()
