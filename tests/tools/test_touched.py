"""The count of files that a branch touches, in a made-up repository."""

import subprocess
from pathlib import Path

import pytest
from tools.touched import main


def test_files_of_a_branch_since_it_left_the_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def git(*words: str) -> None:
        own = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", *own, *words], cwd=tmp_path, check=True, capture_output=True)

    def commit(*names: str) -> None:
        for name in names:
            (tmp_path / name).write_text(name)
        git("add", "-A")
        git("commit", "-m", "one")

    git("init", "-b", "main")
    commit("old")
    git("checkout", "-b", "more")
    commit("a", "b")
    git("checkout", "main")
    commit("elsewhere")
    monkeypatch.chdir(tmp_path)
    main("main", "more")
    assert capsys.readouterr().out == "more: 2 files\n  a\n  b\n"
