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

COMMANDS = {page: found for page in pages() if (found := commands(page))}
ALL = [command for found in COMMANDS.values() for command in found]


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[House]:
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "docs"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as variables, house(folder, variables) as found:
        yield found


def rule_of(command: Command) -> Rule | None:
    return next((rule for rule in RULES if rule.fits(command)), None)


def left_out(command: Command) -> bool:
    return any(" ".join(command.words).startswith(one.begins) for one in LEFT_OUT)


def fault_of(command: Command, folder: Path, house: House) -> str:
    """What is wrong with a command in a page's folder; empty if nothing is."""
    rule = rule_of(command)
    assert rule is not None
    words = small(rule, command)

    words = [word.replace("http://127.0.0.1:8000", house.server) for word in words]
    if words[0] == "curl":
        if shutil.which("curl") is None:
            return ""
        done = subprocess.run([*words, "--fail-with-body"], capture_output=True, timeout=SECONDS)
        return "" if done.returncode == 0 else f"{done.stdout!r}\n{done.stderr!r}"
    fault = typed(words, folder, rule.lines, stop=rule.stop).fault
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


@pytest.mark.parametrize(
    "line, said",
    [
        ("coterie report runs/mine --pages", "No such option: --pages"),
        ("coterie evaluate exchange policy=tiny-exchange sample=8", "sample"),
        ("coterie reward runs/mine", "there is no run folder runs/mine"),
    ],
)
def test_a_command_that_does_not_work_is_told(
    line: str, said: str, shared: House, tmp_path: Path
) -> None:
    furnish("a page", tmp_path, shared)
    assert said in fault_of(Command("a page", 1, tuple(line.split())), tmp_path, shared)


def test_a_rule_fits_every_command() -> None:
    assert len(ALL) > 90
    lost = [str(one) for one in ALL if rule_of(one) is None and not left_out(one)]
    assert not lost, "\n".join(lost)


def test_every_rule_fits_a_command() -> None:
    used = [rule_of(one) for one in ALL if not left_out(one)]
    assert not [rule for rule in RULES if rule not in used]
    said = [" ".join(one.words) for one in ALL]
    assert not [one for one in LEFT_OUT if not any(line.startswith(one.begins) for line in said)]
    assert GIVEN.keys() <= {one.page for one in ALL}
