"""The page of an experiment: claim, verdict, numbers and figures, as HTML and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torchbayes.report import Picture, Table, png, versions, write_report
from torchbayes_experiments.experiment import Experiment, Findings
from torchbayes_experiments.files import as_json, write_whole
from torchbayes_experiments.verdicts import Verdict, provisional


def write_page(
    directory: Path,
    experiment: Experiment,
    findings: Findings,
    *,
    settings: Mapping[str, Any],
    records: Sequence[Mapping[str, Any]],
) -> Path:
    """Write `report.html`, whose path is returned, `page.md`, its pictures `figure_1.png`, ... and `results.json`.

    Args:
        directory: where the files go.
        experiment: what was run.
        findings: what `experiment.summarise` returned.
        settings: name, scale and recipe of the run.
        records: the record of each seed: `seed`, `seconds`, `results`.
    """
    remark = provisional(findings.verdict.outcome, len(records))
    reason = findings.verdict.reason + (f" {remark.capitalize()}." if remark else "")
    texts = _texts(experiment, f"{findings.verdict.outcome.capitalize()}. {reason}", settings["scale"], records)
    tables = (_parts_table(findings.verdict), *findings.tables)
    told = {**settings, "seeds": [record["seed"] for record in records]}
    figures = []
    for number, picture in enumerate(findings.figures, 1):
        image = _png(picture)
        write_whole(directory / f"figure_{number}.png", image)
        figures.append(replace(picture, image=image))
    outcome = {**asdict(findings.verdict), "reason": reason}
    write_whole(directory / "results.json", as_json({**settings, "verdict": outcome, "seeds": list(records)}))
    write_whole(directory / "page.md", _markdown(experiment.name, texts, tables, figures, told).encode())
    lead = "\n\n".join(f"{label}: {text}" for label, text in texts.items())
    return write_report(
        directory / "report.html", title=experiment.name, lead=lead, tables=tables, figures=figures, settings=told
    )


def _texts(experiment: Experiment, verdict: str, scale: str, records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the paragraphs of the page by their labels."""
    total = sum(record["seconds"] for record in records)
    each = ", ".join(f"{record['seconds']:,.0f} s" for record in records)
    plural = "s" if len(records) > 1 else ""
    return {
        "Claim": f"{experiment.claim} ({experiment.source})",
        "Verdict": verdict,
        "Expected": experiment.expected,
        "Differences from the paper": experiment.differences,
        "Cost": f"scale {scale}, {len(records)} seed{plural}: {total:,.0f} s in all ({each}).",
    }


def _parts_table(verdict: Verdict) -> Table:
    rows = [
        (f"{part.statement} (precondition)" if part.precondition else part.statement, part.outcome, part.evidence)
        for part in verdict.parts
    ]
    caption = (
        "What the verdict is made of. A part holds if the 95 % t interval of the mean over the repeats lies below the "
        "bound, does not hold if it lies above, and is inconclusive otherwise; the claim holds if all parts do."
    )
    return Table(["part of the claim", "outcome", "evidence"], rows, caption)


def _png(picture: Picture) -> bytes:
    image = picture.image
    if isinstance(image, bytes):
        return image
    return Path(image).read_bytes() if isinstance(image, str | Path) else png(image)


def _bare(text: str) -> str:
    """Return text without what ends the alternative text of a picture in Markdown."""
    return text.replace("[", "(").replace("]", ")")


def _markdown(
    title: str,
    texts: Mapping[str, str],
    tables: Sequence[Table],
    figures: Sequence[Picture],
    settings: Mapping[str, Any],
) -> str:
    import yaml

    parts = [f"# {title}\n", *(f"**{label}.** {text}\n" for label, text in texts.items())]
    for number, picture in enumerate(figures, 1):
        parts.append(f"## {picture.title}\n\n![{_bare(picture.text)}](figure_{number}.png)\n\n{picture.caption}\n")
    parts += ["## Numbers\n", *(table.markdown() for table in tables)]
    dump = yaml.safe_dump({**settings, "versions": versions()}, sort_keys=False, allow_unicode=True)
    return "\n".join([*parts, f"## Settings\n\n```yaml\n{dump}```\n"])
