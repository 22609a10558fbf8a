"""Steps per second of other packages' environments: through coterie, and by driving the package directly.

    make test-textworld                  # once: makes .venv-textworld, which has TextWorld
    .venv-textworld/bin/python bench/environments.py

Both sides play one session in one process, with the same actions, in turns. On coterie's side a step is all of its
loop: the prompt, the agent's turn (of a script), the act, the tree. Beginnings are not counted. TextWorld and ALFWorld
get random possible commands. ALFWorld's games are made from the rows of the tests, or of ``--alfworld FILE``.
AgentGym's server is the stand-in of the tests, in a process of its own, for both sides; the direct side
posts the same bodies by ``httpx2.Client``. The last line is one JSON object:

    textworld_of_direct, alfworld_of_direct, agentgym_of_direct   steps per second through coterie over direct ones:
                        the median over pairs of sessions; null where the package is not installed
"""

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.timing import rounds
from coterie.environments.acting import Acting, write_action
from coterie.environments.protocol import Shared
from coterie.record.tree import Task, Tree
from coterie.rollout.branches import Branches
from coterie.rollout.sessions import Sessions
from tests.helpers.script_games import Script

ROOT = Path(__file__).parents[1]
STEPS, PAIRS, SESSIONS = 40, 20, 3
"""Steps of a session (fewer if its game ends), pairs, and sessions of each side in a pair; ALFWorld has one."""
PASSIVE = ("look", "inventory", "examine")
"""Commands that change no game, which coterie answers without TextWorld."""
Direct = Callable[[Task, Sequence[str]], float]
"""Plays actions of a task without coterie, and returns the seconds of the steps."""


async def through(environment: Acting, task: Task, actions: Sequence[str]) -> float:
    """Play actions by coterie's loop; return the seconds of the steps."""
    left = iter(map(write_action, actions))
    samplers = {"agent": Script(lambda _: next(left), shown=None)}
    async with Sessions(1, 600.0) as sessions:
        tree = Tree(task.id, "bench", 0)
        branches = Branches(environment, samplers, task, tree, sessions, 0, Shared(), 600.0)
        at = await branches.start()
        began = time.perf_counter()
        for draw in range(len(actions)):
            at = await branches.advance(at, await branches.respond(at, {"agent": draw}, draw))
        seconds = time.perf_counter() - began
        await branches.close()
    assert len(tree.turns) >= 2 * len(actions), "each action has a turn and an observation, or ends"
    return seconds


def timed(step: Callable[[str], object], actions: Sequence[str]) -> float:
    """Return the seconds of direct steps."""
    began = time.perf_counter()
    for action in actions:
        step(action)
    return time.perf_counter() - began


def compare(
    name: str,
    environment: Acting,
    direct: Direct,
    sessions: Sequence[tuple[Task, Sequence[str]]],
    seconds: float,
    batch: int = SESSIONS,
) -> float:
    """Return the median of the ratios of pairs of sessions; print it with its range."""
    ratios, rates = list[float](), dict[str, list[float]]({"coterie": [], "direct": []})
    for number in rounds(len(sessions) // batch, seconds):
        games = sessions[number * batch :][:batch]
        times = dict.fromkeys(rates, 0.0)
        for side in sorted(times, reverse=bool(number % 2)):
            for task, actions in games:
                if side == "coterie":
                    times[side] += asyncio.run(through(environment, task, actions))
                else:
                    times[side] += direct(task, actions)
        if number:  # the first pair warms up
            ratios.append(times["direct"] / times["coterie"])
            for side, taken in times.items():
                rates[side].append(sum(len(actions) for _, actions in games) / taken)
    middle = statistics.median(ratios)
    medians = ", ".join(f"{side} {statistics.median(one):,.0f}" for side, one in rates.items())
    print(
        f"{name}: {middle:.2f} of direct, {min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} pairs; "
        f"steps per second: {medians}"
    )
    return round(middle, 3)


def random_actions(game: Any, rng: random.Random, skip: tuple[str, ...] = ()) -> list[str]:
    """Return random possible commands, without one that ends the game."""
    state, actions = game.reset(), list[str]()
    while len(actions) < STEPS:
        command = rng.choice([o for o in state["admissible_commands"] if not o.startswith(skip)])
        state, _, done = game.step(command)
        if done:
            break
        actions.append(command)
    return actions


def textworld(seconds: float) -> float:
    from textworld.core import EnvInfos
    from textworld.envs.tw import TextWorldEnv

    from coterie.environments.games.textworld import TextWorld, TextWorldSettings

    environment = TextWorld(TextWorldSettings(steps=2 * STEPS))

    def load(task: Task) -> Any:
        game = TextWorldEnv(EnvInfos(admissible_commands=True))
        game.load(environment.game(task).game["path"])
        return game

    def direct(task: Task, actions: Sequence[str]) -> float:
        game = load(task)
        game.reset()
        return timed(game.step, actions)

    tasks, count = environment.tasks("heldout", 2 * PAIRS * SESSIONS, 0), PAIRS * SESSIONS
    sessions = []
    for number, task in enumerate(tasks):
        environment.game(task).ask()  # makes the game
        skip = PASSIVE * (number < count)
        sessions.append((task, random_actions(load(task), random.Random(number), skip)))
    name = "TextWorld without look, inventory and examine"
    compare(name, environment, direct, sessions[:count], seconds)
    return compare("TextWorld", environment, direct, sessions[count:], seconds)


def alfworld(rows: Sequence[Path], seconds: float) -> float:
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    from textworld.core import EnvInfos
    from textworld.envs import PddlEnv

    from coterie.environments.games.alfworld import ALFWorld, ALFWorldSettings
    from tests.alfworld.games import ROWS, write_games

    with TemporaryDirectory() as place:
        folder = write_games(Path(place), rows or ROWS)
        split = "train" if (folder / "train").is_dir() else "heldout"
        environment = ALFWorld(ALFWorldSettings(folder=place, steps=2 * STEPS))

        def load(task: Task) -> Any:
            game = AlfredDemangler(PddlEnv(EnvInfos(admissible_commands=True, won=True)))
            game.load(environment.game(task).game["path"])
            return game

        def direct(task: Task, actions: Sequence[str]) -> float:
            game = load(task)
            game.reset()
            return timed(game.step, actions)

        tasks = environment.tasks(split, PAIRS, 0)
        sessions = [
            (task, random_actions(load(task), random.Random(number)))
            for number, task in enumerate(tasks)
        ]
        return compare("ALFWorld", environment, direct, sessions, seconds, batch=1)


@contextmanager
def gym_server(world: str) -> Iterator[str]:
    """The URL of a stand-in for a server of AgentGym, in a process of its own."""
    command = [sys.executable, "-m", "tests.helpers.agentgym_server", world]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def agentgym(seconds: float) -> float:
    from coterie.environments.bridges.agentgym import AgentGym, AgentGymSettings

    with gym_server("textcraft") as url, httpx2.Client(base_url=url, trust_env=False) as http:

        def post(route: str, body: dict[str, Any]) -> Any:
            return http.post(route, json=body).json()

        def direct(task: Task, actions: Sequence[str]) -> float:
            id_ = post("/create", {})["id"]
            post("/reset", {"id": id_, "data_idx": task.public["index"]})
            taken = timed(lambda action: post("/step", {"id": id_, "action": action}), actions)
            post("/close", {"id": id_})
            return taken

        environment = AgentGym(AgentGymSettings(world="textcraft", url=url, steps=2 * STEPS))
        tasks = environment.tasks("train", PAIRS * SESSIONS, 0)
        sessions = [(task, ["look"] * STEPS) for task in tasks]
        return compare("AgentGym", environment, direct, sessions, seconds)


def main() -> None:
    """Measure each installed package, print, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=120, help="begin no pair that ends later")
    parser.add_argument(
        "--alfworld", type=Path, nargs="*", default=[], metavar="FILE",
        help="rows of ALFWorld's games; the name of a file is a split",
    )  # fmt: skip
    args = parser.parse_args()
    results: dict[str, float | None] = dict.fromkeys(("textworld", "alfworld", "agentgym"))
    if find_spec("textworld"):
        results["textworld"] = textworld(args.seconds)
    else:
        print("TextWorld is not installed: make test-textworld installs it into .venv-textworld")
    if find_spec("alfworld"):
        results["alfworld"] = alfworld(args.alfworld, args.seconds)
    else:
        print("ALFWorld is not installed: pip install -e '.[alfworld]'")
    results["agentgym"] = agentgym(args.seconds)
    print(json.dumps({f"{name}_of_direct": value for name, value in results.items()}))


if __name__ == "__main__":
    main()
