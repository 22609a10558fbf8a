"""Check of installed plug-ins. Imports each in a separate process.

The process is ``python -m coterie.cli.plugin_check KIND NAME``. It exits with status 0 or prints the problem.
"""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from coterie.config.plugins import Kind, find, installed
from coterie.errors import UserError

KINDS = ("environment", "dataset", "recipe", "reward", "tool")
SECONDS = 120.0
"""Time limit for one plug-in. Importing torch can take long."""
AT_ONCE = 2


def check_all() -> list[tuple[str, str]]:
    """Return each installed plug-in as ``KIND NAME``, with its problem or an empty text."""
    plugins = [(kind, name) for kind in KINDS for name in installed(Kind(kind, {}))]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        problems = pool.map(lambda plugin: import_problem(*plugin), plugins)
    return [
        (f"{kind} {name}", problem) for (kind, name), problem in zip(plugins, problems, strict=True)
    ]


def import_problem(kind: str, name: str, seconds: float = SECONDS) -> str:
    """Import a plug-in in a child process. Return its problem, or an empty text."""
    words = [sys.executable, "-m", "coterie.cli.plugin_check", kind, name]
    try:
        process = subprocess.run(
            words, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return f"its import did not end within {seconds:g} seconds"
    if process.returncode == 0:
        return ""
    if process.returncode < 0:
        return f"its import ended the process by signal {-process.returncode}"
    lines = process.stderr.strip().splitlines()
    return lines[-1] if lines else f"its import ended the process with status {process.returncode}"


def check(kind: str, name: str) -> None:
    """Import a plug-in. Raises ``UserError`` if it is incomplete."""
    if kind == "environment":
        from coterie.config.plugins import settings_type_of
        from coterie.environments.protocol import METHODS
        from coterie.environments.registry import ENVIRONMENTS
        from coterie.environments.settings import EnvironmentSettings

        plugin = find(ENVIRONMENTS, name)
        settings_type_of(plugin, EnvironmentSettings)
        missing = [one for one in METHODS if not callable(getattr(plugin.thing, one, None))]
        missing += sorted(getattr(plugin.thing, "__abstractmethods__", ()))
        if missing:
            raise UserError(f"{plugin} has no {', '.join(dict.fromkeys(missing))}")
    elif kind == "dataset":
        from coterie.datasets.load import dataset_type, row_type

        dataset_type(name)
        row_type(name)
    elif kind == "recipe":
        from coterie.recipes.registry import plugin as recipe_plugin

        recipe_plugin(name)
    elif kind == "reward":
        from coterie.rewards.dialogue_reward import load_terms

        load_terms((name,), ())
    else:
        from coterie.tools.registry import TOOLS, FunctionSource

        FunctionSource(find(TOOLS, name))


if __name__ == "__main__":
    try:
        check(*sys.argv[1:])
    except UserError as error:
        print(error.what, file=sys.stderr)
        sys.exit(2)
