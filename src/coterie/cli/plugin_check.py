"""Whether installed plug-ins can be used; each is imported in a process of its own.

``python -m coterie.cli.plugin_check KIND NAME`` is that process: it ends with status 0, or says what is wrong.
"""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from coterie.config.plugins import Kind, find, installed
from coterie.errors import UserError

KINDS = ("environment", "dataset", "recipe", "reward", "tool")
SECONDS = 120.0
"""For one plug-in; torch alone may take many of them."""
AT_ONCE = 2


def check_all() -> list[tuple[str, str]]:
    """Every installed plug-in, as ``KIND NAME``, and what is wrong with it; empty if nothing is."""
    known = [(kind, name) for kind in KINDS for name in installed(Kind(kind, {}))]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = pool.map(lambda one: imported(*one), known)
    return [(f"{kind} {name}", wrong) for (kind, name), wrong in zip(known, found, strict=True)]


def imported(kind: str, name: str, seconds: float = SECONDS) -> str:
    """What is wrong with a plug-in that is imported in a child process; empty if nothing is."""
    words = [sys.executable, "-m", "coterie.cli.plugin_check", kind, name]
    try:
        ran = subprocess.run(
            words, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return f"its import did not end within {seconds:g} seconds"
    if ran.returncode == 0:
        return ""
    if ran.returncode < 0:
        return f"its import ended the process by signal {-ran.returncode}"
    said = ran.stderr.strip().splitlines()
    return said[-1] if said else f"its import ended the process with status {ran.returncode}"


def look(kind: str, name: str) -> None:
    """Import a plug-in; raises ``UserError`` for what it lacks."""
    if kind == "environment":
        from coterie.config.construct import settings_type_of
        from coterie.environments.checks import METHODS
        from coterie.environments.registry import ENVIRONMENTS
        from coterie.environments.settings import EnvironmentSettings

        found = find(ENVIRONMENTS, name)
        settings_type_of(found, EnvironmentSettings)
        lacking = [one for one in METHODS if not callable(getattr(found.thing, one, None))]
        lacking += sorted(getattr(found.thing, "__abstractmethods__", ()))
        if lacking:
            raise UserError(f"{found} has no {', '.join(dict.fromkeys(lacking))}")
    elif kind == "dataset":
        from coterie.datasets.load import dataset_type, row_type

        dataset_type(name)
        row_type(name)
    elif kind == "recipe":
        from coterie.recipes.plugins import plugin
        from coterie.recipes.registry import recipe_kind

        plugin(recipe_kind(), name)
    elif kind == "reward":
        from coterie.rewards.dialogue_reward import load_terms

        load_terms((name,), ())
    else:
        from coterie.tools.registry import own_tools

        own_tools((name,))


if __name__ == "__main__":
    try:
        look(*sys.argv[1:])
    except UserError as error:
        print(error.what, file=sys.stderr)
        sys.exit(2)
