"""Records: what a finished run leaves in the repository, small enough to be read when the documentation is built.

    python -m torchbayes_experiments.record experiments/uci_table-small

writes `record.json` and `tables.md` into `experiments/recorded/uci_table`.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

from torchbayes.posteriors.files import read_json, write_whole
from torchbayes_experiments.experiment import Experiment, open_directory
from torchbayes_experiments.headline import Line
from torchbayes_experiments.registry import get
from torchbayes_experiments.verdicts import Part, Verdict

RECORD, TABLES = "record.json", "tables.md"
OUTCOMES = ("holds", "does not hold", "inconclusive")


@dataclass(frozen=True)
class Record:
    """What was found in one run of an experiment.

    Attributes:
        experiment: its name.
        claim: what it tests, as it was when it was run.
        source: the paper that makes the claim.
        recorded: `from a run`, or `from the page` where the numbers were copied from the documentation.
        date: when the last seed ended, year first; empty where it was not kept.
        scale: of the recipe.
        seeds: the seeds.
        verdict: whether the claim holds.
        counts: outcome -> how many parts of the claim have it; none where that was not kept.
        parts: the parts with their evidence; none where these are not at hand.
        label: what the numbers of `lines` are.
        published: what their published numbers are of.
        lines: measured numbers, beside the published ones.
        seconds: of each seed, where they are known.
        versions: of the packages that decide the numbers.
    """

    experiment: str
    claim: str
    source: str
    recorded: str
    date: str
    scale: str
    seeds: tuple[int, ...]
    verdict: str
    counts: Mapping[str, int]
    parts: tuple[Part, ...] = ()
    label: str = ""
    published: str = "published"
    lines: tuple[Line, ...] = ()
    seconds: tuple[float, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """The command that repeats the run."""
        return f"torchbayes reproduce {self.experiment} --scale {self.scale} --seeds {len(self.seeds)}"

    def faults(self) -> list[str]:
        """Return what the record says against itself: verdict, counts and parts have one arithmetic."""
        said = []
        if set(self.counts) - set(OUTCOMES) or self.verdict not in OUTCOMES:
            said.append(f"an outcome is one of {', '.join(OUTCOMES)}; got {self.verdict!r} and {list(self.counts)}")
        if self.parts:
            if (counted := _counts(self.parts)) != dict(self.counts):
                said.append(f"the parts are {counted}, and the counts say {dict(self.counts)}")
            if (verdict := Verdict.of(self.parts).outcome) != self.verdict:
                said.append(f"the parts say {verdict!r}, and the verdict is {self.verdict!r}")
        elif self.counts and (self.verdict == "holds") != (set(self.counts) == {"holds"}):
            said.append(f"a claim holds if all its parts do; the verdict is {self.verdict!r} of {dict(self.counts)}")
        elif self.counts and self.verdict == "does not hold" and "does not hold" not in self.counts:
            said.append("the claim does not hold, and no part of it says so")
        return said


def _counts(parts: Sequence[Part]) -> dict[str, int]:
    outcomes = [part.outcome for part in parts]
    return {outcome: outcomes.count(outcome) for outcome in OUTCOMES if outcome in outcomes}


def read_record(folder: str | Path) -> Record:
    """Return the record in a folder.

    Raises:
        ValueError: if it does not fit, or contradicts itself.
    """
    path = Path(folder) / RECORD
    try:
        held = read_json(path)
        parts, lines = (tuple(kind(**each) for each in held[name]) for kind, name in ((Part, "parts"), (Line, "lines")))
        several = {name: tuple(held[name]) for name in ("seeds", "seconds")}
        record = Record(**{**held, **several, "parts": parts, "lines": lines})
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is no record of an experiment: {error}. Write it again from its run.") from error
    if faults := record.faults():
        raise ValueError(f"{path} contradicts itself: {'; '.join(faults)}.")
    return record


def record(run: str | Path, *, into: str | Path = "experiments/recorded", experiment: Experiment | None = None) -> Path:
    """Condense the directory of a finished run to `INTO/NAME/record.json`, and its tables to `tables.md` beside it.

    Args:
        run: directory that `reproduce` filled.
        into: folder of the records.
        experiment: what was run, where it is in no registry.

    Returns:
        Path of `record.json`.

    Raises:
        FileNotFoundError: if the run has no results.
        ValueError: if the results are of other settings or of no experiment, or the tables lack the headline.
    """
    path = Path(run) / "results.json"
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist; `torchbayes reproduce` writes it when all seeds have been run."
        )
    try:
        held = read_json(path)
        chosen, seeds = experiment or get(held["experiment"]), held["seeds"]
        open_directory(chosen, held["scale"], Path(run))
        results = chosen.summarise([each["results"] for each in seeds])
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{path} lacks {error}: it is of another version or no experiment. Run it again.") from error
    headline = chosen.headline
    written = Record(
        experiment=chosen.name,
        claim=chosen.claim,
        source=chosen.source,
        recorded="from a run",
        date=max(each.get("date", date.fromtimestamp(path.stat().st_mtime).isoformat()) for each in seeds),
        scale=held["scale"],
        seeds=tuple(each["seed"] for each in seeds),
        verdict=results.verdict.outcome,
        counts=_counts(results.verdict.parts),
        parts=results.verdict.parts,
        label=headline.label if headline else "",
        published=headline.source if headline else "published",
        lines=tuple(map(_short, headline.lines(results.tables))) if headline else (),
        seconds=tuple(each["seconds"] for each in seeds),
        versions=seeds[-1].get("versions", {}),
    )
    folder = Path(into) / chosen.name
    folder.mkdir(parents=True, exist_ok=True)
    tables = "\n".join(table.markdown() for table in results.tables)
    write_whole(folder / TABLES, tables.encode())
    write_whole(folder / RECORD, (json.dumps(asdict(written), indent=1, ensure_ascii=False) + "\n").encode())
    return folder / RECORD


def _short(line: Line) -> Line:
    """Return a line with five significant digits."""
    numbers = {name: float(f"{each:.5g}") for name, each in asdict(line).items() if isinstance(each, float)}
    return replace(line, **numbers)


def main(argv: list[str] | None = None) -> None:
    """Record the runs that the command names."""
    parser = ArgumentParser(prog="python -m torchbayes_experiments.record", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("run", nargs="+", help="directory that `torchbayes reproduce` filled")
    parser.add_argument("--into", default="experiments/recorded", help="folder of the records")
    chosen: Any = parser.parse_args(argv)
    for run in chosen.run:
        try:
            print(record(run, into=chosen.into))
        except (OSError, ValueError) as error:
            raise SystemExit(f"{run}: {error}") from None


if __name__ == "__main__":
    main()
