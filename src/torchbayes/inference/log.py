"""The log of a run: `log.jsonl`, one JSON object per epoch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_log(directory: str | Path) -> list[dict[str, Any]]:
    """Read the log of a run, which may be going on.

    Args:
        directory: of the run.

    Returns:
        Its records, less a last line that is cut short; none without a log.
    """
    path = Path(directory) / "log.jsonl"
    records: list[dict[str, Any]] = []
    if path.is_file():
        for line in path.read_text("utf-8").splitlines():
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError:  # being written, or cut short by a kill
                break
    return records
