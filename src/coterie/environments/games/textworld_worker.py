"""Process that makes and plays games of the package ``textworld``, started by ``environments.games.textworld``.

The package is not thread-safe. Games without Inform have no text, so their texts are made here from the facts of the
state.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from numpy.random import RandomState
from textworld.core import EnvInfos
from textworld.envs.tw import TextWorldEnv
from textworld.generator import make_game
from textworld.generator.data import KnowledgeBase
from textworld.generator.game import GameOptions

from coterie.environments.games.text_game_worker import serve_games

TRIES = 20
"""Number of games drawn from a seed until the quest of one has the set length."""
SEEDS = ("map", "objects", "quest", "grammar")
MOST_PARTIAL_SEED = 65635
"""As in the package, so the first game of a seed is the game of ``tw-make`` with this seed."""
DIRECTIONS = ("north", "east", "south", "west")
PASSIVE = ("look", "inventory", "examine")
"""Commands that change nothing, which the package would take as long for as for others."""
STATES = ("open", "closed", "locked")


def make(path: Path, seed: int, rooms: int, objects: int, length: int) -> None:
    """Make the game of a seed and save it, if it is not there. Raises ``ValueError`` if no quest has the length."""
    if path.exists():
        return
    rng = RandomState(seed)
    for _ in range(TRIES):
        options = GameOptions()
        options.kb = KnowledgeBase.default()  # else it is parsed again for each game
        options.nb_rooms, options.nb_objects, options.quest_length = rooms, objects, length
        options.seeds = {name: int(rng.randint(MOST_PARTIAL_SEED)) for name in SEEDS}
        game = make_game(options)
        # The generator may return a quest that is shorter than requested.
        if len(game.metadata["walkthrough"]) == length:
            break
    else:
        raise ValueError(f"no quest of {length} commands in {TRIES} games of seed {seed}")
    path.parent.mkdir(parents=True, exist_ok=True)
    # Several processes may make the same game, so each writes its own file and renames it.
    partial = path.with_name(f"{os.getpid()}-{path.name}")
    game.save(str(partial))
    partial.rename(path)


@lru_cache(16)
def actions_of(path: Path) -> dict[frozenset[Any], tuple[Any, ...]]:
    """Return the possible actions in the states of a game so far, which its branches share."""
    return {}


def keep_actions(state: Any, actions: dict[frozenset[Any], tuple[Any, ...]]) -> None:
    """Find the possible actions of equal states once, which takes a third of a command."""
    find: Callable[..., Iterator[Any]] = state.all_applicable_actions

    def find_once(*rules: Any) -> tuple[Any, ...]:
        facts = frozenset(state.facts)
        if facts not in actions:
            actions[facts] = tuple(find(*rules))
        return actions[facts]

    state.all_applicable_actions = find_once


class Play:
    """One game in play."""

    def __init__(self, path: Path) -> None:
        self.environment = TextWorldEnv(EnvInfos())
        self.environment.load(str(path))
        self.state: Any = self.environment.reset()
        keep_actions(self.state["_game_progression"].state, actions_of(path))
        self.names = {id_: info.name for id_, info in self.state["game"].infos.items()}
        self.commands = 0

    def beginning(self) -> dict[str, Any]:
        game = self.state["game"]
        walkthrough = [str(command) for command in game.metadata["walkthrough"]]
        return {**self._reply(f"{game.objective.strip()} "), "walkthrough": walkthrough}

    def do(self, command: str) -> dict[str, Any]:
        self.commands += 1
        # Commands may be written in any case.
        commands = {
            admissible.lower(): admissible for admissible in self.state["admissible_commands"]
        }
        exact = commands.get(command.lower())
        if exact is None:
            return {**self._reply(), "known": False}
        verb, _, thing = exact.partition(" ")
        if verb not in PASSIVE:
            self.state, _, _ = self.environment.step(exact)
        return self._reply(self._description(thing) if verb == "examine" else "")

    def _description(self, name: str) -> str:
        """Return the fixed part of a description. The rest is code of Inform on states that the view also tells."""
        infos = self.state["game"].infos.values()
        text = next((info.desc for info in infos if info.name == name), None) or ""
        fixed = text.partition("[")[0].strip()
        return f"{fixed.rstrip('.')}. " if fixed else ""

    def _reply(self, prefix: str = "") -> dict[str, Any]:
        state = self.state
        return {
            "text": prefix + view_of(state["_facts"], self.names),
            "commands": [str(command) for command in state["admissible_commands"]],
            "left": len(state["_winning_policy"] or ()),  # policy_commands computes it again
            "end": "won" if state["won"] else "lost" if state["lost"] else "",
            "known": True,
        }

    def close(self) -> None:
        """Do nothing: a game is memory of this process."""


def view_of(facts: Iterable[Any], names: Mapping[str, str]) -> str:
    """Describe the room, visible objects, exits, and what the agent carries.

    ``facts`` are propositions with a name and arguments, such as ``in(key, chest)``.
    """
    # Sorted, so that equal states always have the same text.
    truths = sorted((str(fact.name), tuple(str(v.name) for v in fact.arguments)) for fact in facts)
    # ``P`` is the player, and ``I`` the inventory.
    room = next(args[1] for name, args in truths if name == "at" and args[0] == "P")
    state = {args[0]: name for name, args in truths if name in STATES}
    inside: dict[str, list[str]] = {}
    for name, args in truths:
        if name in ("at", "in", "on") and args[0] != "P":
            inside.setdefault(args[1], []).append(args[0])
    # ``link(room, door, room)`` is a door between two rooms.
    doors = {(args[0], args[2]): args[1] for name, args in truths if name == "link"}
    # ``north_of(other, room)`` gives the rooms next to this one, by direction.
    to = {name: args[0] for name, args in truths if name.endswith("_of") and args[1] == room}

    def members(holder: str) -> str:
        return ", ".join(names[member] for member in inside.get(holder, ())) or "nothing"

    def describe(thing: str) -> str:
        notes = [state[thing]] if thing in state else []
        # Ids of supporters begin with ``s_``. The content of containers is visible if they are
        # open.
        if thing.startswith("s_"):
            notes.append(f"on it: {members(thing)}")
        elif state.get(thing) == "open":
            notes.append(f"in it: {members(thing)}")
        return f"{names[thing]} ({', '.join(notes)})" if notes else names[thing]

    def exit_(direction: str) -> str:
        door = doors.get((room, to[f"{direction}_of"]))
        return direction if door is None else f"{direction} ({names[door]}, {state[door]})"

    things = "; ".join(map(describe, inside.get(room, ()))) or "nothing"
    exits = (
        "; ".join(exit_(direction) for direction in DIRECTIONS if f"{direction}_of" in to) or "none"
    )
    return f"You are in the {names[room]}. You see: {things}. Exits: {exits}. You carry: {members('I')}."


def start(path: str, **size: int) -> Play:
    make(Path(path), **size)
    return Play(Path(path))


if __name__ == "__main__":
    serve_games(start)
