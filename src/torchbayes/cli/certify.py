"""The command that judges a fit by all that can be known of it: `certify`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torchbayes as tb
from torchbayes.catalogue.imports import foreign_code
from torchbayes.certificate.budget import CHECKS
from torchbayes.cli.options import (
    Parser,
    add_method_choice,
    add_run,
    allow,
    made_of,
    new_parser,
    parse,
    peek,
    run_of,
    usual_method,
)
from torchbayes.cli.terminal import print_table, resumable
from torchbayes.native.process import short_path
from torchbayes.posteriors.locks import folder_in

_USUAL = tb.Budget()


def certify(argv: list[str]) -> None:
    """Judge a fit check by check, green, amber or red; write a page on how far its posterior can be trusted.

    The page is `certificate.html` in the run's directory. What is finished stays there, and the same command goes on.
    """
    from torchbayes.catalogue.config import CONFIG, load_run, read_run
    from torchbayes.certificate.page import check_table

    parser = _options()
    chosen = parse(parser, argv)
    run = run_of(chosen, "what to certify")
    budget = made_of(tb.Budget, chosen, {"checks": tuple(chosen["checks"])})
    setup, posterior = load_run(run, trust=chosen["trust"])
    config = read_run(run)
    method = method_of(config, str(run / CONFIG), trust=chosen["trust"])
    with resumable(["torchbayes", "certify", *argv]), setup.problem.threading():
        certificate = tb.certify(
            posterior,
            tuple(setup.data.train),
            method,
            model=setup.model,
            inputs=setup.data.test.inputs,
            budget=budget,
            directory=folder_in(run, "certificate"),
            seed=chosen["seed"],
        )
    page = certificate.save(Path(run) / "certificate.html")
    if chosen["json"]:
        print(json.dumps(certificate.numbers(), indent=1))
        return
    print_table(check_table(certificate))
    print("\n".join(f"{check.name}: {check.meaning} {check.remedy}".rstrip() for check in certificate))
    print(f"Certificate: {certificate.grade}\nPage: {short_path(page)}")


def _options() -> Parser:
    """Return the parser of the command."""
    parser = new_parser(certify)
    add_run(parser)
    words = {
        "simulations": "fits of simulated data: 50 show errors of .2 of a distribution function, 200 of .1",
        "rows": "most rows of a simulated data set, and of the rows that HMC samples",
        "folds": "fits without some of the rows",
        "seeds": "further fits with other seeds",
    }
    for name, text in words.items():
        parser.add_argument(f"--{name}", type=int, default=getattr(_USUAL, name), help=text)
    sources = Literal["prior", "posterior"]
    parser.add_argument("--source", type=sources, default=_USUAL.source, help="where simulated truths come from")
    parser.add_argument("--checks", nargs="+", type=str, default=[*CHECKS], help=f"some of: {', '.join(CHECKS)}")
    parser.add_argument("--seed", type=int, default=0, help="seed of the simulated data, the folds and the fits")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def method_of(config: Mapping[str, Any], source: str, *, trust: bool) -> Any:
    """Return the method of a run, from its configuration in the file `source`, whose code is trusted already."""
    looked = peek(["--config", source, *(["--trust"] if trust else [])])
    allow(foreign_code(config))
    default = usual_method(config["method"]["class_path"], looked.usual)
    parser = new_parser(certify, reads=False)
    add_method_choice(parser, default)
    return parser.instantiate(parser.parse_object({"method": dict(config["method"])}))["method"]
