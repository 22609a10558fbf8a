"""Runs the calculations of the ``problems`` micro-world: all those of a turn as one program, in the sandbox."""

from collections.abc import Mapping, Sequence

from coterie.environments.numbers import same_number
from coterie.environments.protocol import Shared
from coterie.tools.actions.executor import Executed
from coterie.tools.actions.grammar import Action
from coterie.tools.sandbox.pool import Sandbox
from coterie.trajectories.task import Task

TOOL = "Calculator"


class SandboxCalculator:
    """A domain whose only tool is a calculator. What a model calculates is Python, and runs where Python may."""

    name = "maths"
    needs: tuple[type, ...] = (Sandbox,)
    metric = "success"

    async def run(
        self, actions: Sequence[Action], values: Mapping[str, str], task: Task, shared: Shared
    ) -> Executed:
        for action in actions:
            if action.tool != TOOL:
                return Executed({}, None, f"there is no tool but {TOOL}: {action.text[:80]}")
        lines = [f"{action.result} = {action.rest(0).strip()}" for action in actions]
        names = [action.result for action in actions]
        found = await shared[Sandbox].run("\n".join(lines), names)
        new: dict[str, str] = {}
        for name, result in zip(names, found, strict=True):
            if not result.ok:
                return Executed(new, None, f"{name}: {result.reason}")
            new[name] = str(result.value)
        return Executed(new, new[names[-1]])

    def same(self, gold: str, given: str) -> bool:
        return same_number(gold, given)
