"""Tasksets of ``verifiers`` (extra ``verifiers``): one reply to each task, scored by its own rewards and metrics.

    coterie evaluate verifiers environment.taskset=my-taskset policy=smollm2

A taskset whose tasks need a tool server, a container or another runtime is refused: coterie starts none for it.
A hash of a task's prompt decides its split.
"""

import asyncio
import inspect
import sys
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from coterie.config.plugins import last_line
from coterie.config.resolve import wrong_at
from coterie.config.settings import ScoreRange, key
from coterie.datasets.catalogue import Split
from coterie.environments.protocol import Grade, State
from coterie.environments.question import OneReply
from coterie.environments.settings import EnvironmentSettings, draw_rows, split_of_key
from coterie.errors import UserError
from coterie.record.tree import LENGTH, Task
from coterie.record.turn import Message, digest

try:
    import verifiers
    import verifiers.v1 as vf
    from verifiers.v1.state import state_cls
    from verifiers.v1.utils.loaders import environment_class, taskset_class, taskset_config_type
except ImportError as error:
    raise UserError(
        "environment=verifiers needs the package verifiers, version 0.4 or later",
        "pip install -e '.[verifiers]'",
    ) from error

ROLES = ("system", "user", "assistant")


class VerifiersSettings(EnvironmentSettings):
    """Settings of a taskset."""

    taskset: str = key("", "The installed taskset, such as `my-taskset`.")
    config: dict[str, Any] = key({}, "Settings of the taskset, such as `{num_tasks: 100}`.")
    most: int = key(1000, "Tasks that are read of the taskset, which may be infinite.", ge=2)
    score_range: ScoreRange = key(
        (0.0, 1.0), "Lowest and highest sum of the rewards, which are scaled to 0 and 1."
    )


class Verifiers(OneReply):
    """The tasks of one taskset."""

    name = "verifiers"
    metric = "reward"
    settings_type = VerifiersSettings

    def __init__(self, settings: VerifiersSettings) -> None:
        self.settings, self.score_range = settings, settings.score_range
        if not settings.taskset:
            raise UserError("environment=verifiers needs a taskset", "add environment.taskset=NAME")
        kind = self._guarded("load", lambda: taskset_class(settings.taskset))
        config = {**settings.config, "id": settings.taskset}
        self.taskset: Any = self._guarded(
            "configure", lambda: kind(taskset_config_type(settings.taskset).model_validate(config))
        )
        if (environment_type := environment_class(settings.taskset)) is not vf.SingleAgentEnv:
            self._refuse(f"an environment of its own, {environment_type.__name__}")
        if kind.toolsets(self.taskset.config):
            self._refuse("tool servers")
        # The code is part of the version, so results of changed code are not mixed with old ones.
        file = Path(str(sys.modules[kind.__module__].__file__))
        self.version = f"1/verifiers {verifiers.__version__} {digest(file.read_text())}"

    def _guarded(self, verb: str, work: Any) -> Any:
        """Call code of the taskset. Raises ``UserError`` for any error."""
        try:
            return work()
        except (Exception, SystemExit) as error:
            # Loading runs the taskset's own code, which may raise anything or exit.
            wrong = error.errors()[0] if isinstance(error, ValidationError) else None
            reason = wrong_at(wrong) if wrong else last_line(error)
            raise UserError(
                f"verifiers can't {verb} the taskset {self.settings.taskset!r}: {reason}",
                "install or correct the taskset, or correct environment.taskset or environment.config",
            ) from error

    def _refuse(self, need: str) -> None:
        raise UserError(
            f"the taskset {self.settings.taskset!r} needs {need}, which environment=verifiers does not provide",
            "choose another taskset, or let vf-eval play it on a server of the model",
        )

    @cached_property
    def _tasks(self) -> dict[str, Any]:
        """The taskset's tasks by our ids. Raises ``UserError`` for tasks that can't be played or scored here."""
        tasks = self._guarded("make tasks of", lambda: [*islice(self.taskset, self.settings.most)])
        items = {f"{self.settings.taskset}-{task.data.idx}": task for task in tasks}
        for task in items.values():
            self._check(task)
        # An empty reply is scored before the run, so that a broken reward shows early.
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            for task in islice(items.values(), 1):
                asyncio.run(self._score(task, "", truncated=False))
        return items

    def _check(self, task: Any) -> None:
        kind = type(task)
        if task.NEEDS_CONTAINER or task.data.image:
            self._refuse("a container")
        if kind.toolsets(task.config):
            self._refuse("tool servers")
        # Hooks of a task and rewards with a ``runtime`` need parts of verifiers that don't run
        # here.
        for hook in ("setup", "finalize"):
            if getattr(kind, hook) is not getattr(vf.Task, hook):
                self._refuse(f"a runtime ({kind.__name__}.{hook})")
        judges = (judge.score for judge in task.plugged_judges())
        for function in (*task.hooks("reward"), *task.hooks("metric"), *judges):
            runtime = inspect.signature(function).parameters.get("runtime")
            if runtime is not None and runtime.default is inspect.Parameter.empty:
                self._refuse(f"a runtime ({kind.__name__}.{function.__name__})")
        if not task.data.prompt:
            self._refuse("a user that opens the dialogue")
        if not all(isinstance(m.content, str) and m.role in ROLES for m in _prompt(task)):
            self._refuse("prompts with images or tools")

    def tasks(
        self, split: Split, count: int, seed: int, previous_counts: Sequence[int] = ()
    ) -> list[Task]:
        split_tasks = [
            Task(name, {"messages": [[m.role, m.content] for m in _prompt(task)]})
            for name, task in self._tasks.items()
            if (split_of_key(digest(task.data.prompt_text)) == "heldout") == (split == "heldout")
        ]
        return draw_rows(split_tasks, split, count, seed, previous_counts)

    def observe(self, state: State, actor: str) -> tuple[Message, ...]:
        messages = (Message.of(m.role, m.content) for m in _prompt(self._tasks[state.task.id]))
        return (*messages, *(Message("assistant", turn=turn.id) for turn in state.turns))

    async def grade(self, state: State, session: Any) -> Grade:
        """Return the weighted sum of the rewards. Raises ``UserError`` if one fails."""
        task, truncated = self._tasks[state.task.id], state.end == LENGTH
        trace = await self._score(task, state.answer or "", truncated=truncated)
        rewards = {
            name: reward.score for name, reward in trace.rewards.items() if reward is not None
        }
        # A single reward is the score itself.
        components = rewards if len(rewards) > 1 else {}
        return Grade(trace.reward, {**components, **trace.metrics})

    async def _score(self, task: Any, reply: str, *, truncated: bool) -> Any:
        """Return the trace of a reply with its rewards, as a single agent of verifiers would have left it."""
        recorded = vf.TraceTask(
            type=type(task).__name__, data=task.data, key=task.key, hash=task.hash
        )
        agent = vf.AgentInfo(config=vf.AgentConfig())
        trace = vf.Trace(task=recorded, agent=agent, state=state_cls(type(task))())
        messages = (*_prompt(task), vf.AssistantMessage(content=reply))
        for index, message in enumerate(messages):
            is_reply = index == len(messages) - 1
            parent = index - 1 if index else None
            trace.nodes.append(vf.MessageNode(parent=parent, message=message, sampled=is_reply))
        finish = "length" if truncated else "stop"
        trace.calls.append(vf.ModelCall(node=len(messages) - 1, finish_reason=finish))
        trace.stop("agent_completed")
        trace.ok = True
        low, high = self.score_range
        try:
            await task.score(trace)
        except Exception as error:  # from the taskset, whose error is the cause
            problem = f"a reward of {self.settings.taskset!r} failed on task {task.data.idx}"
            reason = last_line(error.__cause__ or error)
            raise UserError(f"{problem}: {reason}", "correct the taskset") from error
        if not low <= trace.reward <= high:
            raise UserError(
                f"the rewards of task {task.data.idx} of {self.settings.taskset!r} sum to {trace.reward:g}",
                "correct the taskset, or declare their range: environment.score_range=[LOW,HIGH]",
            )
        return trace


def _prompt(task: Any) -> Iterator[Any]:
    """Yield the messages that a task begins with."""
    if task.data.system_prompt:
        yield vf.SystemMessage(content=task.data.system_prompt)
    if isinstance(task.data.prompt, str):
        yield vf.UserMessage(content=task.data.prompt)
    else:
        yield from task.data.prompt or ()
