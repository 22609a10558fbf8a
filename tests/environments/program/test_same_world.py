"""A world that is played natively and as a program is the same world."""

import json
import re
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from coterie.cli.arguments import read_arguments
from coterie.environments.gateway import open_gateway
from coterie.environments.protocol import Environment, Shared
from coterie.environments.registry import TaskSettings, make_environment
from coterie.environments.with_tools import WithTools
from coterie.models.call_syntaxes import openai_tool
from coterie.models.chat import ChatRenderer
from coterie.recipes.registry import recipe as make_training
from coterie.record.store import Store
from coterie.runs.benchmark import benchmark_settings
from coterie.tools.builtin import PythonSettings, PythonTool
from coterie.tools.registry import open_toolbox
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.worker import SandboxSettings
from tests.helpers import program_worlds
from tests.helpers.native_templates import make_native_tokenizer
from tests.helpers.play_programs import make_program, play_program
from tests.helpers.program_worlds import write_exchange
from tests.helpers.run_rl import final_weights, informative_overrides, make_recipe, run_to_end


def read_turns(folder: Path) -> list[tuple[object, ...]]:
    """The turns and scores of a run, with the prompts' tokens."""
    queries = (
        "SELECT id, parent, speaker, ids, version, seed FROM turn",
        "SELECT agent, previous, keep, ids FROM request",
        "SELECT leaf, sample, score FROM outcome",
    )
    with closing(sqlite3.connect(folder / "store.sqlite")) as store:
        return [row for query in queries for row in sorted(store.execute(query), key=repr)]


def test_exchange_as_a_program_trains_equal_weights(tmp_path: Path) -> None:
    rows = write_exchange(tmp_path / "exchange.jsonl")
    file = program_worlds.__file__
    overrides = [*informative_overrides(tmp_path), f"dataset={rows}", "model=tiny-exchange"]
    overrides += ["policies.weights=each", "steps.count=1"]
    native = [f"environment={file}:NativeExchange"]
    program = ["environment=program", f"environment.agent={file}:play_exchange"]
    program += ["environment.roles=[Alice,Bob]", "environment.reward=exact"]
    for name, world in (("native", native), ("program", program)):
        run_to_end(make_recipe("rl/grpo", [*overrides, *world]), tmp_path / name)
    assert read_turns(tmp_path / "native") == read_turns(tmp_path / "program")
    check_record(tmp_path / "program")
    for role in ("Alice", "Bob"):
        weights = {final_weights(tmp_path / name, role) for name in ("native", "program")}
        assert len(weights) == 1


def check_record(folder: Path) -> None:
    """Check that rows and pairs of the run's record have the sampled tokens of the steps."""
    sampled = Counter[tuple[int, ...]]()
    with Store.open(folder / "store.sqlite", read_only=True) as store:
        for key in [key for key in store.tree_keys() if key[2].startswith("reinforce")]:
            turns = store.read_tree(key).turns.values()
            sampled.update(t.ids for t in turns if t.sample and t.speaker.name == "Alice")
    for name in ("sft", "dpo"):
        given = [str(folder), "dataset.heldout=0", "dataset.threshold=0", "dataset.role=Alice"]
        recipe: Any = make_training(read_arguments(name, given, None).resolve())
        rows = {row.ids: row for item in recipe.training_items for row in recipe.rows_of(item)}
        trained = Counter(row.ids[t.start : t.stop] for row in rows.values() for t in row.targets)
        assert trained and trained <= sampled
        assert name == "dpo" or trained == sampled


CELL = '<tool_call>\n{"name": "python", "arguments": {"code": "n = %s\\nn + 1"}}\n</tool_call>'


def solve(prompt: str, _: int) -> str:
    """Add with the tool, then answer with its last result."""
    results = re.findall(r"<tool_response>\s*(\d+)", prompt)
    number = re.findall(r"What is (\d+) \+ 1", prompt)[-1]
    return f"It is \\boxed{{{results[-1]}}}." if results else f"Let me see.\n{CELL % number}"


async def answer_with_python(task: dict[str, Any], session: Any) -> str:
    """Answer a question as `question` with the tool `python` does."""
    client = AsyncOpenAI(base_url=session.base_url, api_key=session.api_key)
    source, messages = PythonTool(PythonSettings()), [{"role": "user", "content": task["question"]}]
    async with (
        Sandbox(SandboxSettings(workers=1)) as sandbox,
        source.open_session(0, Shared(sandbox)) as functions,
    ):
        while True:
            tools: Any = [openai_tool(tool) for tool in source.tools]
            options: Any = {"model": "agent", "messages": messages, "tools": tools}
            message = (await client.chat.completions.create(**options)).choices[0].message
            messages.append(message.to_dict())  # type: ignore[arg-type]
            if not message.tool_calls:
                return message.content or ""
            for call in message.tool_calls:
                text = await functions["python"](json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})


def test_a_question_with_python_is_the_same_as_a_program(tmp_path: Path) -> None:
    overrides = ["environment.reward=math", "environment.prompt={question}"]
    renderer = ChatRenderer(make_native_tokenizer("qwen2"))
    program = make_program(tmp_path, answer_with_python, *overrides)
    given = [f"dataset={tmp_path / 'questions.jsonl'}", "tools=[python]", *overrides]
    native = make_environment(benchmark_settings(TaskSettings, "question", given))
    assert isinstance(native, WithTools)

    @asynccontextmanager
    async def shared_by(environment: Environment) -> AsyncIterator[Shared]:
        async with (
            open_gateway() as gateway,
            Sandbox(SandboxSettings(workers=1)) as sandbox,
            open_toolbox(native.sources, native.settings) as toolbox,
        ):
            yield Shared(gateway, sandbox, toolbox)

    sides = [play_program(w, renderer, solve, shared=shared_by(w)) for w in (native, program)]
    assert [side.score for side in sides] == [1.0, 1.0]
    heard, turns, rows = (
        [view(side) for side in sides]
        for view in (
            lambda side: side.engine.heard,
            lambda side: [(turn.id, turn.calls, turn.results) for turn in side.path],
            lambda side: side.rows(),
        )
    )
    assert len(heard[0]) == 2 and heard[0] == heard[1]
    assert turns[0] == turns[1]
    assert rows[0] == rows[1] and len(rows[0]) == 1
