"""How many files it takes to add something: those that a branch touches.

`python tools/touched.py BASE BRANCH...` prints, for each branch, the files in which it differs from where it left BASE,
and their number. A branch that adds a method and nothing else touches four: its file, its entry, its test and the
changelog.
"""

import subprocess
import sys


def touched(base: str, branch: str) -> list[str]:
    """The files that a branch has added, changed or removed since it left another one."""
    command = ["git", "diff", "--name-only", f"{base}...{branch}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def main(base: str, *branches: str) -> None:
    """Print a block of lines for each branch."""
    for branch in branches:
        files = touched(base, branch)
        print(f"{branch}: {len(files)} files")
        print("\n".join(f"  {file}" for file in files))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("say which branches to compare with which: python tools/touched.py BASE BRANCH...")
    main(*sys.argv[1:])
