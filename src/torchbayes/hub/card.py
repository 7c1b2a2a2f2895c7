"""The model card of a posterior: Markdown with a YAML header, as the Hugging Face Hub reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import yaml

from torchbayes.assess.evaluation import Evaluation
from torchbayes.model.description import describe_model
from torchbayes.posteriors.posterior import Posterior

_LEAST = 2  # rows for an interval


class CardDetails(NamedTuple):
    """What a posterior does not know of itself."""

    name: str
    version: str  # of the library
    evaluation: Evaluation | None
    dataset: str  # on which it was evaluated
    license: str
    base_model: str  # repository of the network whose weights stay as they are
    text: str


def card(posterior: Posterior, details: CardDetails) -> str:
    """Return the text of a model card."""
    header = yaml.safe_dump(_header(posterior, details), sort_keys=False, allow_unicode=True)
    sections = [_summary(posterior, details), details.text, _use(posterior, details), *_believed(posterior)]
    if details.evaluation is not None:
        sections += _metrics(details.evaluation, details.dataset)
    if posterior.problems:
        sections += ["## Known problems", "\n".join(f"- {problem}" for problem in posterior.problems)]
    return f"---\n{header}---\n\n" + "\n\n".join(section for section in sections if section) + "\n"


def _header(posterior: Posterior, details: CardDetails) -> dict[str, Any]:
    """Return the header: library, tags, and metrics in the form of a model index."""
    known = {"license": details.license, "base_model": details.base_model}
    header = {
        "library_name": "torchbayes",
        "tags": ["torchbayes", "bayesian-deep-learning", "uncertainty-quantification", posterior.kind],
        **{name: entry for name, entry in known.items() if entry},
    }
    if details.evaluation is None:
        return header
    metrics = details.evaluation.metrics
    result = {
        "task": {"type": _task(details.evaluation)},
        "dataset": {"name": details.dataset, "type": details.dataset},
        "metrics": [{"type": name, "value": float(value)} for name, value in metrics.items()],
    }
    return {**header, "metrics": list(metrics), "model-index": [{"name": details.name, "results": [result]}]}


def _task(evaluation: Evaluation) -> str:
    if evaluation.probs is not None:
        return "classification"
    return "regression" if evaluation.mean is not None else "other"


def _summary(posterior: Posterior, details: CardDetails) -> str:
    members = f", an equal mixture of {posterior.members}" if posterior.members > 1 else ""
    return (
        f"# {details.name}\n\nA posterior over {posterior.model.layout.size:,} weights of a network "
        f"(`{posterior.kind}`{members}), written by torchbayes {details.version}."
    )


def _use(posterior: Posterior, details: CardDetails) -> str:
    extra = ", calibration=inputs" if posterior.model.network.batch_norms and not posterior.statistics_known else ""
    return (
        "## Use\n\n```python\nimport torchbayes as tb\n\n"
        "# network, likelihood and prior as they were fitted\n"
        "model = tb.Model(network, likelihood, prior)\n"
        f"posterior = tb.hub.load({details.name!r}, model{extra})\n"
        "prediction = tb.predict(posterior, inputs)\n```\n\n"
        "The folder holds numbers and no code, so that the network comes from your program. Loading runs nothing, and "
        "compares layout, likelihood, prior and the weights that are not random with those of the model."
    )


def _believed(posterior: Posterior) -> list[str]:
    """Return the section on the model."""
    said = describe_model(posterior.model)
    rows = [("likelihood", said["likelihood"]), *(("prior of weights", law) for law in said["prior"])]
    rows += [(name, said[name]) for name in ("temperature",) if said[name] != 1.0]
    return ["## Model", _table(("", "as it was fitted"), [(name, f"`{entry}`") for name, entry in rows])]


def _metrics(evaluation: Evaluation, dataset: str) -> list[str]:
    """Return the section on metrics, with the intervals that other rows of the kind leave."""
    count = len(evaluation.log_prob)
    intervals: Mapping[str, tuple[float, float]] = evaluation.intervals() if count >= _LEAST else {}
    rows = [
        (name, f"{value:.4g}", "{:.4g} to {:.4g}".format(*intervals[name]) if name in intervals else "")
        for name, value in evaluation.metrics.items()
    ]
    return [
        f"## Metrics\n\nOf the model average on {count:,} rows of {dataset}.",
        _table(("metric", "value", "95 % interval"), rows),
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
