"""Every command that stands in a code block of a page is run, made small; what is not run is listed with the reason."""

import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs_check.given import GIVEN, House, furnish, house
from tests.docs_check.pages import Command, commands, pages
from tests.docs_check.rules import LEFT_OUT, RULES, Rule, small
from tests.docs_check.terminal import SECONDS, typed

pytestmark = pytest.mark.slow

COMMANDS = {page: some for page in pages() if (some := commands(page))}


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[House]:
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "docs"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as variables, house(folder, variables) as shared:
        yield shared


def rule_of(command: Command) -> Rule | None:
    return next((rule for rule in RULES if rule.fits(command)), None)


def left_out(command: Command) -> bool:
    return any(command.text.startswith(begins) for begins in LEFT_OUT)


def fault_of(command: Command, folder: Path, house: House) -> str:
    """Return the fault of a command in a page's folder; empty if it works."""
    rule = rule_of(command)
    assert rule is not None, f"no rule fits {command}"
    words = small(rule, command)
    words = [word.replace("http://127.0.0.1:8000", house.server) for word in words]
    if words[0] == "curl":
        if shutil.which("curl") is None:
            return ""
        done = subprocess.run([*words, "--fail-with-body"], capture_output=True, timeout=SECONDS)
        return "" if done.returncode == 0 else f"{done.stdout!r}\n{done.stderr!r}"
    fault = typed(words, folder, rule.lines, stop=rule.stop)
    return fault and f"{shlex.join(words)}\n{fault}"


@pytest.mark.parametrize("page", COMMANDS, ids=lambda page: page.name)
def test_the_commands_of_a_page_work(page: Path, shared: House, tmp_path: Path) -> None:
    todo = [command for command in COMMANDS[page] if not left_out(command)]
    if todo:
        furnish(todo[0].page, tmp_path, shared)
    faults = []
    for command in todo:
        began = time.monotonic()
        if fault := fault_of(command, tmp_path, shared):
            faults.append(f"{command}\n{fault}")
        print(f"{time.monotonic() - began:5.1f} s  {command}")
    assert not faults, "\n\n".join(faults)


def test_every_rule_fits_a_command() -> None:
    every = [command for some in COMMANDS.values() for command in some]
    used = [rule_of(one) for one in every if not left_out(one)]
    assert not [rule for rule in RULES if rule not in used]
    assert not [b for b in LEFT_OUT if not any(one.text.startswith(b) for one in every)]
    assert GIVEN.keys() <= {one.page for one in every}
