"""The gallery of findings: cards and heads of pages, made from the records of experiments when the pages are built."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from torchbayes_experiments import NAMES, get
from torchbayes_experiments.headline import Line
from torchbayes_experiments.record import Record, read_record
from torchbayes_experiments.verdicts import OUTCOMES, provisional

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "experiments" / "recorded"
TOPICS = {
    "basins": "Basins",
    "evidence": "Evidence",
    "priors": "Priors",
    "references": "HMC as reference",
    "regression": "Regression",
    "variational": "Variational",
    "optimisation": "Optimisation",
}
ON_CARD = 6  # lines of the picture on a card; the page of the experiment has all


def records() -> list[Record]:
    """Return the records in the order of the topics."""
    names = [name for folder in TOPICS for name, home in NAMES.items() if home == folder]
    return [read_record(RECORDED / name) for name in names if (RECORDED / name).exists()]


def gallery() -> str:
    """Return the filters' place, a card for every record, and what has no record yet, as HTML."""
    recorded = {record.experiment for record in records()}
    left = "".join(f"<li><code>{n}</code>: {escape(get(n).claim)}</li>" for n in NAMES if n not in recorded)
    left = f"<p>Not yet run for several seeds:</p><ul>{left}</ul>" if left else ""
    return f'<div id="findings-filter"></div>\n<div class="findings">\n{"".join(map(card, records()))}</div>{left}'


def card(record: Record) -> str:
    """Return the card of a record: verdict, claim, numbers as a picture, cost and command."""
    name, page = record.experiment, f"experiments/{record.experiment}.html"
    most = ON_CARD if len(record.lines) > ON_CARD + 1 else len(record.lines)
    more = len(record.lines) - most
    rest = f'<p class="quiet"><a href="{page}">{more} more lines</a></p>' if more else ""
    return (
        f'<article class="finding" id="{name}" data-topic="{TOPICS[NAMES[name]]}" {_verdict(record)}>'
        f'<h3><a href="{page}">{title(name)}</a></h3>{_badge(record)}<p>{escape(get(name).claim)}</p>'
        f"{picture(record, most)}{rest}"
        f'<p class="quiet">{escape(_circumstances(record))}</p><pre><code>{escape(record.command)}</code></pre>'
        "</article>\n"
    )


def finding(name: str) -> str:
    """Return the head of the page of an experiment as HTML: all that its record and the experiment itself say."""
    record, experiment = read_record(RECORDED / name), get(name)
    facts = {
        "Source": experiment.source,
        "Expected": experiment.expected,
        "Differences from the paper": experiment.differences,
        "Cost of a seed": "; ".join(f"{scale}: {cost}" for scale, cost in experiment.cost.items()),
    }
    told = "".join(f"<dt>{label}</dt><dd>{escape(text)}</dd>" for label, text in facts.items())
    return (
        f'<div class="finding" {_verdict(record)}><p><strong>{escape(experiment.claim)}</strong></p>'
        f'{_badge(record)}{picture(record)}<p class="quiet">{escape(_circumstances(record))}</p>'
        f"<pre><code>{escape(record.command)}</code></pre>{_parts(record)}"
        f"<details><summary>Source, expected result, differences, cost</summary><dl>{told}</dl></details></div>"
    )


def title(name: str) -> str:
    """Return the heading of the page of an experiment."""
    text = (ROOT / "docs" / "experiments" / f"{name}.md").read_text(encoding="utf-8")
    return escape(text.splitlines()[0].removeprefix("# "))


def _verdict(record: Record) -> str:
    return f'data-verdict="{record.verdict.outcome}"'


def _badge(record: Record) -> str:
    outcome, counts, total = record.verdict.outcome, record.verdict.counts, len(record.verdict.parts)
    counted = f"{counts['holds']} of {total} parts hold" if counts["holds"] < total else f"all {total} parts"
    against = counts["does not hold"]
    counted += f", {against} do{'es' if against == 1 else ''} not" if against else ""
    remark = provisional(outcome, len(record.seeds))
    counted += f" ({remark})" if remark else ""
    return f'<p class="verdict"><strong>{outcome.capitalize()}</strong> {counted}</p>'


def _circumstances(record: Record) -> str:
    seeds = f"{len(record.seeds)} seed{'s' if len(record.seeds) > 1 else ''}, scale {record.scale}"
    minutes = sum(record.seconds) / 60
    took = f"{minutes:.0f} minutes" if minutes >= 2 else f"{sum(record.seconds):.0f} seconds"
    return f"{seeds}; {took} in all, beside other work; {record.date}."


def picture(record: Record, most: int | None = None) -> str:
    """Return measured numbers beside published ones as a table whose middle column is drawn; empty without numbers.

    Args:
        record: the numbers.
        most: at most so many lines, whose errors are drawn and not written; all if None.
    """
    lines = record.lines[:most]
    if not lines:
        return ""
    low, high = _range(lines)
    other = any(line.published is not None for line in lines)
    columns = [column([(line.value, line.error) for line in lines], errors=most is None)]
    columns += [column([(line.published, line.published_error) for line in lines], errors=most is None)] * other
    rows = "".join(_row(line, low, high, cells) for line, *cells in zip(lines, *columns, strict=True))
    key = "<i class=m></i> measured" + (", with two standard errors" if any(line.error for line in lines) else "")
    key += f" <i class=p></i> {escape(record.published)}" if other else ""
    heads = '<th scope="col">measured</th>' + ('<th scope="col">published</th>' if other else "")
    return (
        f'<table class="dots"><caption>{escape(record.label)}</caption><thead><tr><td></td><td></td>{heads}</tr>'
        f'</thead><tbody>{rows}</tbody></table><p class="quiet key" aria-hidden="true">{key}</p>'
    )


def _range(lines: Sequence[Line]) -> tuple[float, float]:
    ends = [end for line in lines for value, error in _numbers(line) for end in (value - 2 * error, value + 2 * error)]
    pad = 0.05 * (max(ends) - min(ends)) or 1.0
    return min(ends) - pad, max(ends) + pad


def _numbers(line: Line) -> Iterator[tuple[float, float]]:
    yield line.value, line.error or 0.0
    if line.published is not None:
        yield line.published, line.published_error or 0.0


def _row(line: Line, low: float, high: float, shown: Sequence[str]) -> str:
    marks = ""
    for kind, (value, error) in reversed([*zip("mp", _numbers(line), strict=False)]):
        left, half = 100 * (value - low) / (high - low), 100 * error / (high - low)
        marks += f'<i class="{kind} bar" style="left:{left - 2 * half:.1f}%;width:{4 * half:.1f}%"></i>' * bool(error)
        marks += f'<i class="{kind}" style="left:{left:.1f}%"></i>'
    cells = "".join(f"<td>{text}</td>" for text in shown)
    return f'<tr><th scope="row">{escape(line.name)}</th><td class="strip" aria-hidden="true">{marks}</td>{cells}</tr>'


def column(numbers: Sequence[tuple[float | None, float | None]], *, errors: bool = True) -> list[str]:
    """Return numbers as text, all to the same decimals, and with their errors if so asked.

    They are those that the largest error bears, and one or two more where the smallest would be 0.
    """
    known = [error for _, error in numbers if error]
    if not known:
        texts = [f"{value:.3g}" for value, _ in numbers if value is not None and abs(value) < 1000]
        places = max((len(text.partition(".")[2]) for text in texts if "e" not in text), default=0)
    else:
        largest, smallest = max(known), min(known)
        least = -math.floor(math.log10(largest)) + (f"{largest:e}"[0] == "1")
        places = max(0, min(max(least, -math.floor(math.log10(smallest))), least + 2))

    def text(value: float | None, error: float | None) -> str:
        if value is None:
            return ""
        return (f"{value:,.{places}f}" + (f" ± {error:,.{places}f}" if error and errors else "")).replace("-", "−")

    return [text(*number) for number in numbers]


def _parts(record: Record) -> str:
    ordered = sorted(record.verdict.parts, key=lambda part: -OUTCOMES.index(part.outcome))
    rows = "".join(
        f"<tr><td>{escape(part.statement)}{' (precondition)' if part.precondition else ''}</td>"
        f"<td>{part.outcome}</td><td>{escape(part.evidence)}</td></tr>"
        for part in ordered
    )
    heads = "<tr><th>part of the claim</th><th>outcome</th><th>evidence</th></tr>"
    return f"<details><summary>The {len(ordered)} parts of the claim</summary><table>{heads}{rows}</table></details>"


def faults(root: Path = ROOT) -> Iterator[str]:
    """Yield what the records and pages of the experiments lack, or say otherwise than the experiments do."""
    for name, folder in NAMES.items():
        page, home = root / "docs" / "experiments" / f"{name}.md", root / "experiments" / "recorded" / name
        if folder not in TOPICS:
            yield f"the gallery has no topic for the folder {folder!r} of {name}"
        if not home.exists() and not page.exists():
            continue  # not run yet, which the gallery says
        try:
            record = read_record(home)
        except (OSError, ValueError) as error:
            yield str(error)
            continue
        if (record.experiment, record.claim) != (name, get(name).claim):
            yield f"the record of {name} is of {record.experiment}: {record.claim!r}, which it does not claim"
        if record.scale not in get(name).recipes:
            yield f"the record of {name} is of a scale {record.scale!r}, which it does not have"
        if not page.exists() or f'finding("{name}")' not in (text := page.read_text(encoding="utf-8")):
            yield f"{page} does not show the record by `finding`"
            continue
        total, held = len(record.verdict.parts), record.verdict.counts["holds"]
        for match in re.finditer(r"(\d+) of (?:the )?(\d+) parts", text):
            if match.groups() != (str(held), str(total)):
                yield f"{page} says {match[0]!r}; the record has {held} of {total}"
        if f"recorded/{name}/tables.md" not in text:
            yield f"{page} does not show the tables of the run"
    for folder in (root / "experiments" / "recorded").iterdir():
        if folder.name not in NAMES:
            yield f"there is no experiment {folder.name!r}, and a record of it"
