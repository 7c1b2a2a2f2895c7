"""Exported functions say what they raise; what is inside the house need not."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools import public

SOURCE = '''"""Doc."""


def shown(x):
    """Do.

    At length.
    """
    raise ValueError(x)


class Thing:
    """Doc."""

    def shown(self):
        """Do.

        At length.
        """
        raise TypeError

    def _hidden(self):
        """Do.

        At length.
        """
        raise TypeError


def inside(x):
    """Do.

    At length.
    """
    raise ValueError(x)
'''


def test_only_what_is_exported_must_say_what_it_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "m.py"
    file.write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(public, "exported", lambda: {file: {"shown", "Thing"}})
    actual = [{"filename": str(file), "location": {"row": row}, "message": "raises"} for row in (4, 15, 22, 30)]
    ran = SimpleNamespace(stdout=str(actual).replace("'", '"'))  # what ruff says, which the tests need not install
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ran)
    assert public.main() == 1
    assert capsys.readouterr().out.splitlines() == ["m.py:4: shown: raises", "m.py:15: Thing.shown: raises"]


def test_exported_names_are_found_where_they_are_defined() -> None:
    names = {file.name: of_file for file, of_file in public.exported().items()}
    assert "MAP" in names["map.py"]
    assert "evaluate" in names["evaluate.py"]
    assert "_fraction" not in {name for of_file in names.values() for name in of_file}
