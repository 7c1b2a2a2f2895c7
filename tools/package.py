"""`make package`: build the sdist and the wheel, and try the wheel in an empty environment of every Python there is.

The wheel that is made of the sdist must hold the same files as the one made of the repository. Each environment gets
PyTorch and the wheel alone, with what they require, and runs the first code of README away from the repository.
Versions of Python that are not installed are named.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
ROOT = Path(__file__).parents[1]


def is_installed(version: str) -> bool:
    """Return whether a version of Python runs; a shim of pyenv may be there for one that does not."""
    python = shutil.which(f"python{version}")
    return bool(python) and not subprocess.run([python, "--version"], capture_output=True, check=False).returncode


def built(folder: Path, of: Path, target: str = "wheel") -> Path:
    """Return the file that hatchling makes of the sources in `of`."""
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)], cwd=of, check=True)
    (file,) = folder.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return file


def contents(wheel: Path) -> dict[str, int]:
    """Return the names in a wheel, each with the checksum of its file."""
    with zipfile.ZipFile(wheel) as archive:
        return {entry.filename: entry.CRC for entry in archive.infolist()}


def check_same(wheel: Path, sdist: Path, folder: Path) -> None:
    """Exit if the sdist makes another wheel than the repository."""
    shutil.unpack_archive(sdist, folder, filter="data")
    (sources,) = folder.iterdir()
    there, here = contents(built(folder / "wheel", sources)), contents(wheel)
    if differing := sorted(name for name, _ in there.items() ^ here.items()):
        sys.exit(f"the wheel of the sdist differs from that of the repository: {', '.join(differing)}")


def try_in_empty_environment(python: str, wheel: Path, code: str, folder: Path) -> None:
    """Install a wheel into a new environment and run `code` there."""
    quiet = ("--quiet", "--disable-pip-version-check", "--constraint", str(ROOT / "constraints.txt"))
    unrelated = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME"}}

    def run(*command: str) -> None:
        subprocess.run(command, cwd=folder, env=unrelated, check=True)

    run(python, "-m", "venv", "venv")
    inside = str(folder / "venv" / "bin" / "python")
    run(inside, "-m", "pip", "install", *quiet, "torch")  # alone, so that its build is that of the constraints
    run(inside, "-m", "pip", "install", *quiet, str(wheel))
    run(inside, "-m", "pip", "check")
    run(inside, "-c", code)
    run(str(folder / "venv" / "bin" / "torchbayes"), "list", "methods")


def main() -> None:
    """Build, compare and try."""
    first = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert first is not None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel, sdist = built(folder / "wheel", ROOT), built(folder / "sdist", ROOT, "sdist")
        check_same(wheel, sdist, folder / "unpacked")
        tried = [version for version in PYTHONS if is_installed(version)]
        for version in tried:
            (folder / version).mkdir()
            try_in_empty_environment(f"python{version}", wheel, first[1], folder / version)
        (ROOT / "dist").mkdir(exist_ok=True)
        for file in (wheel, sdist):
            shutil.copy(file, ROOT / "dist")
    absent = [version for version in PYTHONS if version not in tried]
    print(f"dist/ holds {wheel.name} and {sdist.name}. Tried under Python {', '.join(tried)}.")
    if absent:
        print(f"Not tried, as it is not installed: Python {', '.join(absent)}.")


if __name__ == "__main__":
    main()
