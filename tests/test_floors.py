"""A module imports only from its own floor and the floors below (docs/architecture.md)."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import coterie
from coterie.recipes.registry import BUILT_IN

FLOORS = [
    "errors",
    "progress",
    "terminal",
    "config",
    "record",
    "datasets",
    "models",
    "engines",
    "tools",
    "environments",
    "rollout",
    "rewards",
    "selection",
    "training",
    "evaluation",
    "runs",
    "reports",
    "recipes",
    "api",
    "cli",
]
PACKAGE = Path(coterie.__file__).parent
PLAIN = ("rl", "sft", "dpo")
"""Recipes that are called by a word of the field, which others use too: only their methods and modules are names."""
RECIPES = [one.name for one in BUILT_IN]


def floor(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


@cache
def imports(path: Path) -> frozenset[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{name.name}" for name in node.names}
    return frozenset(name for name in found if name.startswith("coterie."))


@cache
def words(path: Path) -> frozenset[str]:
    """Every name in a module's code, and every string but for docstrings."""
    return frozenset(_words(path))


def _words(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    loose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        for attribute in ("id", "attr", "arg", "name", "asname"):
            if isinstance(word := getattr(node, attribute, None), str):
                yield word
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in loose:
            yield node.value


def is_name(word: str, recipe: str) -> bool:
    """Whether a word of code is a recipe, one of its methods or modules, or has its name in it; a sentence is not."""
    if re.search(r"\s", word):
        return False
    if recipe in PLAIN:
        return word.startswith(f"{recipe}/") or f"recipes.{recipe}" in word
    parts = re.split(r"[./]", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", word).lower())
    return any(f"_{recipe}_" in f"_{part}_" for part in parts)


def test_every_folder_is_a_floor() -> None:
    names = {
        p.name for p in PACKAGE.iterdir() if p.is_dir() and p.name not in ("__pycache__", "assets")
    }
    assert names <= set(FLOORS)


def test_modules_import_only_downwards() -> None:
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if name in ("__init__", "__main__"):
            continue
        for imported in imports(path):
            if FLOORS.index(floor(imported)) > FLOORS.index(name):
                wrong.append(f"{path.relative_to(PACKAGE)} imports {imported}")
    assert not wrong, "\n".join(wrong)


def test_selection_is_over_plain_numbers() -> None:
    known = {floor(imported) for imported in imports(PACKAGE / "selection.py")}
    assert not known & {"rewards", "rollout"}


@pytest.mark.parametrize("name", RECIPES)
def test_nothing_outside_a_recipes_files_names_it(name: str) -> None:
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        place = path.relative_to(PACKAGE)
        if place.name.startswith(name) or place == Path("recipes/registry.py"):
            continue
        own = rf"coterie\.recipes\.{name}(_\w+)?\b"
        found = {one for one in imports(path) if re.match(own, one) and name not in PLAIN}
        found |= {word for word in words(path) if is_name(word, name)}
        wrong += [f"{place}: {one}" for one in sorted(found)]
    assert not wrong, "\n".join(wrong)


def test_nothing_below_recipes_gives_a_method_of_one_as_an_example() -> None:
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if name in FLOORS and FLOORS.index(name) < FLOORS.index("recipes"):
            assert not [one for one in RECIPES if f"{one}/" in path.read_text()], path


def test_the_rule_about_names_tells_names_from_sentences() -> None:
    assert is_name("optima", "optima") and is_name("optima/isft", "optima")
    assert is_name("OptimaFileKind", "optima") and is_name("to_optima", "optima")
    assert is_name("SweetRL", "sweet_rl") and is_name("coterie.recipes.sweet_rl", "sweet_rl")
    assert not is_name("optimal_tokens", "optima") and not is_name("such as optima/isft", "optima")


def test_help_needs_no_torch() -> None:
    code = "import coterie.cli.app, sys; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "coterie.recipes.registry" in ran.stdout
    assert not {"torch", "transformers", "numba", "pydantic"} & set(ran.stdout.split())
