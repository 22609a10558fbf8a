"""A module imports only from its own floor and the floors below (docs/architecture.md)."""

import ast
from pathlib import Path

import coterie

FLOORS = [
    "errors",
    "progress",
    "config",
    "datasets",
    "trajectories",
    "models",
    "engines",
    "tools",
    "environments",
    "generators",
    "rollout",
    "rewards",
    "selection",
    "training",
    "evaluation",
    "microworlds",
    "runs",
    "recipes",
    "reports",
    "cli",
]
PACKAGE = Path(coterie.__file__).parent


def floor(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{name.name}" for name in node.names}
    return {name for name in found if name.startswith("coterie.")}


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


def test_nothing_below_recipes_knows_a_recipe() -> None:
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if name in FLOORS and FLOORS.index(name) < FLOORS.index("recipes"):
            assert "optima/" not in path.read_text(), path


def test_the_compiled_engine_is_used_by_its_interface_alone() -> None:
    folder = PACKAGE / "engines" / "compiled"
    inner = {f"coterie.engines.compiled.{path.stem}" for path in folder.glob("*.py")}
    for path in PACKAGE.rglob("*.py"):
        if folder not in path.parents:
            found = {name for name in imports(path) if name.startswith(tuple(inner))}
            assert not found, path
