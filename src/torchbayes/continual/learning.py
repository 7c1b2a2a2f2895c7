"""sequence: learn tasks one after the other, the posterior of each being the prior of the next (Nguyen et al. 2018).

    q_t ≈ p(D_t | w) q_{t−1}(w) / Z_t, q_0 = p(w)

With exact posteriors this is Bayes' rule, and the end is the posterior of all data. With `VI()` it is variational
continual learning; with `Laplace("diagonal")` the online form of elastic weight consolidation (Kirkpatrick et al.
2017; Huszár 2018), a quadratic penalty at the last mode with the sum of all curvatures; with Kronecker factors that of
Ritter, Botev and Barber (2018). The sum of two Kronecker products is none: see `KroneckerCurvature.plus`. `MAP` has no
distribution to carry on: it only starts where the last task ended, which is plain fine-tuning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchbayes.assess.evaluate import evaluate
from torchbayes.calls import explained
from torchbayes.checks import as_seed, check_flags, check_kind, check_object, optional, seen
from torchbayes.continual.coresets import Coreset
from torchbayes.continual.tasks import Task, as_tasks, can_be_picked, joined, numbers_of, picked, sources_of
from torchbayes.continual.transfer import Learned, Record, matrices, recorded
from torchbayes.continual.unused import restored, used_by
from torchbayes.driver.checks import check_method
from torchbayes.linalg import Diagonal
from torchbayes.methods.protocol import Continued
from torchbayes.model.model import Model, having
from torchbayes.model.sources.sources import Source, checksum_of_rows
from torchbayes.native.process import full_path, undisturbed
from torchbayes.posteriors.gaussian import Gaussian
from torchbayes.posteriors.laplace import as_prior
from torchbayes.posteriors.locks import folder_in
from torchbayes.posteriors.point import Point
from torchbayes.posteriors.posterior import Posterior
from torchbayes.randomness.seeds import Purpose, mix
from torchbayes.selection.fit import fit


@undisturbed
@explained()
def sequence(
    model: Model,
    tasks: Any,
    method: Continued,
    *,
    coreset: Coreset | None = None,
    seeker: Continued | None = None,
    directory: str | PathLike[str] | None = None,
    resume: bool = False,
    seed: int = 0,
) -> Learned:
    """Learn tasks one after the other; only what the method carries goes from one to the next, no data.

    The first task is learned as by `fit`. From the second on the prior is the last posterior, if the method has a
    Gaussian one of one member, and the fit begins at its means; `VI` also begins at its standard deviations, where
    these are narrower than its own. Other choices of a prior apply to the first task alone: Laplace's `prior` and
    `noise`, and a `kl_weight` that is left open.

    Parameters that a task does not use, such as the heads of others (`networks.MultiHead`), stay as they were, and
    begin afresh with the first task that uses them.

    Args:
        model: network, likelihood and the prior before the first task.
        tasks: `Task`s, data sets of `data.load`, or training data as `fit` takes them, in this order.
        method: how to infer: one whose posterior is Gaussian (`VI`, `IVON`, `BSAM`, `SWAG`, `Laplace`, `EP`, `PBP`),
            or `MAP` and `SWA`, which only start where the last task ended.
        coreset: rows of each task to set aside, such as `coresets.Random(200)`. To predict, the posterior after each
            task is fitted once more on the coresets of all tasks so far; this one is not carried on.
        seeker: method that runs before: on every task for a method that starts at modes (its own if None), on the
            first task for others (none if None), as VCL begins at a most likely network.
        directory: where each fit has its run directory, with `sequence.json`, the scores so far; nothing is written if
            None.
        resume: continue the sequence in `directory`; the result equals one that was not interrupted. Tasks may have
            been added.
        seed: of all fits; that of the first task is this one.

    Returns:
        The posteriors and the scores.

    Raises:
        ValueError: if data of a task do not fit the model, posteriors of the method cannot be carried on, there are
            too few rows for a coreset, or the directory holds another sequence.
        TypeError: if an argument is of the wrong kind.
    """
    check_kind(Model, "a Model", model=model)
    optional(check_kind, (str, PathLike), "a path", directory=directory)
    check_flags(resume=resume)
    check_method(method)
    check_carries(method, seeker)
    seed, tasks = as_seed(seed), as_tasks(tasks)
    optional(check_object, ("size", "choose"), "coresets.Random(200)", coreset=coreset)
    sources = sources_of(model, tasks)
    if coreset is not None:
        _check_coreset(coreset, model, tasks, sources)
    if resume and directory is None:
        raise ValueError("`resume=True` needs the `directory` of the sequence to continue.")
    path = None if directory is None else full_path(directory)
    settings = {"method": method, "seeker": seeker, "coreset": coreset, "seed": seed}
    rows = {
        "sizes": [source.num_data for source in sources],
        "checksums_of_test_rows": [checksum_of_rows(task.judged_on) for task in tasks],
    }
    with recorded(path, settings, rows, resume=resume) as record:
        fits = Fits(method, seeker, path, resume, seed)
        return _learn(model, tasks, sources, fits=fits, coreset=coreset, record=record)


def _learn(
    model: Model, tasks: list[Task], sources: list[Source], *, fits: Fits, coreset: Coreset | None, record: Record
) -> Learned:
    """Return what is learned, task by task."""
    posteriors: list[Posterior] = []
    predictors: list[Posterior] = []
    cores: list[Any] = []
    seen_D = torch.zeros(model.layout.size, dtype=torch.bool)
    for t, (task, source) in enumerate(zip(tasks, sources, strict=True)):
        used_D, train = used_by(model, source), task.train
        if coreset is not None:
            chosen = coreset.choose(source.num_data, partial(numbers_of, source), seed=fits.seed_of(2 * t))
            left = torch.ones(source.num_data, dtype=torch.bool)
            left[chosen] = False
            cores.append(picked(task.train, chosen))
            train = picked(task.train, left.nonzero()[:, 0])
        before = posteriors[-1] if posteriors else None
        posterior = fits.fit(model, train, before, number=2 * t, used_D=used_D, new_D=used_D & ~seen_D)
        predictor = posterior
        seen_D |= used_D
        posteriors.append(posterior)
        if cores:
            all_D = torch.ones_like(seen_D)
            predictor = fits.fit(model, joined(cores), posterior, number=2 * t + 1, used_D=all_D, new_D=~all_D)
        predictors.append(predictor)
        if t == 0:
            record.score_untrained(lambda s, m=posterior.model: _untrained(m, tasks[s], fits.seed))
        record.score(t, lambda s, p=predictor: evaluate(p, tasks[s].judged_on).metrics)
    names = [task.name for task in tasks]
    untrained = {name: row[0] for name, row in matrices(record.untrained, len(tasks)).items()}
    return Learned(posteriors, predictors, names, matrices(record.cells, len(tasks)), untrained)


@dataclass(frozen=True)
class Fits:
    """The fits of a sequence: fit 2t is that of task t, fit 2t + 1 that of the coresets after it."""

    method: Continued
    seeker: Continued | None
    directory: Path | None
    resume: bool
    seed: int

    def seed_of(self, number: int) -> int:
        """Return the seed of a fit."""
        return mix(Purpose.TASK, self.seed, number) if number else self.seed

    def fit(self, model: Model, data: Any, before: Any, *, number: int, used_D: Tensor, new_D: Tensor) -> Posterior:
        """Return the posterior of one fit.

        `before` is the posterior before it, None for the first task. `used_D` are the weights that the task uses,
        `new_D` those that no task before has used.
        """
        method, start, point = self.method, None, None
        if before is not None:
            method = method.onward.method
            model, point = before.model, _point(before, new_D, self.seed_of(number))
            if method.onward.carries == "prior":
                model = having(model, prior=_prior(before))
            start = point
            if method.needs.spread:
                variance_MD = before.gaussian.covariance.diagonal().masked_fill(new_D.to(point.weights_MD.device), 0)
                start = Gaussian(model, point.weights_MD, Diagonal(variance_MD), buffers_M=point.buffers_M)
        seeker = self.seeker if number == 0 else None
        if method.needs.start is not None:
            seeker = self.seeker or method.needs.start
        if seeker:
            start = fit(model, data, seeker, start=point, **self._options(number, "mode"))
        posterior = fit(model, data, method, start=start, **self._options(number, "fit"))
        return restored(posterior, used_D, before=point)

    def _options(self, number: int, folder: str) -> dict[str, Any]:
        task, is_coreset = divmod(number, 2)
        where = None
        if self.directory is not None:
            where = folder_in(self.directory, f"task_{task + 1}", "coreset_" * is_coreset + folder)
        return {"directory": where, "resume": self.resume and where is not None, "seed": self.seed_of(number)}


def check_carries(method: Continued, seeker: Continued | None) -> None:
    """Check that posteriors of a method can be carried from task to task, and that `seeker` finds networks."""
    name = type(method).__name__
    if method.onward.carries == "nothing":
        raise ValueError(
            f"the posterior of {name} cannot be the prior of the next task, as it is not Gaussian or not over all "
            f"weights. Take VI, IVON, SWAG, Laplace, EP or PBP, or MAP for plain fine-tuning."
        )
    if method.onward.carries == "prior" and method.members > 1:
        raise ValueError(
            f"a prior is one Gaussian, and {name} with {method.members} members gives a mixture. Set members=1; "
            f"for several, run the sequence with several seeds."
        )
    if seeker is None:
        return
    check_object(("needs", "members", "init", "step"), "MAP(epochs=20)", seeker=seeker)
    if seeker.onward.carries != "start":
        raise TypeError(f"`seeker` must find networks, as MAP(epochs=20) does; got {seen(seeker)}.")
    if seeker.members not in {1, method.members}:
        raise ValueError(f"`seeker` must have the {method.members} members of the method; got {seeker.members}.")


def _check_coreset(coreset: Coreset, model: Model, tasks: Sequence[Task], sources: Sequence[Source]) -> None:
    """Check that rows of every task can be set aside."""
    for task, source in zip(tasks, sources, strict=True):
        if model.shared or not can_be_picked(task.train):
            raise ValueError(
                f"rows of {task.name} cannot be set aside, as they come in ready-made batches or share inputs. Give "
                f"tensors or a Dataset, or no `coreset`."
            )
        if coreset.size >= source.num_data:
            raise ValueError(
                f"`coreset` sets {coreset.size} rows aside, and {task.name} has {source.num_data}, of which one at "
                f"least must be left. Give a smaller coreset."
            )


def _point(before: Any, new_D: Tensor, seed: int) -> Point:
    """Return where a fit begins: at the last means, and afresh for weights that no task has used."""
    weights_MD = before.gaussian.mean_MD if hasattr(type(before), "gaussian") else before.weights_MD
    if bool(new_D.any()):
        fresh_1D, _ = before.model.starting_weights([seed])
        weights_MD = torch.where(new_D.to(weights_MD.device), fresh_1D.to(weights_MD), weights_MD)
    return Point(before.model, weights_MD.clone(), buffers_M=before.buffers_M)


def _prior(before: Any) -> Any:
    """Return a posterior as the next prior. A weight without variance is refused: no data could ever move it."""
    prior = as_prior(before)
    size_D, std_D = prior.loc_D.abs(), prior.covariance.diagonal()[0].sqrt()
    stuck_D = ~(std_D > torch.finfo(std_D.dtype).eps * (size_D + size_D.mean()))  # smaller spreads are rounding
    if bool(stuck_D.any()):
        raise ValueError(
            f"the posterior has no spread for {before.model.prior.names(stuck_D.cpu())}, so that as a prior it "
            f"would hold them fixed for ever. Take VI, IVON or Laplace, or SWAG of rank 0."
        )
    return prior


def _untrained(model: Model, task: Task, seed: int) -> dict[str, float]:
    """Return the metrics of the network at its first weights."""
    weights_MD, buffers = model.starting_weights([seed])
    point = Point(model, weights_MD, buffers_M=buffers or None, statistics_known=True)
    return evaluate(point, task.judged_on).metrics
