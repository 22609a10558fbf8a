"""What the driver itself costs: microseconds of a step of a pure environment, with scripted samplers and no store.

    .venv/bin/python bench/driver.py

A thousand episodes of two players who act at the same time are in flight, for eight rounds of three turns each.
``step_us`` is all the time over all steps (what the actors are shown, their turns, the act, the observation, the new
state); ``turn_us`` is that over all turns. The median of rounds counts, and ``spread`` is the smallest and the largest.
The last line is one JSON object.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.timing import rounds
from coterie.environments.protocol import Shared
from coterie.rollout.episodes import Driver, Episode
from tests.helpers.script_games import Rounds, Script

IN_FLIGHT, ROUNDS, TURNS = 1000, 8, 3


async def play(driver: Driver, episodes: list[Episode]) -> None:
    """Play all episodes; every one must end as it should."""
    async with driver.play_all(episodes) as playing:
        async for one in playing:
            assert one.tree is not None and len(one.tree.turns) == ROUNDS * TURNS, one.failure


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="time limit of all rounds")
    args = parser.parse_args()
    game = Rounds(rounds=ROUNDS)
    samplers = {
        name: Script(lambda prompt: f"{prompt.agent} {prompt.draw}", shown=None)
        for name in game.actors
    }
    driver = Driver(game, samplers, seed=0, shared=Shared(), seconds=60)
    tasks = game.tasks("train", IN_FLIGHT, 0)
    step_us: list[float] = []
    for number in rounds(7, args.seconds):
        began = time.perf_counter()
        asyncio.run(play(driver, [Episode(task, 0, number, "rollout") for task in tasks]))
        step_us.append((time.perf_counter() - began) / (IN_FLIGHT * ROUNDS) * 1e6)
    step = statistics.median(step_us[1:] or step_us)
    found = {
        "step_us": round(step, 1),
        "turn_us": round(step / TURNS, 1),
        "spread": [round(min(step_us), 1), round(max(step_us), 1)],
        "in_flight": IN_FLIGHT,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
