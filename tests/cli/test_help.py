"""The command line's help has examples that can be typed; it and settings are read quickly."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

import coterie
from coterie.cli.app import app
from tests.conftest import Cli
from tests.helpers.write_rows import write_jsonl


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


CODE = """
import importlib, sys
from coterie.cli.app import main
for words in {commands}:
    sys.argv = ["coterie", *words.split()]
    try:
        main()
    except SystemExit as end:
        print(end.code)
    print("heavy", words, *{heavy} & set(sys.modules))
for name in {modules}:
    importlib.import_module(name)
print("heavy", "modules", *({heavy} | {{"PIL"}}) & set(sys.modules))
"""
COMMANDS = {
    "--help": "",
    "config rl/grpo": "",
    "list": "",
    "evaluate exchange": "no policy is given",
    "run sft nonsense=3": "unknown key 'nonsense'",
    "run optima/isft rollout.sample=3": "unknown key 'rollout.sample'",
    "run sft broken.jsonl model=tiny-acts engine.device=cpu": "line 1 is of no known form",
    "run rl/grpo --folder .": "not a run folder",
    "run rl/grpo broken.jsonl model=tiny-exchange --folder runs/mine": "broken.jsonl",
    "run sft missing.jsonl model=tiny-exchange": "there is no file missing.jsonl",
    "run rl/grpo missing.csv model=tiny-exchange": "there is no file missing.csv",
    "run sft dataset.source=/missing model=tiny-exchange": "there is no file /missing",
    "run sft chats.jsonl model=nosuch": "there is no model or folder 'nosuch'",
    "run optima/isft model=runs/nosuch": "there is no model or folder 'runs/nosuch'",
}
"""Commands, and what an error of theirs says."""


def test_help_settings_and_refusals_import_nothing_heavy(tmp_path: Path) -> None:
    """Nor do recipes, evaluations and exports: only a model and its tokenizer need torch."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "broken.jsonl").write_text('{"words": "no messages"}\n')
    write_jsonl(tmp_path / "chats.jsonl", {"prompt": "Say one.", "completion": "1"})
    recipes = (Path(coterie.__file__).parent / "recipes").glob("*.py")
    modules = [f"coterie.cli.{name}" for name in ("execution", "evaluate", "export")]
    modules += [f"coterie.recipes.{module.stem}" for module in recipes]
    heavy = {"torch", "transformers", "peft", "accelerate", "numba"}
    code = CODE.format(commands=list(COMMANDS), modules=modules, heavy=heavy)
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    lines = [line for line in ran.stdout.splitlines() if line.startswith("heavy ")]
    assert lines == [f"heavy {words}" for words in (*COMMANDS, "modules")], ran.stderr
    errors = [line for line in ran.stderr.splitlines() if line.startswith("error:")]
    for error, text in zip(errors, filter(None, COMMANDS.values()), strict=True):
        assert text in error
