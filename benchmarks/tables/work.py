"""One job: fit, predict and score, in a process of its own, which a crash may end."""

from __future__ import annotations

import os
import resource
import time
import warnings
from pathlib import Path

# read when packages of others are imported: no bars of progress, and one core
os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
# so that processes that are forked from one that has imported this have it all, and no fit is timed with an import
import sklearn.model_selection  # noqa: F401
import torch

import torchbayes.sklearn  # noqa: F401
from benchmarks.tables.methods import METHODS
from benchmarks.tables.records import Job, Record, Records
from benchmarks.tables.scores import scores
from benchmarks.tables.sets import split


def work(job: Job, folder: Path) -> None:
    """Do a job, and write its record; of a method that fails, with the message."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = split(job.set, job.split)
    results, failed, began = {}, "", (time.perf_counter(), cpu_seconds())
    ended = began
    try:
        method = METHODS[job.method].make(not rows.classes, job.split)
        began = time.perf_counter(), cpu_seconds()
        prediction = method.fit(*rows.train).predict_distribution(rows.test[0])
        ended = time.perf_counter(), cpu_seconds()
        results = scores(prediction, rows.test[1])
    except Exception as error:
        failed = f"{type(error).__name__}: {error}"
        ended = time.perf_counter(), cpu_seconds()
    wall, cpu = (round(end - start, 3) for start, end in zip(began, ended, strict=True))
    Records(folder).add(Record(*job, results, cpu, wall, len(rows.train[1]), failed))


def cpu_seconds() -> float:
    """Return the seconds that this process and those it has started and ended have computed so far."""
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )
