"""Programs that are started elsewhere: their sessions over HTTP, their record, and training on its exact tokens."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from coterie.cli.arguments import read_arguments
from coterie.cli.export import export_data
from coterie.errors import UserError
from coterie.progress import Silent
from coterie.recipes.file_training import FileTraining
from coterie.recipes.gateway_record import ROLLOUT, GatewayRecord
from coterie.recipes.registry import recipe as make_recipe
from coterie.recipes.registry import settings
from coterie.record.store import Store
from coterie.record.tree import Metrics
from coterie.runs.loop import run_stages
from coterie.runs.run import open_run
from tests.conftest import Cli, refused

Visit = Callable[["Client"], Awaitable[None]]
ROLES = ("planner", "checker")


class Client:
    """A program's requests to the gateway."""

    def __init__(self, http: httpx2.AsyncClient, url: str, key: str) -> None:
        self.http, self.url, self.key = http, url, key

    async def post(
        self, path: str, body: Any = None, key: str | None = None
    ) -> tuple[int, dict[str, Any]]:
        head = {"Authorization": f"Bearer {self.key if key is None else key}"}
        url = path if path.startswith("http") else self.url + path
        reply = await self.http.post(url, json=body, headers=head, timeout=60)
        return reply.status_code, reply.json()

    async def open(self, **body: Any) -> dict[str, Any]:
        status, session = await self.post("/sessions", body)
        assert status == 200, session
        return session

    async def ask(self, session: dict[str, Any], role: str, text: str) -> str:
        body = {"model": role, "messages": [{"role": "user", "content": text}]}
        url = f"{session['base_url']}/chat/completions"
        status, reply = await self.post(url, body, session["api_key"])
        assert status == 200, reply
        return str(reply["choices"][0]["message"]["content"])

    async def play(self, number: int, reward: float, **result: Any) -> None:
        session = await self.open(task_id=number, task={"question": f"What is {number} + 1?"})
        for role in session["models"]:
            await self.ask(session, role, f"{role}: what is {number} + 1?")
        path = f"/sessions/{session['id']}/result"
        status, reply = await self.post(path, {"reward": reward, **result}, session["api_key"])
        assert (status, reply["recorded"]) == (200, True)


def serve(folder: Path, visit: Visit, *overrides: str) -> Metrics:
    """Serve a gateway as the command does, until the visit is over."""
    given = ["model=tiny-acts", f"environment.roles=[{','.join(ROLES)}]", "rollout.max_tokens=12"]
    recipe = GatewayRecord(settings("gateway_record", [*given, *overrides]))

    def stop_after_visit(opened: Any, key: str) -> None:
        serving = asyncio.current_task()
        assert serving is not None

        async def run() -> None:
            try:
                async with httpx2.AsyncClient() as http:
                    await visit(Client(http, f"{opened.url}/v1", key))
            finally:
                serving.cancel()

        visits.append(asyncio.ensure_future(run()))

    visits, recipe.on_open = list[asyncio.Future[None]](), stop_after_visit
    with open_run(folder, "gateway_record", recipe.settings) as run:
        if run.is_finished(ROLLOUT):
            run.store.remove(ROLLOUT.finished_key)
        run_stages(recipe, run, Silent())
        visits[0].result()
        return run.metrics(ROLLOUT)


def training(name: str, folder: Path, *overrides: str) -> FileTraining:
    arguments = read_arguments(name, [str(folder), "dataset.heldout=0", *overrides], None)
    recipe = make_recipe(arguments.resolve())
    assert isinstance(recipe, FileTraining)
    return recipe


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two episodes of each of two tasks, recorded by two gateways after each other."""
    folder = tmp_path_factory.mktemp("gateway") / "run"
    for sample in range(2):

        async def visit(client: Client, sample: int = sample) -> None:
            rewards = {"planner": 1.0 - sample, "checker": 0.25}
            await asyncio.gather(*(client.play(n, sample, rewards=rewards) for n in range(2)))

        metrics = serve(folder, visit)
        assert metrics["n"] == 2 * (sample + 1)
    return folder


def sampled_turns(folder: Path) -> dict[tuple[str, str], tuple[int, ...]]:
    """The sampled tokens of each turn, by role and id."""
    with Store.open(folder / "store.sqlite", read_only=True) as store:
        return {
            (turn.speaker.name, turn.id): turn.ids
            for tree in store.trees(0, "rollout")
            for turn in tree.turns.values()
            if turn.sample is not None
        }


def test_supervised_training_has_the_sampled_tokens_of_good_episodes(recorded: Path) -> None:
    turns, recipe = sampled_turns(recorded), training("sft", recorded)
    assert len(turns) == 8 and recipe.settings.model == "tiny-acts"
    targets = [(row, target) for row in recipe.training_items for target in row.targets]
    # The reward of the planner is high in the first episode of each task, and that of the checker is always low.
    assert len(targets) == 2
    for row, target in targets:
        assert turns["planner", target.turn] == row.ids[target.start : target.stop]
    everything = training("sft", recorded, "dataset.threshold=0", "dataset.role=checker")
    assert len(everything.training_items) == 4
    best = training("sft", recorded, "dataset.threshold=0", "dataset.top_share=0.5")
    assert len(best.training_items) == 4


def test_preferences_are_between_episodes_of_a_task_with_different_rewards(recorded: Path) -> None:
    turns = sampled_turns(recorded)
    pairs = training("dpo", recorded).training_items
    assert len(pairs) == 2
    for pair in pairs:
        for side in (pair.chosen, pair.rejected):
            ((target,),) = (row.targets for row in side)
            assert side[0].ids[target.start : target.stop] == turns["planner", target.turn]


def test_the_record_is_a_run_for_exports(recorded: Path, tmp_path: Path) -> None:
    _, counts = export_data(recorded, "jsonl", tmp_path / "rows")
    assert counts == Counter(rows=8)


def test_roles_may_have_models_of_their_own(tmp_path: Path) -> None:
    def visit(client: Client) -> Awaitable[None]:
        return client.play(1, 1.0)

    serve(tmp_path / "run", visit, "models={checker: tiny-exchange}")
    with Store.open(tmp_path / "run/store.sqlite", read_only=True) as store:
        (tree,) = store.trees(0, "rollout")
        samples = [turn.sample for turn in tree.turns.values() if turn.sample is not None]
    assert [sample.policy for sample in samples] == ["policy", "checker"]
    # Each reply has the tokens of its own role's model, which a training on it takes by default.
    for role, model in {"planner": "tiny-acts", "checker": "tiny-exchange"}.items():
        recipe = training("sft", tmp_path / "run", f"dataset.role={role}")
        assert (recipe.settings.model, len(recipe.training_items)) == (model, 1)


def test_the_command_reads_models_of_roles(cli: Cli) -> None:
    assert "'tiny-exchage'" in refused(
        cli, "gateway", "model=tiny-acts", "--roles", "a, b=tiny-exchage"
    )
    assert "must be different" in refused(cli, "gateway", "model=tiny-acts", "--roles", "a,a")
    with pytest.raises(UserError, match="no role 'c'"):
        GatewayRecord(
            settings("gateway_record", ["model=tiny-acts", "models={c: tiny-acts}"])
        ).roles()


def test_training_on_a_record_says_what_is_wrong(recorded: Path) -> None:
    with pytest.raises(UserError, match="its roles are checker, planner"):
        _ = training("sft", recorded, "dataset.role=critic").training_items
    with pytest.raises(UserError, match="no episode to train on"):
        _ = training("sft", recorded, "dataset.threshold=2").training_items
    with pytest.raises(UserError, match="another tokenizer"):
        _ = training("sft", recorded, "model=tiny-persona").training_items


def test_requests_that_are_wrong_get_a_clear_answer(tmp_path: Path) -> None:
    answers, deep = dict[str, tuple[int, str]](), list[Any]()
    for _ in range(400):
        deep = [deep]

    async def visit(client: Client) -> None:
        async def note(name: str, path: str, body: Any, key: str | None = None) -> None:
            status, reply = await client.post(path, body, key)
            answers[name] = status, reply.get("error", {}).get("message", "")

        session = await client.open(task_id="a", task="What is it?")
        path = f"/sessions/{session['id']}/result"
        await note("another key", "/sessions", {}, "none")
        await note("another task", "/sessions", {"task_id": "a", "task": "Another?"})
        await note("an unknown key of the body", "/sessions", {"id": "a"})
        await note("no session", "/sessions/none/result", {"reward": 1})
        await note("another session's key", path, {"reward": 1}, "none")
        await note("no reward", path, {"result": "7"})
        await note("a reward out of range", path, {"reward": 3})
        await note("an unknown role", path, {"reward": 1, "rewards": {"critic": 1}})
        await note("rewards without roles", path, {"reward": 1, "rewards": [1]})
        await note("an empty id", "/sessions", {"task_id": ""})
        await note("a task that can't be read again", "/sessions", {"task": deep})
        await note("no call", path, {"reward": 1})
        await client.play(1, 1.0)
        again = await client.open(task_id="a")
        await client.ask(again, "planner", "What is it?")
        path = f"/sessions/{again['id']}/result"
        assert (await client.post(path, {"reward": 1}))[0] == 200
        await note("a second result", path, {"reward": 1})

    metrics = serve(tmp_path / "run", visit)
    assert (metrics["n"], metrics["failed"]) == (3, 1)
    expected = {
        "another key": (401, "not the one"),
        "another task": (409, "another content"),
        "an unknown key of the body": (400, "the keys task_id, task"),
        "no session": (404, "no session none"),
        "another session's key": (401, "not the key of this session"),
        "no reward": (400, "must be a finite number"),
        "a reward out of range": (400, "reward_range"),
        "an unknown role": (400, "planner, checker"),
        "rewards without roles": (400, "names no roles"),
        "an empty id": (400, "1 to 200 characters"),
        "a task that can't be read again": (400, "not JSON: "),
        "no call": (422, "without a model call"),
        "a second result": (409, "its result is recorded"),
    }
    assert {name: answer[0] for name, answer in answers.items()} == {
        name: status for name, (status, _) in expected.items()
    }
    for name, (_, text) in expected.items():
        assert text in answers[name][1], name


def test_a_session_that_is_not_ended_fails_alone(tmp_path: Path) -> None:
    answers = list[tuple[int, dict[str, Any]]]()

    async def visit(client: Client) -> None:
        left = await client.open()
        await client.ask(left, "planner", "Hello")
        path = f"/sessions/{left['id']}/result"
        while not answers or answers[-1][0] == 400:
            await asyncio.sleep(0.1)
            answers.append(await client.post(path, {"reward": "none yet"}))
        assert answers[-1][0] == 409
        # Sessions beyond the limit wait for their turn.
        await asyncio.gather(*(client.play(n, 1.0) for n in range(6)))

    metrics = serve(tmp_path / "run", visit, "environment.seconds=4", "environment.sessions=2")
    assert (metrics["n"], metrics["failed"]) == (7, 1)
    message = answers[-1][1]["error"]["message"]
    assert "did not call a model or end within 4 s" in message


def test_a_session_at_its_limits_says_so(tmp_path: Path) -> None:
    answers = list[str]()

    async def visit(client: Client) -> None:
        session = await client.open()
        for path, body in (
            (f"{session['base_url']}/chat/completions", {**ASKED, "n": 3}),
            (f"/sessions/{session['id']}/result", {"reward": 1}),
        ):
            _, reply = await client.post(path, body, session["api_key"])
            answers.append(reply["error"]["message"])

    metrics = serve(tmp_path / "run", visit, "environment.turns=2")
    assert (metrics["n"], metrics["failed"]) == (1, 0)
    assert all("reached environment.turns=2" in answer for answer in answers)


ASKED = {"model": "planner", "messages": [{"role": "user", "content": "Hello"}]}
