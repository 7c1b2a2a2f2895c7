"""YAML by other people, read within bounds.

A few lines of YAML with aliases of aliases stand for more values than any memory holds, and a few thousand brackets
for a tree deeper than Python can walk. A configuration has some hundred values; a text far beyond that is refused
unread.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from torchbayes.checks import as_file

LONGEST = 2**20  # letters
DEEPEST = 40  # levels
LARGEST = 100_000  # values, counting those of each alias


class UnboundedError(yaml.YAMLError):
    """The text stands for more than a configuration can be."""


def check_yaml(text: str) -> None:
    """Check that a text stands for a tree of bounded size, without building it.

    Raises UnboundedError if it is too long, too deep, too large once its aliases are written out, or refers to itself.
    """
    if len(text) > LONGEST:
        raise UnboundedError(f"it has {len(text):,} letters, more than {LONGEST:,}")
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):  # events are read one by one, and nothing is built
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEEPEST:
            raise UnboundedError(f"it is nested deeper than {DEEPEST} levels")
    if (count := _count(yaml.compose(text, Loader=yaml.SafeLoader), {})) > LARGEST:
        raise UnboundedError(f"it stands for {count:,} values once its aliases are written out, more than {LARGEST:,}")


def _count(node: yaml.Node | None, known: dict[int, int | None]) -> int:
    """Return the number of values below a node, counting each alias as what it refers to."""
    if node is None:
        return 0
    if id(node) in known:
        if (count := known[id(node)]) is None:
            raise UnboundedError("it refers to itself")
        return count
    known[id(node)] = None
    parts: list[yaml.Node] = []
    if isinstance(node, yaml.SequenceNode):
        parts = node.value
    elif isinstance(node, yaml.MappingNode):
        parts = [part for pair in node.value for part in pair]
    total = 1 + sum(_count(part, known) for part in parts)
    known[id(node)] = total
    return total


def read_yaml(path: Path) -> Any:
    """Read a YAML file within the bounds of `check_yaml`."""
    as_file(path)
    try:
        if path.stat().st_size > 4 * LONGEST:
            raise ValueError(f"it has {path.stat().st_size:,} bytes, more than {4 * LONGEST:,}")
        text = path.read_text("utf-8")
        check_yaml(text)
        return yaml.safe_load(text)
    except UnboundedError as error:
        raise ValueError(f"{path} is no configuration: {error}. Write it out, without aliases.") from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not text in UTF-8: {error.reason} at byte {error.start}. Save it as UTF-8."
        ) from error
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}.") from error
