"""The command that compares networks by their evidence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import fields
from pathlib import Path

from torchbayes.catalogue.problem import Problem
from torchbayes.cli.options import new_parser, parse, peek
from torchbayes.cli.terminal import print_table, say
from torchbayes.methods.optimise.map import MAP
from torchbayes.posteriors.locks import Locked


def evidence(argv: list[str]) -> None:
    """Compare networks by their evidence, estimated by Laplace's approximation."""
    from torchbayes.comparison import evidence as room

    seen = peek(argv)
    parser = new_parser(evidence, config=True)
    problem_fields = [f.name for f in fields(Problem) if f.name != "network"]
    parser.add_class_arguments(Problem, None, skip={"network"}, help="Data and model")
    parser.set_defaults({name: getattr(seen.usual.problem, name) for name in problem_fields})
    parser.add_class_arguments(MAP, "map", skip={"members", "plan"}, help="How each network is trained")
    single_network = seen.usual["single"]
    trained = [f.name for f in fields(MAP) if f.name not in {"members", "plan"}]
    parser.set_defaults({f"map.{name}": getattr(single_network, name) for name in trained})
    parser.add_class_arguments(room.Settings, None, skip={"problem", "map", "networks"})
    images = seen.usual.problem.network != "mlp" or seen.usual.family == "digits"  # digits: a small mlp
    names = ["linear", "mlp", *(["cnn"] if images else [])]
    parser.add_argument("--networks", nargs="*", type=str, default=names, help="networks; cnn is short for small_cnn")
    parser.add_argument("--directory", type=str | None, default=None, help="where numbers and a figure go; nowhere")
    parser.add_argument("--overwrite", action="store_true", help="replace earlier results in the directory")
    chosen = parse(parser, seen.argv)
    if chosen["prior"] in room.TUNED:  # the meaning of `prior` in configurations of earlier versions
        chosen |= {"prior": Problem.prior, "tune_prior": chosen["prior"]}
    problem = Problem(**{name: chosen[name] for name in problem_fields})
    options = {f.name: chosen[f.name] for f in fields(room.Settings) if f.name not in {"problem", "map", "networks"}}
    settings = room.Settings(problem, chosen["map"], tuple(chosen["networks"]), **options)
    directory = None if chosen["directory"] is None else Path(chosen["directory"])
    with nullcontext() if directory is None else _reserved(directory, overwrite=chosen["overwrite"]):
        results = room.compare_networks(settings, callbacks=None, say=say)
        print_table(room.table(settings, results), narrow=room.tables(settings, results))
        print("\n".join(room.remarks(results)))
        if directory is not None:
            print(f"Results: {room.write(directory, settings, results)}")


@contextmanager
def _reserved(directory: Path, *, overwrite: bool) -> Iterator[None]:
    """Lock a directory for results, and remove the folders made for it if nothing is written."""
    from torchbayes.comparison.evidence import check_directory

    folders = [folder for folder in (directory, *directory.parents) if not folder.exists()]
    try:
        with Locked(directory):
            check_directory(directory, overwrite=overwrite)  # after the lock, so that nobody else can put results there
            yield
    finally:
        with suppress(OSError):  # a folder is not empty after a success
            for folder in folders:
                folder.rmdir()
