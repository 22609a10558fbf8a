"""Tools of agents and graders: calls, the sandbox, action lines, and pages.

Grade a program::

    from coterie.tools import Sandbox

    async with Sandbox() as sandbox:
        graded = await sandbox.grade("def double(x): return 2 * x", ["double(21)"], [42])
"""

from typing import TYPE_CHECKING

from coterie import lazy_exports

if TYPE_CHECKING:
    from coterie.config.settings import Settings
    from coterie.tools.actions.executors import MathsExecutor
    from coterie.tools.actions.grammar import check_actions
    from coterie.tools.calls import CallLimits, ToolSource, run_calls
    from coterie.tools.contest import judge_program
    from coterie.tools.render import Renderer
    from coterie.tools.sandbox.pool import Sandbox
    from coterie.tools.similarity import Page, Similarity

__all__ = [
    "CallLimits", "MathsExecutor", "Page", "Renderer", "Sandbox", "Settings", "Similarity", "ToolSource",
    "check_actions", "judge_program", "run_calls",
]  # fmt: skip
__getattr__, __dir__ = lazy_exports(__name__)
