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
    """Compare networks by their evidence, estimated by Laplace's approximation.

    Args:
        argv: options.
    """
    from torchbayes.comparison import evidence as room

    seen = peek(argv)
    parser = new_parser("evidence", (evidence.__doc__ or "").strip().splitlines()[0], config=True)
    own = [f.name for f in fields(Problem) if f.name != "network"]
    parser.add_class_arguments(Problem, None, skip={"network"}, help="Data and model")
    parser.set_defaults({name: getattr(seen.usual.problem, name) for name in own})
    parser.add_class_arguments(MAP, "map", skip={"members", "plan"}, help="How each network is trained")
    single = seen.usual["single"]
    trained = [f.name for f in fields(MAP) if f.name not in {"members", "plan"}]
    parser.set_defaults({f"map.{name}": getattr(single, name) for name in trained})
    parser.add_class_arguments(room.Settings, None, skip={"problem", "map", "networks"})
    images = seen.usual.problem.network != "mlp" or seen.usual.family == "digits"  # whose usual network is a small one
    names = ["linear", "mlp", *(["cnn"] if images else [])]
    parser.add_argument("--networks", nargs="*", type=str, default=names, help="networks; cnn is short for small_cnn")
    parser.add_argument("--directory", type=str | None, default=None, help="where numbers and a figure go; nowhere")
    parser.add_argument("--overwrite", action="store_true", help="replace earlier results in the directory")
    chosen = parse(parser, seen.argv)
    if chosen["prior"] in room.TUNED:  # what `prior` said before, as in configurations of that time
        chosen |= {"prior": Problem.prior, "tune_prior": chosen["prior"]}
    problem = Problem(**{name: chosen[name] for name in own})
    rest = {f.name: chosen[f.name] for f in fields(room.Settings) if f.name not in {"problem", "map", "networks"}}
    settings = room.Settings(problem, chosen["map"], tuple(chosen["networks"]), **rest)
    directory = None if chosen["directory"] is None else Path(chosen["directory"])
    with nullcontext() if directory is None else _reserved(directory, overwrite=chosen["overwrite"]):
        found = room.compare_networks(settings, callbacks=None, say=say)
        print_table(room.table(settings, found), narrow=room.tables(settings, found))
        print("\n".join(room.remarks(found)))
        if directory is not None:
            print(f"Results: {room.write(directory, settings, found)}")


@contextmanager
def _reserved(directory: Path, *, overwrite: bool) -> Iterator[None]:
    """Hold a directory for results; the folders that are made for it go again if nothing is written.

    Yields:
        Nothing.

    Raises:
        BlockingIOError: if another process is writing there.
        ValueError: if it holds results that are not to be replaced.
    """
    from torchbayes.comparison.evidence import check_directory

    made = [place for place in (directory, *directory.parents) if not place.exists()]
    try:
        with Locked(directory):
            check_directory(directory, overwrite=overwrite)  # now that nobody else can put some there
            yield
    finally:
        with suppress(OSError):  # of a folder that is not empty, as after a success
            for place in made:
                place.rmdir()
