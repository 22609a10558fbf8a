"""The agents of ``examples/programs`` and one more, each behind a recorder of its requests."""

import functools
import inspect
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.programs.recorder import Recorder, recorded

EXAMPLES = Path(__file__).parents[2] / "examples/programs"
RECORDERS: list[Recorder] = []
"""Recorders of the episodes, in the order in which they began."""


def _recorded(run: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return an agent whose requests pass a recorder."""

    def behind(session: Any, recorder: Recorder) -> Any:
        RECORDERS.append(recorder)
        models = session.models
        return SimpleNamespace(base_url=recorder.url, api_key=session.api_key, models=models)

    if not inspect.iscoroutinefunction(run):

        @functools.wraps(run)
        def run_sync(task: Any, session: Any) -> Any:
            with recorded(session.base_url) as recorder:
                return run(task, behind(session, recorder))

        return run_sync

    @functools.wraps(run)
    async def run_async(task: Any, session: Any) -> Any:
        with recorded(session.base_url) as recorder:
            return await run(task, behind(session, recorder))

    return run_async


def _example(name: str) -> Callable[[Any, Any], Any]:
    return _recorded(import_module(f"examples.programs.{name}").run)


async def _agents_chat(task: Any, session: Any) -> Any:
    """The agents of the example by Chat Completions instead of Responses."""
    from agents import OpenAIProvider, RunConfig, Runner

    from examples.programs.openai_agents import triage

    address = {"base_url": session.base_url, "api_key": session.api_key}
    provider = OpenAIProvider(**address, use_responses=False)
    config = RunConfig(model_provider=provider, tracing_disabled=True)
    result = await Runner.run(triage, task["question"], run_config=config, max_turns=8)
    return result.final_output


def __getattr__(name: str) -> Any:
    """Load the agent of a client when a run asks for it."""
    if name.startswith("_"):
        raise AttributeError(name)
    return _recorded(_agents_chat) if name == "agents_chat" else _example(name)
