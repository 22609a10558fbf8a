"""A module imports only from its own floor and the floors below (docs/architecture.md)."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from types import FunctionType

import pytest

import coterie
from coterie.recipes.registry import BUILT_IN

FLOORS = (  # noqa: SIM905
    "errors progress terminal config record datasets models engines tools environments rollout rewards selection "
    "training clusters evaluation runs reports recipes api cli"
).split()
PACKAGE = Path(coterie.__file__).parent
PLAIN = ("rl", "sft", "dpo")
"""Recipes with a name of the field, which others use too: only their methods and modules are names."""
RECIPES = [one.name for one in BUILT_IN]


def floor(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def floor_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def imports(path: Path) -> frozenset[str]:
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            modules |= {f"{node.module}.{name.name}" for name in node.names}
    # Packages of public names import the function that makes them lazy.
    modules.discard("coterie.lazy_exports")
    return frozenset(name for name in modules if name.startswith("coterie."))


def words(path: Path) -> Iterator[str]:
    """Yield every name in a module's code, and every string but for docstrings."""
    for node in ast.walk(ast.parse(path.read_text())):
        for attribute in ("id", "attr", "arg", "name", "asname"):
            if isinstance(word := getattr(node, attribute, None), str):
                yield word
    yield from strings(path)


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run when a module is imported."""
    for node in body:
        yield node
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        is_for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for name in ("orelse",) if is_for_types else ("body", "orelse", "finalbody", "handlers"):
            yield from statements(getattr(node, name, []))


@cache
def path_of(module: str) -> Path | None:
    path = PACKAGE.parent.joinpath(*module.split("."))
    files = (path / "__init__.py", path.with_suffix(".py"))
    return next((file for file in files if file.is_file()), None)


def loaded(*modules: str) -> frozenset[str]:
    """Return the modules of the package that an import of some modules loads."""
    result, waiting = set[str](), list(modules)
    while waiting:
        module = waiting.pop()
        if module in result or (path := path_of(module)) is None:
            continue
        result.add(module)
        waiting.append(module.rpartition(".")[0])
        for node in statements(ast.parse(path.read_text()).body):
            if isinstance(node, ast.Import):
                waiting += [name.name for name in node.names]
            elif isinstance(node, ast.ImportFrom):
                waiting += [f"{node.module}.{name.name}" for name in node.names]
                waiting.append(str(node.module))
    return frozenset(name for name in result if name.split(".")[0] == "coterie")


@cache
def words_of(path: Path) -> frozenset[str]:
    return frozenset(words(path))


def is_name(word: str, recipe: str) -> bool:
    """Return True if a word of code is or contains a recipe, one of its methods or modules; a sentence does not."""
    if re.search(r"\s", word):
        return False
    if recipe in PLAIN:
        return word.startswith(f"{recipe}/") or f"recipes.{recipe}" in word
    parts = re.split(r"[./]", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", word).lower())
    return any(f"_{recipe}_" in f"_{part}_" for part in parts)


def test_modules_import_only_downwards() -> None:
    folders = {p.name for p in PACKAGE.iterdir() if p.is_dir()} - {"__pycache__", "assets"}
    assert folders <= set(FLOORS)
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {imported}"
        for path in PACKAGE.rglob("*.py")
        if floor_of(path) not in ("__init__", "__main__")
        for imported in imports(path)
        if FLOORS.index(floor(imported)) > FLOORS.index(floor_of(path))
    ]
    assert not wrong, "\n".join(wrong)
    known = {floor(imported) for imported in imports(PACKAGE / "selection.py")}
    assert not known & {"rewards", "rollout"}, "selection is over plain numbers"


@pytest.mark.parametrize("name", RECIPES)
def test_nothing_outside_a_recipes_files_names_it(name: str) -> None:
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        place = path.relative_to(PACKAGE)
        if place.name.startswith(name) or place == Path("recipes/registry.py"):
            continue
        own = rf"coterie\.recipes\.{name}(_\w+)?\b"
        names = {one for one in imports(path) if re.match(own, one) and name not in PLAIN}
        names |= {word for word in words_of(path) if is_name(word, name)}
        wrong += [f"{place}: {one}" for one in sorted(names)]
        if floor_of(path) in FLOORS[: FLOORS.index("recipes")] and f"{name}/" in path.read_text():
            wrong.append(f"{place} has a method of {name} as an example")
    assert not wrong, "\n".join(wrong)


def test_half_of_the_rl_recipe_is_the_algorithm() -> None:
    """A reader finds advantages, minibatches and the update in the recipe, not behind its report and checks."""
    lines = (PACKAGE / "recipes/rl.py").read_text().splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("def train_step("))
    names = {line.split("(")[0][4:] for line in lines[start:] if line.startswith("def ")}
    assert {"prepare", "group_batch", "critic_batch", "update", "minibatches"} <= names
    assert len(lines) - start >= len(lines) / 2


PUBLIC = (
    "coterie",
    *(f"coterie.{name}" for name in ("environments", "datasets", "tools", "recipes")),
)
"""Modules whose names authors of plug-ins may import."""
ROOT = PACKAGE.parents[1]
IN_STRINGS = re.compile(r"coterie(?:\.[a-z_]+)*\.[A-Z]\w+")


def code_of(page: Path) -> Iterator[str]:
    """Yield the Python code of an example, or of the blocks of a page."""
    if page.suffix == ".py":
        yield page.read_text()
    elif page.suffix == ".ipynb":
        cells = json.loads(page.read_text())["cells"]
        yield from ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    else:
        yield from re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        indented = re.findall(r"^ {4}(?:from|import) coterie.*", page.read_text(), re.MULTILINE)
        yield from map(str.strip, indented)


def pages() -> list[Path]:
    """Return examples, plug-ins and pages, whose code shows what authors may import."""
    patterns = (
        "examples/*.py",
        "examples/*.ipynb",
        "tests/outside/**/*.py",
        "README.md",
        "docs/**/*.md",
    )
    return [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_and_pages_import_only_public_names(page: Path) -> None:
    for code in code_of(page):
        flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        for node in ast.walk(compile(code, str(page), "exec", flags)):
            if isinstance(node, ast.Import):
                for name in node.names:
                    assert name.name.split(".")[0] != "coterie" or name.name in PUBLIC, name.name
            elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "coterie":
                assert node.module in PUBLIC, node.module
                exported = import_module(node.module).__all__
                assert {name.name for name in node.names} <= set(exported)


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_there_once_with_documentation(module: str) -> None:
    public = import_module(module)
    others = {name for other in PUBLIC if other != module for name in import_module(other).__all__}
    assert not others & set(public.__all__) and set(public.__all__) <= set(dir(public))
    assert not hasattr(public, "no_such_name")
    undocumented = []
    for name in public.__all__:
        documented = getattr(public, name)
        members = vars_of(documented) if isinstance(documented, type) else {}
        if isinstance(documented, type | FunctionType) and not documented.__doc__:
            undocumented.append(name)
        undocumented += [
            f"{name}.{member}"
            for member, values in members.items()
            if not any(value.__doc__ for value in values)
        ]
    assert not undocumented


def vars_of(kind: type) -> dict[str, list[object]]:
    """Return the public methods and properties of a class, each with those that it overrides."""
    members: dict[str, list[object]] = {}
    for base in kind.__mro__:
        if base.__module__.startswith("coterie"):
            for name, value in vars(base).items():
                if name[0] != "_" and isinstance(value, METHODS):
                    members.setdefault(name, []).append(value)
    return members


METHODS = (FunctionType, classmethod, staticmethod, property, cached_property)


def test_errors_name_public_objects() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in PACKAGE.rglob("*.py")
        for text in strings(path)
        for name in IN_STRINGS.findall(text)
        if name.rpartition(".")[0] not in PUBLIC
    ]
    assert not wrong, "\n".join(wrong)


def strings(path: Path) -> Iterator[str]:
    """Yield the strings of a module's code, without docstrings."""
    tree = ast.parse(path.read_text())
    loose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in loose:
            yield node.value


SFT = (
    *("cli.app", "cli.arguments", "cli.execution", "recipes.file_training", "runs.roles"),
    "training.trainer",
    "record.lineage",
    "reports.health",
    "reports.overview",
)
"""Modules that ``coterie run sft FILE`` loads: the command's, and those that functions import."""


def size_of(folder: str) -> int:
    return sum(len(path.read_text().splitlines()) for path in (ROOT / folder).rglob("*.py"))


MEASURES: dict[str, Callable[[], int]] = {
    "an import of `coterie.environments.question`": lambda: len(
        loaded("coterie.environments.question")
    ),
    "`coterie run sft FILE`": lambda: len(loaded(*(f"coterie.{module}" for module in SFT))),
    "`tests/outside` import from": lambda: len(PUBLIC),
    "names of these public modules": lambda: sum(len(import_module(m).__all__) for m in PUBLIC),
    "under `src`": lambda: size_of("src"),
    "under `tests`": lambda: size_of("tests"),
}


@pytest.mark.parametrize("measure", MEASURES)
def test_the_code_keeps_the_budgets_of_the_contributors_page(measure: str) -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    (most,) = re.findall(rf"^\|[^|]*{re.escape(measure)}[^|]*\| ([\d,]+) \|$", page, re.MULTILINE)
    count = MEASURES[measure]()
    assert count <= int(most.replace(",", "")), f"{count} {measure}"


@pytest.mark.slow
def test_a_run_loads_no_other_modules(tmp_path: Path) -> None:
    rows = ({"prompt": f"{n} + 1", "completion": str(n + 1)} for n in range(8))
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    code = (
        "import sys\nfrom coterie.cli.app import main\nmain()\n"
        "print(*(name for name in sys.modules if name.split('.')[0] == 'coterie'))"
    )
    words = [sys.executable, "-c", code, "run", "sft", "rows.jsonl", "model=tiny-acts"]
    ran = subprocess.run(
        [*words, "train.epochs=1"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    modules = set(ran.stdout.splitlines()[-1].split())
    assert modules == loaded(*(f"coterie.{root}" for root in SFT))
