"""Run a program that acts in a game outside of the jail: in a thread, which waits for the reply to each action.

A cell of a session calls ``begin`` or ``proceed``, and prints the program's next action.
"""

import json
import threading
import traceback
from collections.abc import Callable, Sequence
from queue import SimpleQueue

POLICY = __name__
"""Module from which a cell imports ``begin`` and ``proceed``."""
ACTION = "ACTION "
"""Beginning of the last line that a cell prints if the program acts, before the action as JSON."""
MOST = 300
"""Characters of an action. A longer one is cut."""

_lines: SimpleQueue[str] = SimpleQueue()
"""Last lines of cells: an action, or why the program ended."""
_replies: SimpleQueue[str] = SimpleQueue()


def begin(program: str, commands: Sequence[tuple[str, str]]) -> None:
    """Run a program up to its first action, or to its end.

    ``commands`` are names of functions with a form of their action, such as ``take {} from {}``. Functions with several
    forms choose by their number of arguments.
    """
    forms: dict[str, dict[int, str]] = {}
    for name, form in commands:
        forms.setdefault(name, {})[form.count("{}")] = form
    space = {name: _function(name, overloads) for name, overloads in forms.items()}

    def run() -> None:
        try:
            exec(compile(program, "program", "exec"), {"__name__": "__main__", **space})
            _lines.put("")
        except BaseException as error:
            trace = error.__traceback__.tb_next if error.__traceback__ else None
            _lines.put("".join(traceback.format_exception(type(error), error, trace)))

    threading.Thread(target=run, daemon=True).start()
    print(f"\n{_lines.get()}")


def proceed(reply: str) -> None:
    """Give the reply to the action, and run the program up to its next action, or to its end."""
    _replies.put(reply)
    print(f"\n{_lines.get()}")


def _function(name: str, forms: dict[int, str]) -> Callable[..., str]:
    def act(*values: object) -> str:
        if len(values) not in forms:
            counts = " or ".join(map(str, sorted(forms)))
            raise TypeError(f"{name} takes {counts} arguments, not {len(values)}")
        _lines.put(ACTION + json.dumps(forms[len(values)].format(*values)[:MOST]))
        return _replies.get()

    return act
