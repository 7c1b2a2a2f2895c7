"""A run of a method with known settings, from its beginning or its checkpoint to its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchbayes.density.density import LogDensity
from torchbayes.density.plans import Plan
from torchbayes.driver.checkpoint import released
from torchbayes.driver.loop import Epochs, iterate
from torchbayes.driver.means import Means
from torchbayes.driver.progress import Callback, listeners
from torchbayes.driver.reader import Reader
from torchbayes.driver.run import Run
from torchbayes.driver.shelf import DiskShelf, MemoryShelf, Shelf
from torchbayes.methods.protocol import Method
from torchbayes.model.model import Model
from torchbayes.model.sources.sources import Source
from torchbayes.randomness.seeds import member_seeds


def run_to_end(
    density: LogDensity,
    source: Source,
    method: Method,
    *,
    run: Run,
    fresh: list[Any],
    callbacks: Sequence[Callback] | None,
) -> Any:
    """Return the last state of a run, which begins at a fresh state or is resumed; the run's shelf holds the draws.

    `fresh` is a list from which the state is taken, so that nothing else holds a large network while it trains.
    """
    shard, per_epoch = run.shard, run.about["steps_per_epoch"]
    seeds = member_seeds(run.about["seed"], method.members)[shard.local]
    state, description = run.restore(fresh.pop())
    if description.get("plan"):
        # Another plan rounds differently, so a resumed run keeps the one it began with.
        density.plan = Plan(description["plan"], "taken over from the checkpoint")
    # An epoch in which the run stopped is logged anew, as a whole.
    within = state.step % per_epoch if method.visit(state) is not None else 0
    run.resume_log(state.step - within, epochs=description.get("epochs", 0))
    run.shelf = _shelf(density.model, method, run=run, count=description.get("draws", 0))
    total = -(-method.length(per_epoch) // per_epoch)
    callbacks = callbacks if shard.ranks.first else ()  # the first rank alone reports
    with listeners(callbacks, method, (state.step // per_epoch, total)) as notified:
        epochs = Epochs(per_epoch, total, Means(shard, description.get("sums")), notified)
        return released(iterate(method, density, state, reader=Reader(source, seeds), run=run, epochs=epochs))


def _shelf(model: Model, method: Method, *, run: Run, count: int) -> Shelf:
    """Return the shelf for the draws of a run: on disk if it has a directory."""
    if run.directory is None or not method.needs.draws:
        return MemoryShelf(run.shard)
    return DiskShelf(model, run.shard, directory=run.directory, run=run.name, count=count)
