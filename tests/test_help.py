"""What the command line says of itself: help with examples that can be typed, its version, shell completion."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

import coterie
from coterie.cli.app import app
from tests.conftest import Cli

COMPLETE = "import sys; sys.argv[0] = 'coterie'; from coterie.cli.app import main; main()"


def commands(group: object, *path: str) -> Iterator[tuple[tuple[str, ...], object]]:
    """Every command that does something, with the words that call it."""
    inside = getattr(group, "commands", None)
    if inside is None:
        yield path, group
        return
    for name, command in inside.items():
        yield from commands(command, *path, name)


COMMANDS = dict(commands(get_command(app)))


@pytest.mark.parametrize("path", COMMANDS, ids="-".join)
def test_every_command_has_help_with_an_example_that_names_it(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    text = " ".join(str(getattr(command, "help", "")).split())
    assert "Example" in text, path
    shown = "coterie " + " ".join(word for word in path if word != "record")
    assert shown in text, f"{path}: {text}"
    for option in getattr(command, "params", ()):
        if option.name != "help":
            assert getattr(option, "help", None), f"{path}: {option.name} says nothing"


def test_the_version(cli: Cli) -> None:
    said = cli("--version")
    assert said.code == 0 and said.out == f"coterie {coterie.__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_and_options(shell: str) -> None:
    def completed(line: str) -> str:
        words = line.split(" ")
        environment = {
            **os.environ,
            "_COTERIE_COMPLETE": f"complete_{shell}",
            "_TYPER_COMPLETE_ARGS": line,
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
        }
        found = subprocess.run(
            [sys.executable, "-c", COMPLETE], env=environment, capture_output=True, text=True
        )
        assert "Traceback" not in found.stderr, found.stderr
        return found.stdout

    assert "quickstart" in completed("coterie qui")
    assert "--dry-run" in completed("coterie run --dr")


@pytest.mark.parametrize("words", [("config", "rl/grpo"), ("list",), ("run", "sft", "nonsense=3")])
def test_settings_are_read_without_heavy_imports(words: tuple[str, ...], tmp_path: Path) -> None:
    code = (
        "import sys\nfrom coterie.cli.app import main\n"
        "try:\n    main()\nfinally:\n    print({'torch', 'transformers'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code, *words]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ran.stdout.splitlines()[-1] == "set()", ran.stderr
