"""Stand-ins for AgentGym's servers: their routes, bodies, replies and quirks, around small games of our own.

    python -m tests.helpers.agentgym_server WORLD [PORT]

The games are not AgentGym's. In most, a switch has to be pressed a few times. ``maze`` and ``wordle`` have the rules of
theirs. Facts are those of AgentGym at 3ef9235; ``docs/howto/agentgym.md`` says which real servers were tried.
"""

import asyncio
import contextlib
import itertools
import re
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, Protocol

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

TOOLS = ("academia", "movie", "sheet", "todo", "weather")
BY_ID = ("babyai", "textcraft", "sciworld", "alfworld", "maze", "wordle")
"""Worlds whose sessions have the key ``id``, and whose errors have status 200."""
WORLDS = (*BY_ID, "webshop", "webarena", "sqlgym", "searchqa", *TOOLS)
CLOSING = ("babyai", "textcraft", "sciworld", "searchqa", "webarena")
"""Worlds with a route ``/close``."""
GREETINGS = {
    "babyai": "This is environment BabyAI.",
    "textcraft": "This is environment TextCraft.",
    "sciworld": "This is environment ScienceWorld.",
    "alfworld": "This is environment AlfWorld.",
    "maze": "This is environment LMRL-Gym.",
    "wordle": "This is environment LMRL-Gym.",
}
INDEX = {
    **dict.fromkeys(("babyai", "textcraft", "sciworld"), "data_idx"),
    **dict.fromkeys(("alfworld", "maze"), "game"),
    **dict.fromkeys(("searchqa", *TOOLS), "id"),
    **{"wordle": "seed", "webshop": "session_id", "webarena": "idx", "sqlgym": "item_id"},
}
OTHER = {"alfworld": {"world_type": "Text"}, "webarena": {"seed": 0}}
"""Other required keys of the body of ``/reset``."""
COUNTS = {"sciworld": 4639, "alfworld": 2620, "maze": 26, "webarena": 812, "sqlgym": 10962,
          "searchqa": 221328, "academia": 20, "movie": 238, "sheet": 20, "todo": 155, "weather": 343}  # fmt: skip
"""Numbers of tasks, of servers that refuse others."""
PRESS = {
    **dict.fromkeys(("babyai", "textcraft", "sciworld", "alfworld"), "press {}"),
    **dict.fromkeys(TOOLS, 'Action: press with Action Input: {{"switch": "{}"}}'),
    **{"webshop": "click[{}]", "webarena": "```click [{}]```", "sqlgym": "SELECT {}"},
    "searchqa": "<answer>{}</answer>",
}
"""Actions as they reach the server."""


class Game(Protocol):
    """A game in play."""

    def start(self, index: int) -> str: ...

    def step(self, action: str) -> tuple[str, float, bool]:
        """Return the observation, the reward and True at the end."""


class Switches:
    """Press the right one of three switches one or two times; each press of it has half of the reward."""

    def __init__(self, world: str) -> None:
        before, after = PRESS[world].format("|").split("|")
        self.form = re.compile(rf"{re.escape(before)}(\d){re.escape(after)}")

    def start(self, index: int) -> str:
        self.goal, self.needed, self.pressed = index % 3, 1 + index % 2, 0
        return f"Goal: press {self.goal} {self.needed} times. The lamp is off."

    def step(self, action: str) -> tuple[str, float, bool]:
        match = self.form.fullmatch(action)
        if match is None:
            return "Nothing happens.", 0.0, False
        right = int(match[1]) == self.goal
        self.pressed += right
        done = self.pressed == self.needed
        return f"Click. Presses: {self.pressed}.", (1.0 if done else 0.5) if right else 0.0, done


class Maze:
    """A maze of 3 by 9 squares. Walls stop a move; at most 50 moves."""

    ROWS = ("...#.....", ".#.#.###.", ".#...#G..")

    def start(self, index: int) -> str:
        free = [(x, y) for x in range(3) for y in range(9) if self.ROWS[x][y] == "."]
        self.at, self.moves = free[index % len(free)], 0
        return self._view()

    def step(self, action: str) -> tuple[str, float, bool]:
        if self.moves == 50:
            return "Failure\n", -1.0, True
        self.moves += 1
        x, y = self.at
        steps = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
        dx, dy = steps.get(action.removeprefix("move "), (0, 0))
        if self._free(x + dx, y + dy):
            self.at = (x + dx, y + dy)
        if self.ROWS[self.at[0]][self.at[1]] == "G":
            return "Success\n", 1.0, True
        return self._view(), 0.0, False

    def _free(self, x: int, y: int) -> bool:
        return 0 <= x < 3 and 0 <= y < 9 and self.ROWS[x][y] != "#"

    def _view(self) -> str:
        x, y = self.at
        sides = {"right": (0, 1), "left": (0, -1), "above": (-1, 0), "below": (1, 0)}
        walls = [name for name, (dx, dy) in sides.items() if not self._free(x + dx, y + dy)]
        return f"Goal: 2, 6. You: {x}, {y}. Walls: {', '.join(walls) or 'none'}."


class Wordle:
    """Six guesses. Marks: ``g`` right place, ``y`` elsewhere in the word, ``b`` not in the word."""

    VOCABULARY = ("crane", "stone", "eerie", "melon", "lemon", "amber")

    def start(self, index: int) -> str:
        self.word, self.guesses = self.VOCABULARY[index % len(self.VOCABULARY)], 0
        return "Let's start!"

    def step(self, action: str) -> tuple[str, float, bool]:
        guess = action.replace(" ", "")
        self.guesses += 1
        over = self.guesses == 6
        if guess not in self.VOCABULARY:
            return "invalid word", 0.0, over
        marks = [
            "g" if one == right else "y" if one in self.word else "b"
            for one, right in zip(guess, self.word, strict=True)
        ]
        won = guess == self.word
        return " ".join(marks), float(won), over or won


def game(world: str) -> Game:
    return {"maze": Maze, "wordle": Wordle}.get(world, lambda: Switches(world))()


class Gym:
    """The server of a world.

    ``busy`` rejects every third request with status 503. ``drift`` changes observations after that many resets.
    """

    def __init__(
        self,
        world: str,
        busy: bool = False,
        drift: int | None = None,
        make: Callable[[str], Game] = game,
    ) -> None:
        self.world = world
        self.busy = busy
        self.drift = drift
        self.make = make
        self.url = ""
        self.games: dict[int, Game] = {}
        """Open sessions."""
        self.rewards: dict[int, float] = {}
        self.scores: dict[int, float] = {}
        self.texts: dict[int, str] = {}
        self.finished: set[int] = set()
        self.created = self.requests = self.resets = 0
        self.beginning = self.most_beginning = 0
        """Requests of ``/create`` and ``/reset`` at a time: now, and at most."""
        self.steps: list[str] = []
        self.closes: list[int] = []
        """Actions, and ids of sessions to close, in order of arrival."""
        self._ids = itertools.count() if world != "webshop" else itertools.count(48_000_000, 7)

    def restart(self, first: int) -> None:
        """Forget all sessions, as a new server does, and give new ones the ids from ``first`` on."""
        self.games.clear()
        self._ids = itertools.count(first)

    def app(self) -> Starlette:
        prefix = f"/{self.world}" if self.world in ("maze", "wordle") else ""
        posts = {"/create": self.create, "/reset": self.reset, "/step": self.step}
        if self.world in CLOSING:
            posts["/close"] = self.close
        routes = [Route(prefix + path, run, methods=["POST"]) for path, run in posts.items()]
        routes += [Route("/", self.greet), Route(f"{prefix}/observation", self.observe)]
        if self.world == "wordle":
            routes.append(Route(f"{prefix}/filtered_vocab", self.vocabulary))
        errors: Mapping[Any, Any] = {Unknown: self.unknown, Missing: missing}
        return Starlette(routes=routes, exception_handlers=errors)

    # -- routes -----------------------------------------------------------------------------------

    async def greet(self, request: Request) -> Response:
        if self.world == "webarena":
            return PlainTextResponse("ok")
        return JSONResponse(GREETINGS.get(self.world, "ok"))

    async def create(self, request: Request) -> Response:
        if self.world == "textcraft":
            await request.json()
        if self.world in ("searchqa", *TOOLS):
            field(await request.json(), "id")
        if self.world == "sqlgym" and len(self.games) == 8:  # it gives the oldest one again
            number = list(self.games)[self.created % 8]
        else:
            number = next(self._ids)
            self.games[number] = self.make(self.world)
        self.created += 1
        async with self._begin():
            pass
        if self.world == "webarena":
            return JSONResponse({"env_idx": number})
        if self.world not in BY_ID:
            return JSONResponse(number)
        own = {"observation": "A task that nobody asked for."} if self.world == "textcraft" else {}
        return JSONResponse({"id": number, **own})

    async def reset(self, request: Request) -> Response:
        if self._reject():
            return Response(status_code=503)
        body = await request.json()
        number, index = self._session(body), field(body, INDEX[self.world])
        for name, value in OTHER.get(self.world, {}).items():
            if field(body, name) != value:
                raise Unknown(f"{name} must be {value}")
        if index >= COUNTS.get(self.world, 10**9):
            raise Unknown("list index out of range")
        async with self._begin():
            self.resets += 1
        self.finished.discard(number)
        text = self.texts[number] = self._drift(self.games[number].start(index))
        self.rewards[number] = self.scores[number] = 0.0
        if self.world in ("webshop", "sqlgym"):
            return JSONResponse([text, None])
        if self.world in ("searchqa", *TOOLS):
            return JSONResponse(text)
        if self.world == "sciworld":
            goal, _, view = text.partition(". ")
            reply = {"task_description": goal, "observation": view, "score": 0, "done": False}
        else:
            reply = {"observation": text, "reward": 0, "done": False}
        return JSONResponse(reply | self._actions())

    async def step(self, request: Request) -> Response:
        if self._reject():
            return Response(status_code=503)
        body = await request.json()
        number, action = self._session(body), field(body, "action")
        if number in self.finished and self.world not in ("textcraft", "searchqa", *TOOLS):
            raise Unknown(f"The task with environment {number} has finished.")
        self.steps.append(action)
        text, reward, done = self.games[number].step(action)
        if self.world == "babyai":  # a reward stays while actions are unknown, and is added again
            known = text != "Nothing happens."
            reward = self.rewards[number] = reward * 0.9 if known else self.rewards[number]
            done = done and reward > 0.5
        if self.world == "weather" and reward > 0:
            reward = 1.0
        text = self.texts[number] = self._drift(text)
        self.scores[number] += reward
        if done:
            self.finished.add(number)
        reply: dict[str, Any] = {"observation": text, "reward": reward, "done": done}
        if self.world == "babyai":
            reply["score"] = self.scores[number]
        if self.world == "sciworld":
            reply |= {"reward": 7, "score": 100 if done else round(50 * reward)}
        if self.world in ("webshop", "sqlgym"):
            reply = {"state": text, "reward": reward, "done": done, "info": None}
        if self.world == "webarena":  # its reward of a step is that it could be carried out
            reply = {"observation": text, "reward": 1.0, "terminated": done, "truncated": False}
        return JSONResponse(reply | self._actions())

    async def observe(self, request: Request) -> Response:
        return JSONResponse(self.texts[self._session(request.query_params)])

    async def vocabulary(self, request: Request) -> Response:
        self._session(request.query_params)
        return JSONResponse(Wordle.VOCABULARY)

    async def close(self, request: Request) -> Response:
        body = await request.json()
        self.closes.append(body.get("id", -1))
        del self.games[self._session(body)]
        return JSONResponse({"closed": "closed"} if self.world == "webarena" else True)

    @contextlib.asynccontextmanager
    async def _begin(self) -> AsyncIterator[None]:
        self.beginning += 1
        self.most_beginning = max(self.most_beginning, self.beginning)
        await asyncio.sleep(0.005)
        yield
        self.beginning -= 1

    # -- quirks -----------------------------------------------------------------------------------

    def _session(self, body: Mapping[str, Any]) -> int:
        number = int(field(body, "id" if self.world in BY_ID else "env_idx"))
        if number not in self.games:
            raise Unknown(f"The id {number} is not valid.")
        return number

    def _actions(self) -> dict[str, Any]:
        actions = ["press 0", "press 1", "press 2", "look"]
        return {"available_actions": actions} if self.world == "alfworld" else {}

    def _reject(self) -> bool:
        self.requests += 1
        return self.busy and self.requests % 3 == 0

    def _drift(self, text: str) -> str:
        return text + " It rains." * (self.drift is not None and self.resets > self.drift)

    async def unknown(self, request: Request, error: Exception) -> Response:
        if self.world in BY_ID:
            return JSONResponse({"error": str(error)})
        return PlainTextResponse("Internal Server Error", 500)


class Unknown(Exception):
    """An error within the server."""


class Missing(Exception):
    """A key that the body lacks."""


def field(body: Mapping[str, Any], name: str) -> Any:
    if name not in body:
        raise Missing(name)
    return body[name]


async def missing(request: Request, error: Exception) -> Response:
    return JSONResponse({"detail": [{"type": "missing", "loc": ["body", str(error)]}]}, 422)


@contextlib.contextmanager
def serve_gym(gym: Gym, port: int = 0) -> Iterator[Gym]:
    """Serve in a thread of its own, since coterie checks a server before its event loop runs."""
    config = uvicorn.Config(gym.app(), log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    with contextlib.closing(socket.create_server(("127.0.0.1", port))) as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else a reply takes 40 ms
        gym.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            yield gym
        finally:
            server.should_exit = True
            thread.join()


if __name__ == "__main__":
    world, port, *_ = (*sys.argv[1:], "0")
    with serve_gym(Gym(world), int(port)) as gym:
        print(gym.url, flush=True)
        while True:
            time.sleep(1)
