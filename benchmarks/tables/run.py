"""All jobs that have no record yet, several at a time."""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess

from benchmarks.tables.records import Job, Record, Records

Work = Callable[..., None]


def run(
    jobs: Iterable[Job],
    records: Records,
    work: Work,
    *,
    workers: int = 1,
    limit: float = 900.0,
    minutes: float = math.inf,
    preload: Iterable[str] = (),
    say: Callable[[str], None] = print,
) -> None:
    """Do the jobs that have no record yet, each in a process of its own.

    A process that dies, or takes too long, leaves a record that says so.

    Args:
        jobs: what to do, in this order.
        records: where the records are.
        work: a function of a module, called with a job and the folder of the records.
        workers: number of processes at a time.
        limit: seconds on the clock after which a job is ended.
        minutes: after so many no job is begun; those that are left are for another call.
        preload: modules that all processes share, imported once; those that a fork does not harm.
        say: is given a line for each job that ends.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([work.__module__, *preload])
    waiting, started = [job for job in jobs if not records.has(job)], time.perf_counter()
    say(f"{len(waiting)} jobs are to be done.")
    running: dict[Job, tuple[ForkServerProcess, float]] = {}
    try:
        while waiting or running:
            if waiting and time.perf_counter() - started > 60 * minutes:
                say(f"{minutes:g} minutes are over; {len(waiting)} jobs are left for the next run.")
                waiting = []
            while waiting and len(running) < workers:
                job = waiting.pop(0)
                process = context.Process(target=work, args=(job, records.folder))
                process.start()
                running[job] = process, time.perf_counter()
            wait([process.sentinel for process, _ in running.values()], timeout=1.0)
            for job, (process, began) in list(running.items()):
                seconds = time.perf_counter() - began
                if process.is_alive() and seconds <= limit:
                    continue
                del running[job]
                end(job, process, seconds, records)
                say(f"{job.set} {job.split} {job.method}: {seconds:.1f} s, {len(waiting) + len(running)} left")
    finally:
        for process, _ in running.values():
            process.kill()
            process.join()


def end(job: Job, process: ForkServerProcess, seconds: float, records: Records) -> None:
    """End the process of a job; if it wrote no record, write why."""
    alive = process.is_alive()
    process.kill()
    process.join()
    if not records.has(job):
        failed = "it took too long and was ended" if alive else f"the process died; exit status {process.exitcode}"
        records.add(Record(*job, {}, 0.0, seconds, 0, failed))
