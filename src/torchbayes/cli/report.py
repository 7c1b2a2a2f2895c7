"""The command that writes a page about one fit."""

from __future__ import annotations

from pathlib import Path

from torchbayes.cli.options import add_draws, new_parser, parse
from torchbayes.cli.terminal import print_table
from torchbayes.native.process import short_path
from torchbayes.posteriors.locks import folder_in


def report_run(argv: list[str]) -> None:
    """Write a page about a fit: what was fitted, how good it is on its test rows, how the training went."""
    from torchbayes.catalogue.config import CONFIG, load_run
    from torchbayes.report.fit import evaluated, metric_table, write_fit

    parser = new_parser("report", (report_run.__doc__ or "").splitlines()[0])
    parser.add_argument("run", nargs="?", default=None, help="directory of a fit")
    parser.add_argument("--directory", type=str | None, default=None, help="where the page goes; RUN/report")
    add_draws(parser)
    chosen = parse(parser, argv)
    if chosen["run"] is None:
        raise ValueError("say what to report on: the directory of a fit.")
    run = Path(chosen["run"])
    home = Path(chosen["directory"] or folder_in(run, "report"))
    if (home / CONFIG).exists():
        raise ValueError(f"{home} holds a run, whose own page would be lost. Choose another --directory.")
    setup, posterior = load_run(run, trust=chosen["trust"])
    with setup.problem.threading():
        fitted = evaluated(run, setup, posterior, draws=chosen["draws"], seed=chosen["seed"])
        page = write_fit(home, fitted)
    print_table(metric_table(fitted))
    print(f"Report: {short_path(page)}")
