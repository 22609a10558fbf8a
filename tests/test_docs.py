"""What documents name exists."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.exceptions import TyperException
from typer.main import get_command

from coterie.cli.app import app
from tests.docs_check.pages import commands_of, pages

ROOT = Path(__file__).parent.parent


def test_links_between_documents_lead_somewhere() -> None:
    for page in pages():
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page}: {target}"


def test_make_targets_in_documents_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in pages():
        for target in re.findall(r"`make ([a-z-]+)", page.read_text()):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page}: make {target}"


def test_commands_in_sentences_have_the_words_that_they_are_given() -> None:
    """Those in code blocks are run by ``make docs-check``."""
    wrong, root = [], get_command(app)
    for page in pages():
        for said in re.findall(r"`coterie ([^`]+)`", page.read_text()):
            try:
                parse(root, shlex.split(said))
            except TyperException as error:
                wrong.append(f"{page.name}: coterie {said}: {error.format_message()}")
    assert not wrong, "\n".join(wrong)
    with pytest.raises(TyperException, match="No such option"):
        parse(root, ["export", "model", "runs/mine", "--push-it"])
    with pytest.raises(TyperException, match="No such command"):
        parse(root, ["data", "upload"])


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


def test_commands_of_code_blocks_are_read_as_a_shell_reads_them() -> None:
    page = """Type `coterie doctor`.

    coterie run optima/isft 'a.b=[1, 2]' \\
        --folder runs/mine    # and so on
    score  tokens
    async with coterie() as one:

* In a list:

      make test

```python
coterie = 1
```

```
X=1 python3 bench/prompts.py
```
"""
    assert [(one.line, one.words) for one in commands_of(page, "page.md")] == [
        (3, ("coterie", "run", "optima/isft", "a.b=[1, 2]", "--folder", "runs/mine")),
        (10, ("make", "test")),
        (17, ("X=1", "python3", "bench/prompts.py")),
    ]
