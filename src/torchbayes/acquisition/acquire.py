"""acquire: which rows of a pool to label next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchbayes.acquisition.greedy import Best, room_for
from torchbayes.acquisition.pool import Pool
from torchbayes.acquisition.reading import Rows, check_disagreement, check_joint, has_nodes, rows_of, source_of
from torchbayes.acquisition.rounds import AcquisitionWarning
from torchbayes.calls import explained
from torchbayes.checks import as_numbers, as_seed, check_counts, check_name, seen, whole
from torchbayes.display import Overview, shown
from torchbayes.native.process import undisturbed
from torchbayes.posteriors.problems import note
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.predict import predict

SCORES = ("bald", "batchbald", "epig", "variance", "entropy", "margin")
_AIMED = ("epig", "variance")  # scores of what a label says of others
_TOGETHER = ("batchbald", *_AIMED)  # scores of functions that are drawn at all rows together
_ALONE = ("entropy", "margin")  # scores of the average, for which one function is enough
_AIMS = 100  # rows of the pool that stand for inputs where predictions matter
_MOST = 100_000  # rows of which a batch is chosen greedily

Score = Callable[[Predictive], Any]


def _overview(acquired: Acquired) -> Overview:
    facts: dict[str, Any] = {"rows": acquired.indices.tolist(), "score": acquired.score, "pool": len(acquired.scores)}
    if len(acquired.indices) > _SHOWN:
        facts["rows"] = f"[{', '.join(map(str, acquired.indices[:_SHOWN].tolist()))}, …]"
    if acquired.gain is not None:
        facts["gain"] = acquired.gain
    facts["draws"] = acquired.draws
    if acquired.duplicates:
        facts["duplicates"] = acquired.duplicates
    return Overview("Acquired", facts, problems=acquired.problems)


_SHOWN = 10


@shown(_overview)
@dataclass(frozen=True, eq=False)
class Acquired:
    """Rows of a pool to label next.

    Attributes:
        indices: places in the pool, the first choice first, (k,), int64.
        scores: the score of each row of the pool, (N,), float64, in nats for information, in squared units of the
            targets for "variance". For "batchbald" it is that of a row alone.
        gain: information that all labels of the batch together are expected to give about the function, in nats;
            None where it is not known: one function, a closed form, a student, or several labels of classes in a row.
        score: name of the score.
        draws: S, functions that were compared; nodes of a student.
        duplicates: how many rows of the pool repeat another one; no batch has two equal rows.
        problems: why the choice may not be what was asked for, one clause each.
    """

    indices: Tensor
    scores: Tensor
    gain: float | None
    score: str
    draws: int
    duplicates: int = 0
    problems: tuple[str, ...] = field(default=())


@undisturbed
@explained()
def acquire(
    posterior: Any,
    pool: Any,
    k: int = 1,
    *,
    score: str | Score = "bald",
    target_inputs: Any = None,
    draws: int | None = None,
    seed: int = 0,
    chunk_size: int = 1024,
) -> Acquired:
    """Return the rows of a pool that are worth labelling next.

    The same functions are drawn for all rows. Equal rows count as one, and the order of the pool plays no part: equal
    scores are ordered by the seed and the values of the rows.

    Args:
        posterior: a posterior, functions drawn from one, a `Linearised` one, or a fitted estimator of
            `torchbayes.sklearn`. Of a Laplace posterior functions of the linearised network are drawn; a `Linearised`
            one has its closed form for scores of each row alone, and a student of `torchbayes.distill` no others.
        pool: rows without labels: tensor (N, ...), a tuple or mapping of such, a Dataset or a DataLoader, whose targets
            are ignored; for an estimator rows as it takes them.
        k: how many rows to choose.
        score: "bald", the mutual information of label and function; "batchbald", that of the labels of the batch
            together, chosen greedily; "epig", that of the label and the one at other inputs; "variance", for numbers,
            by how much a label lowers the variance there; "entropy" and "margin", of the average alone; or a function
            of a `Predictive` that returns a number for each row, the largest first. Only "batchbald" sees that rows of
            a batch say the same. Formulas are in `torchbayes.acquisition`.
        target_inputs: inputs where predictions matter, for "epig" and "variance"; 100 rows of the pool if None.
        draws: S, a multiple of the members. If None, about 100, each network of an ensemble once, and of a chain at
            most its own draws.
        seed: seed of the draws, of the order of equal scores, and of the rows that stand for `target_inputs`.
        chunk_size: rows that go through the network at once.

    Returns:
        The rows, the scores of the pool, and what the batch is expected to tell.

    Raises:
        TypeError: if the targets of the model, or a student, have no such score.
        ValueError: if the pool has fewer different rows than `k` or rows that are not finite, if there is one function
            and the score is of disagreement, or if the score is unknown.
    """
    k, seed, name = whole("k", k), as_seed(seed), _name_of(score)
    check_counts(chunk_size=chunk_size)
    if target_inputs is not None and name not in _AIMED:
        raise ValueError(f"`target_inputs` are for the scores 'epig' and 'variance'; got them with {name!r}.")
    if hasattr(posterior, "posterior_at"):  # an estimator
        estimator = posterior
        posterior, pool = estimator.posterior_at(pool)
        target_inputs = None if target_inputs is None else estimator.posterior_at(target_inputs)[1]
    source, joint = source_of(posterior, draws, seed, together=name in _TOGETHER)
    rows = Pool.of(source.model, pool, seed=seed, chunk_size=chunk_size)
    aims: tuple[Rows, ...] = ()
    if name in _AIMED:
        given = rows.some(_AIMS) if target_inputs is None else target_inputs
        aims = (rows_of(predict(source, given, chunk_size=chunk_size), drawn=True),)
    return _Choice(score, name, k, aims, joint=joint, drawn=not has_nodes(source)).of(rows, source)


def _name_of(score: Any) -> str:
    """Return the name of a score; an error if it is none."""
    if isinstance(score, str):
        check_name("score", score, SCORES)
        return score
    if not callable(score) or isinstance(score, type):
        raise TypeError(
            f"`score` must be one of {', '.join(SCORES)}, or a function of a Predictive; got {seen(score)}."
        )
    return getattr(score, "__name__", type(score).__name__)


@dataclass
class _Choice:
    """One call: a score, and what is kept of the rows that were read."""

    score: Any
    name: str
    k: int
    aims: tuple[Rows, ...]  # one or none
    joint: bool  # whether functions are the same at all rows
    drawn: bool  # whether functions are draws
    best: Best | None = None
    draws: int = 0

    def of(self, pool: Pool, source: Any) -> Acquired:
        """Read the pool and choose."""
        places, scores = [], []
        for places_B, inputs in pool.parts():
            predictive = predict(source, inputs, chunk_size=pool.chunk_size)
            scores_B, rows = self._scores(predictive)
            places.append(places_B)
            scores.append(scores_B)
            if rows is not None:
                self._keep(rows, scores_B, pool.keys_N[places_B.numpy()], places_B)
        if not places:
            raise ValueError("the pool has no rows; there is nothing to choose from.")
        return self._chosen(pool, torch.cat(places), torch.cat(scores))

    def _scores(self, predictive: Predictive) -> tuple[Tensor, Rows | None]:
        """Return the scores of rows, (B,), float64, and what more is known of them, if that may be kept."""
        self.draws = predictive.draws
        if callable(self.score):
            return _checked(self.score(predictive), predictive, self.name), None
        rows = rows_of(predictive, drawn=self.drawn)
        if self.name not in _ALONE:
            check_disagreement(rows, self.name)
        if self.name in _TOGETHER:
            check_joint(rows, self.name)
        if self.name == "batchbald":
            return rows.information().cpu(), rows
        return rows.score(self.name)(rows, *self.aims).cpu(), rows

    def _keep(self, rows: Rows, scores_B: Tensor, keys_B: Any, places_B: Tensor) -> None:
        if self.best is None:
            self.best = Best(self._room(rows))
        self.best.add(rows, scores_B.numpy(), keys_B=keys_B, places_B=places_B.numpy())

    def _room(self, rows: Rows) -> int:
        """Return how many rows to keep: for a greedy choice many, for what a batch tells together its own."""
        if self.name == "batchbald":
            return room_for(_MOST, rows, least=self.k)
        known = self.joint and rows.draws > 1 and rows.single and getattr(rows, "closed_BK", None) is None
        return self.k if known and room_for(self.k, rows) == self.k else 0

    def _chosen(self, pool: Pool, places: Tensor, scores: Tensor) -> Acquired:
        keys_U, first_U, number_N = np.unique(pool.keys_N, return_index=True, return_inverse=True)
        if self.k > len(keys_U):
            different = "" if len(keys_U) == len(number_N) else f", of which {len(keys_U)} are different"
            raise ValueError(f"`k` must be at most the rows of the pool, {len(number_N)}{different}; got {self.k}.")
        of_place = torch.zeros(len(number_N), dtype=torch.float64)
        of_place[places] = scores
        # copies of a row differ by rounding where their batches have other sizes
        scores_U = torch.full((len(keys_U),), -torch.inf, dtype=torch.float64)
        scores_U = scores_U.scatter_reduce(0, torch.from_numpy(number_N), of_place, "amax")
        scores_N, duplicates = scores_U[torch.from_numpy(number_N)], len(number_N) - len(keys_U)
        problems, gain = [], None
        if self.name == "batchbald":
            assert self.best is not None
            batch = self.best.greedy(self.k, seed=pool.seed)
            indices, gain = torch.from_numpy(first_U[number_N[batch.places.numpy()]]), batch.information
            if batch.limit and self.k > 1:
                problems.append(f"{batch.limit}, so that its last rows are hardly chosen; raise `draws` or lower `k`")
            if not batch.exact:
                problems.append(
                    f"only the {self.best.room:,} rows that tell most alone were kept in memory, and others might have "
                    f"added more; lower `draws`"
                )
        else:
            order = np.lexsort((keys_U, -scores_U.numpy()))[: self.k]
            indices = torch.from_numpy(first_U[order])
            if self.best is not None and self.best.room:
                gain = self.best.together(keys_U[order], seed=pool.seed)
        for problem in problems:
            note(f"the batch may not be the best: {problem}.", AcquisitionWarning)
        return Acquired(indices, scores_N, gain, self.name, self.draws, duplicates, tuple(problems))


def _checked(scores: Any, predictive: Predictive, name: str) -> Tensor:
    """Return the scores of a user's function, (B,), float64."""
    rows, scores_B = predictive.outputs_SBK.shape[1], as_numbers("score", scores)
    if scores_B.shape != (rows,):
        raise ValueError(f"`score` {name} must return {rows} numbers, one for each row; got {seen(scores)}.")
    if not scores_B.isfinite().all():
        wrong = int((~scores_B.isfinite()).sum())
        raise ValueError(f"`score` {name} must return finite numbers; {wrong} of {rows} are NaN or infinite.")
    return scores_B.detach().double().cpu()
