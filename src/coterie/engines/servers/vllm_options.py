"""What options the installed vLLM has, as its own help says, and whether given ones are among them.

Asking takes a quarter of a minute, so the answer is kept in the user's cache folder, per interpreter and version.
"""

import difflib
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from coterie.config.home import home
from coterie.errors import UserError

OptionValue = bool | int | float | str
HELP_SECONDS = 300
VERSION = "from importlib.metadata import version; print(version('vllm'))"
OPTION = re.compile(r"--([a-z0-9][a-z0-9.-]*)")
CHOICES = re.compile(r"\{([^}]*)\}")


class Options:
    """Options of ``vllm serve``, from the text of its help."""

    def __init__(self, help_text: str) -> None:
        self.names: set[str] = set()
        self.switches: set[str] = set()
        """Those that are on or off."""
        self.choices: dict[str, list[str]] = {}
        """The values of those that take one of a few."""
        for line in help_text.splitlines():
            if line.startswith("  -"):
                self._read(re.split(r"\s{2,}", line.strip())[0])

    def _read(self, head: str) -> None:
        names = OPTION.findall(head)
        self.names |= set(names)
        if " " not in head.replace(", -", ""):
            self.switches |= set(names)
        elif found := CHOICES.search(head):
            self.choices |= dict.fromkeys(names, found[1].split(","))


def check_arguments(
    arguments: Mapping[str, OptionValue], options: Options, managed: set[str]
) -> None:
    """Refuse (``UserError``) arguments that vLLM does not have, or that coterie sets itself."""
    for given, value in arguments.items():
        name = given.replace("_", "-")
        if name in managed:
            raise UserError(
                f"arguments.{given}: coterie sets --{name} by itself",
                "use the setting of that name, if there is one, and leave the argument out",
            )
        if name not in options.names:
            near = difflib.get_close_matches(name, options.names - managed, 1)
            hint = (
                f"did you mean {near[0].replace('-', '_')}?"
                if near
                else "see vllm serve --help=all"
            )
            raise UserError(f"arguments.{given}: vllm serve has no option --{name}", hint)
        if (name in options.switches) != isinstance(value, bool):
            wanted = (
                "true or false" if name in options.switches else "a value, and not true or false"
            )
            raise UserError(f"arguments.{given}={value!r}: --{name} takes {wanted}", "change it")
        if name in options.choices and str(value) not in options.choices[name]:
            raise UserError(
                f"arguments.{given}={value!r} is not known to vllm serve",
                f"use one of: {', '.join(options.choices[name])}",
            )


def installed_options(python: str | None) -> Options:
    """The options of the vLLM of an interpreter. Raises ``UserError`` if it has none."""
    interpreter = python or sys.executable
    version = _run([interpreter, "-c", VERSION], interpreter).strip()
    folder = home() / "vllm"
    mark = hashlib.sha256(f"{Path(interpreter).absolute()} {version}".encode()).hexdigest()[:16]
    kept = folder / f"vllm-help-{mark}.txt"
    if kept.is_file():
        return Options(kept.read_text())
    text = _run(
        [interpreter, "-m", "vllm.entrypoints.cli.main", "serve", "--help=all"], interpreter
    )
    options = Options(text)
    if "logprobs-mode" not in options.names:
        raise UserError(
            f"vLLM {version} of {interpreter} has no --logprobs-mode", "install a newer vLLM"
        )
    folder.mkdir(parents=True, exist_ok=True)
    partial = kept.with_suffix(f".{os.getpid()}")
    partial.write_text(text)
    partial.replace(kept)
    return options


def _run(command: list[str], interpreter: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=HELP_SECONDS)
    except OSError as error:
        raise UserError(
            f"can't run {interpreter}: {error.strerror}", "correct engine.vllm.python"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise UserError(
            f"{' '.join(command)} did not end within {HELP_SECONDS} s", "try it by hand"
        ) from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(
            f"{interpreter} has no vLLM that works: {last}",
            "pip install vllm there, or set engine.vllm.python to the interpreter of an environment that has it",
        )
    return done.stdout
