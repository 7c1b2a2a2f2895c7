"""The conda recipe asks for what the package asks for."""

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
CONDA = {"torch": "pytorch", "matplotlib": "matplotlib-base", "jsonargparse[signatures]": "jsonargparse"}
OF_EXTRAS = {"python", "docstring_parser", "typeshed-client"}  # the interpreter, and what `signatures` stands for


def test_the_recipe_has_the_version_and_requirements_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
    assert recipe["package"] == {"name": project["name"], "version": project["version"]}
    assert recipe["build"]["python"]["entry_points"] == [f"{k} = {v}" for k, v in project["scripts"].items()]
    assert recipe["about"]["summary"] == project["description"]
    wanted = {re.split(r"(?=>=)", text)[0]: re.split(r"(?=>=)", text)[1] for text in project["dependencies"]}
    there = dict(text.split(" ") for text in recipe["requirements"]["run"])
    assert there["python"] == project["requires-python"]
    assert {name: bound for name, bound in there.items() if name not in OF_EXTRAS} == {
        CONDA.get(name, name): bound for name, bound in wanted.items()
    }
