"""What documents name exists."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.exceptions import TyperException
from typer.main import get_command

from coterie.cli.app import app
from tests.docs_check.pages import pages

MAKEFILE = (Path(__file__).parents[2] / "Makefile").read_text()


def test_links_and_make_targets_in_documents_exist() -> None:
    for page in pages():
        text = page.read_text()
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
            assert (page.parent / target).exists(), f"{page}: {target}"
        for target in re.findall(r"`make ([a-z-]+)", text):
            assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), f"{page}: make {target}"


def test_commands_in_sentences_can_be_parsed() -> None:
    """Those in code blocks are run by ``make docs-check``."""
    wrong, root = [], get_command(app)
    for page in pages():
        for text in re.findall(r"`coterie ([^`]+)`", page.read_text()):
            try:
                parse(root, shlex.split(text))
            except TyperException as error:
                wrong.append(f"{page.name}: coterie {text}: {error.format_message()}")
    assert not wrong, "\n".join(wrong)
    for words in (["export", "model", "runs/mine", "--push-it"], ["data", "upload"]):
        with pytest.raises(TyperException, match=r"No such (option|command)"):
            parse(root, words)


def parse(command: Any, words: list[str], above: Any = None) -> None:
    """Read a command's words as the command line does; a mention may leave out what it needs, and more."""
    if not words or (above is None and words[0].startswith("-")):
        return
    try:
        context = command.make_context("coterie", words, parent=above, help_option_names=[])
    except TyperException as error:
        if not error.format_message().startswith("Missing"):
            raise
        return
    if hasattr(command, "commands"):
        rest = [*context._protected_args, *context.args]
        parse(*command.resolve_command(context, rest)[1:], context)
