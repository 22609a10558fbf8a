"""Process that plays games of the package ``alfworld``, started by ``environments.games.alfworld``.

The package takes 30 to 300 ms for a command, since it derives the text of every possible command anew, and a second for
the start of a game, of which most is the translation of its PDDL. Both are kept here: a text for each action of a
game, and the translations of the last games. Copies of the planner's library, of which each game in play needs one,
are used again: the package never unloads them, and a process that unloads one crashes when it ends.
"""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import fast_downward
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
from textworld import EnvInfos
from textworld.envs import PddlEnv

from coterie.environments.games.text_game_worker import serve_games

MOST_FILES = 64
"""Number of files whose translations and texts are kept. Branches of a tree start the same game again and again."""
WELCOME = re.compile(r"\s*-=.*?=-\s*")
PUT = re.compile(r"(?:put|move) (.+?) (?:in/on|into|in|on|to) (.+)")

_free_libraries: list[Any] = []
_load_library = fast_downward.load_lib


def load_library() -> Any:
    return _free_libraries.pop() if _free_libraries else _load_library()


fast_downward.load_lib = load_library
fast_downward.pddl2sas = lru_cache(2 * MOST_FILES)(fast_downward.pddl2sas)  # two for each file


@lru_cache(MOST_FILES)
def texts_of(path: str) -> dict[tuple[str, ...], str]:
    """Return the texts of a game's actions so far."""
    return {}


def keep_texts(logic: Any, texts: dict[tuple[str, ...], str]) -> None:
    """Derive the text of each action once: it depends on names and on where places are, which never changes."""
    derive: Callable[[str, dict[str, Any]], str] = logic.grammar.derive
    templates = {action.template for action in logic.actions.values()}

    def derive_once(rule: str, context: dict[str, Any]) -> str:
        # Only texts of actions are cached. Texts of observations depend on the state.
        if rule not in templates:
            return derive(rule, context)
        action = (rule, *(variable.name for variable in context["mapping"].values()))
        if action not in texts:
            texts[action] = derive(rule, context)
        return texts[action]

    logic.grammar.derive = derive_once


class Play:
    """One game in play."""

    def __init__(self, path: str) -> None:
        self.planner = PddlEnv(EnvInfos(admissible_commands=True, won=True))
        self.environment = AlfredDemangler(self.planner)
        self.environment.load(path)
        keep_texts(self.planner._logic, texts_of(path))
        self.state: Any = self.environment.reset()
        self.commands = 0

    def beginning(self) -> dict[str, Any]:
        return self._reply(WELCOME.sub("", self.state.feedback))

    def do(self, command: str) -> dict[str, Any]:
        self.commands += 1
        # The package accepts a command only in the spelling of its own list.
        commands = {
            admissible.lower(): admissible for admissible in self.state["admissible_commands"]
        }
        exact = next(
            (commands[spelling] for spelling in spellings(command.lower()) if spelling in commands),
            None,
        )
        if exact is None:  # the package would derive all texts again
            return {**self._reply(""), "known": False}
        self.state, _, _ = self.environment.step(exact)
        return self._reply(self.state.feedback)

    def close(self) -> None:
        _free_libraries.append(self.planner.downward_lib)

    def _reply(self, text: str) -> dict[str, Any]:
        won = bool(self.state["won"])
        commands = [str(admissible) for admissible in self.state["admissible_commands"]]
        end = "won" if won else ""
        return {"text": text, "commands": commands, "left": int(not won), "end": end, "known": True}


def spellings(command: str) -> Iterator[str]:
    """Yield a command, and with the verb that games of another release have for putting a thing somewhere."""
    yield command
    if put := PUT.fullmatch(command):
        yield f"move {put[1]} to {put[2]}"
        yield f"put {put[1]} in/on {put[2]}"


if __name__ == "__main__":
    serve_games(Play)
