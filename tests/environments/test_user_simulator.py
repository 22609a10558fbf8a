"""Simulated users of an environment of one's own: prompts, secrets, leaks, and whole commands."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from coterie.engines.chat_model import Answer
from coterie.engines.endpoint import Utterance
from coterie.environments.pages.micro_world import Pages
from coterie.environments.protocol import Shared
from coterie.environments.user_simulator import (
    ModelUserSimulator,
    UserSimulatorSettings,
    check_user,
)
from coterie.errors import UserError
from coterie.recipes.plan import content_of
from coterie.record.store import Store
from coterie.record.tree import Secret, Task
from coterie.rollout.episodes import Driver, Episode, EpisodeResult
from coterie.rollout.samplers import UserSampler
from tests.conftest import Cli, once
from tests.helpers.packaged_environments import packaged_environment
from tests.helpers.run_rl import SMALL
from tests.helpers.script_games import Script

ERRAND = f"{Path(__file__).parents[2]}/examples/errand.py:Errand"
WISH = "black only, to go with my shoes."
TASK = Task(
    "t",
    {"item": "coat", "sizes": [3, 4], "price": 9.5},
    {
        "wish": Secret(WISH, name="wish", readers=frozenset({"customer"})),
        "gold": Secret("42", name="gold", readers=frozenset({"grader"})),
    },
)


class Echo:
    """A chat model that says what it is given to say, and keeps its prompts."""

    name = "model:echo"

    def __init__(self, text: str = "Yes.") -> None:
        self.text, self.prompts = text, list[str]()

    async def ask(self, chat: Sequence[Utterance], seed: int) -> Answer:
        self.prompts += [one.text for one in chat]
        return Answer(self.text, truncated=False)


def model_user(prompt: str | None) -> UserSimulatorSettings:
    return UserSimulatorSettings(model="tiny-exchange", prompt=prompt)


def test_a_prompt_has_what_the_person_knows_and_the_dialogue() -> None:
    prompt = "{item} {sizes} {price} {wish} {{x}} {} {max_characters}\n{transcript}"
    chat = Echo("One. " * 9)
    settings = UserSimulatorSettings(model="m", prompt=prompt, max_characters=20)
    user = ModelUserSimulator(chat, settings, packaged_environment(ERRAND), "customer")
    transcript = [("agent", "Which color?"), ("person", "Guess."), ("agent", "Red?")]
    assert asyncio.run(user.reply(TASK, transcript, 0)) == "One. One. One. One."
    assert chat.prompts == [
        f"coat [3, 4] 9.5 {WISH} {{x}} {{}} 20\n"
        "Assistant: Which color?\nYou: Guess.\nAssistant: Red?\nYou:"
    ]


@pytest.mark.parametrize(
    ("prompt", "problem", "fix"),
    [
        ("{wsh} {transcript}", "has {wsh}, which customer does not know", "use {item}, {sizes}"),
        ("{gold} {transcript}", "has {gold}, which customer does not know", "write {{gold}}"),
        ('{"a": 1} {transcript}', 'has {"a": 1}', 'write {{"a": 1}} for braces'),
        ("{item.real} {transcript}", "has {item.real}", "{wish}, {transcript}, {max_characters};"),
        ("You want {wish}", "does not show the dialogue", "put {transcript} into it"),
    ],
)
def test_a_prompt_with_other_names_is_refused(prompt: str, problem: str, fix: str) -> None:
    environment = packaged_environment(ERRAND)
    with pytest.raises(UserError) as raised:
        check_user(environment, model_user(prompt), [TASK])
    assert problem in raised.value.what and fix in raised.value.todo
    assert "42" not in str(raised.value)


def test_a_prompt_about_pages_names_the_pages() -> None:
    tasks = Pages().tasks("train", 2, 0)
    check_user(Pages(), model_user("{reference} {pages}"), tasks)
    check_user(Pages(), model_user("{transcript}"), tasks)
    with pytest.raises(UserError, match=r"put \{transcript\} or \{pages\} into it"):
        check_user(Pages(), model_user("{question}"), tasks)


def play(texts: Sequence[str], reply: str, **settings: Any) -> EpisodeResult:
    """Play the errand with a seller who says these texts, and a customer who always replies the same."""
    overrides = [f"environment.{name}={value}" for name, value in settings.items()]
    environment, said = packaged_environment(ERRAND, *overrides), iter(texts)
    user = ModelUserSimulator(Echo(reply), model_user(None), environment, "customer")
    samplers = {"seller": Script(lambda _: next(said)), "customer": UserSampler(user)}
    task = environment.tasks("train", 2, 0)[1]
    assert task.secrets["wish"].reveal("customer") == WISH

    async def played() -> EpisodeResult:
        driver = Driver(environment, samplers, seed=0, shared=Shared())
        async with driver.play_all([Episode(task, 0, 0, "rollout")]) as playing:
            return [one async for one in playing].pop()

    return asyncio.run(played())


@pytest.mark.parametrize(
    ("reply", "leaks"),
    [
        ("Black, please.", 0),
        ("Something to go with my shoes, if you have it", 0),
        ("It is: BLACK only,  to go with\nmy shoes", 1),
        (f"'{WISH}'", 1),
    ],
)
def test_a_reply_that_quotes_a_secret_is_a_leak_in_any_environment(reply: str, leaks: int) -> None:
    """What the seller says is none, although it has the same words."""
    for on_leak, score in (("keep", 1.0), ("fail", 0.0), ("drop", None)):
        result = play([f"Color? {WISH}", "SOLD: black"], reply, on_leak=on_leak)
        assert result.failure is None and result.tree is not None
        assert result.metrics["leaks"] == leaks
        ((outcome, _),) = result.tree.trajectories()
        assert outcome.score == (score if leaks else 1.0)


ASKS = "user_simulator.prompt=You want a {item}: {wish}\n{transcript}"
MODEL = ("user_simulator=tiny-exchange", "user_simulator.max_tokens=4")
FEW = ("rollout.tasks=1", "rollout.rollouts_per_task=2", "rollout.max_tokens=6", "evaluate.tasks=1")
TRAINED = ("model=tiny-exchange", *once(*SMALL, *FEW), "steps.count=1")


def test_a_policy_is_trained_with_a_model_as_the_user(cli: Cli) -> None:
    """Another prompt makes what was sampled invalid."""
    words = ("rl/grpo", f"environment={ERRAND}", *TRAINED, *MODEL)
    ran = cli("run", *words, ASKS, "--folder", "run")
    assert ran.code == 0, ran.err
    with Store.open(Path("run/store.sqlite"), read_only=True) as store:
        turns = [turn for tree in store.trees(0, "evaluate") for turn in tree.turns.values()]
    customers = {turn.author for turn in turns if turn.speaker.name == "customer"}
    assert customers == {"model:tiny-exchange"}
    assert "leaks" in ran.err
    again = cli("run", *words, ASKS.replace("want", "need"), "--folder", "run")
    assert again.code == 2 and "user_simulator.prompt" in again.err


def test_equal_requests_of_persons_with_other_wishes_are_other_tasks() -> None:
    environment = packaged_environment(ERRAND)

    def content(wish: str, gold: str) -> str:
        texts = (("wish", wish, "customer"), ("gold", gold, "grader"))
        secrets = {n: Secret(text, name=n, readers=frozenset({who})) for n, text, who in texts}
        return content_of(Task("t", {"item": "coat"}, secrets), environment)

    assert content("red", "1") == content("red", "2") != content("blue", "1")
