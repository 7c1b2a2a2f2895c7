"""Records: what a finished run leaves in the repository, small enough to be read when the documentation is built.

    python -m torchbayes_experiments.record experiments/uci_table-small

writes `record.json` and `tables.md` into `experiments/recorded/uci_table`.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Mapping
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


@dataclass(frozen=True)
class Record:
    """What was found in one run of an experiment.

    Attributes:
        experiment: its name.
        claim: what it tests, as it was when it was run.
        source: the paper that makes the claim.
        date: when the last seed ended, year first.
        scale: of the recipe.
        seeds: the seeds.
        seconds: of each seed.
        verdict: whether the claim holds, and its parts with their evidence.
        label: what the numbers of `lines` are.
        published: what their published numbers are of.
        lines: measured numbers, beside the published ones.
        versions: of the packages that decide the numbers; none of a run of an earlier version.
    """

    experiment: str
    claim: str
    source: str
    date: str
    scale: str
    seeds: tuple[int, ...]
    seconds: tuple[float, ...]
    verdict: Verdict
    label: str = ""
    published: str = "published"
    lines: tuple[Line, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """The command that repeats the run."""
        return f"torchbayes reproduce {self.experiment} --scale {self.scale} --seeds {len(self.seeds)}"


def read_record(folder: str | Path) -> Record:
    """Return the record in a folder.

    Raises:
        ValueError: if it is none.
    """
    path = Path(folder) / RECORD
    try:
        held = read_json(path)
        verdict = Verdict.of([Part(**part) for part in held["verdict"]["parts"]])
        several = {
            "lines": [Line(**line) for line in held["lines"]],
            "seeds": held["seeds"],
            "seconds": held["seconds"],
        }
        return Record(**{**held, **{name: tuple(each) for name, each in several.items()}, "verdict": verdict})
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no record of an experiment: {error}. Write it again from its run.") from error


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
        date=max(each.get("date", date.fromtimestamp(path.stat().st_mtime).isoformat()) for each in seeds),
        scale=held["scale"],
        seeds=tuple(each["seed"] for each in seeds),
        seconds=tuple(each["seconds"] for each in seeds),
        verdict=results.verdict,
        label=headline.label if headline else "",
        published=headline.source if headline else "published",
        lines=tuple(map(_short, headline.lines(results.tables))) if headline else (),
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
