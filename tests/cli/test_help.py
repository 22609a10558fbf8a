"""The command line's help has examples that can be typed; it and settings are read quickly."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import coterie
from coterie.cli.app import app
from tests.conftest import Cli


def commands(group: Any, *path: str) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield every command that does something, with the words that call it."""
    if not hasattr(group, "commands"):
        yield path, group
        return
    for name in group.list_commands(None):
        yield from commands(group.commands[name], *path, name)


def test_every_command_has_help_with_an_example_that_names_it(cli: Cli) -> None:
    for path, command in commands(get_command(app)):
        text = " ".join(str(getattr(command, "help", "")).split())
        assert "Example" in text and f"coterie {' '.join(path)}" in text, path
        options = [one for one in getattr(command, "params", ()) if one.name != "help"]
        assert not [one.name for one in options if not getattr(one, "help", None)], path
    assert cli("--version").out == f"coterie {coterie.__version__}\n"


@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("config", "rl/grpo"),
        ("list",),
        ("run", "sft", "nonsense=3"),
        ("run", "sft", "broken.jsonl", "model=tiny-acts", "engine.device=cpu"),
        ("run", "rl/grpo", "--folder", "."),
        ("run", "rl/grpo", "broken.jsonl", "model=tiny-exchange", "--folder", "runs/mine"),
        ("evaluate", "exchange"),
    ],
)
def test_help_and_settings_are_read_without_heavy_imports(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "broken.jsonl").write_text('{"words": "no messages"}\n')
    code = (
        "import sys\nfrom coterie.cli.app import main\n"
        "try:\n    main()\nfinally:\n    print({'torch', 'transformers', 'numba'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code, *words]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ran.stdout.splitlines()[-1] == "set()", ran.stderr


def test_recipes_reports_and_exports_are_imported_without_torch() -> None:
    """A model's tokenizer needs torch; a report without examples and an export of trajectories don't."""
    names = ["coterie.cli.execution", "coterie.cli.evaluate", "coterie.cli.export"]
    modules = (Path(coterie.__file__).parent / "recipes").glob("*.py")
    names += [f"coterie.recipes.{module.stem}" for module in modules]
    code = (
        f"import sys, importlib\nfor name in {names}:\n    importlib.import_module(name)\n"
        "heavy = {'torch', 'transformers', 'numba', 'peft', 'accelerate', 'PIL'}\n"
        "print(heavy & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.stdout == "set()\n", ran.stderr
