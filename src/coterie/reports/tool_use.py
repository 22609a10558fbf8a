"""What a run's page says of tools: how often each was called, how it went, and a dialogue's calls on a time line."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from coterie.reports.data import CallView
from coterie.reports.sections import Section
from coterie.runs.folder import Run
from coterie.trajectories.calls import ToolCall, ToolResult
from coterie.trajectories.turn import Turn

SHOWN = 200
"""Characters of a call's arguments that are shown."""


@dataclass(slots=True)
class _Use:
    """Calls of one tool."""

    calls: int = 0
    errors: int = 0
    cut: int = 0
    seconds: list[float] = field(default_factory=list)


def tool_section(run: Run) -> Section:
    """Calls by tool, over all dialogues of a run; without rows if none was made."""
    return Section(
        "tools",
        "Tools",
        "Calls of all dialogues. The agent that called is told of an error; a cut result has lost its middle. "
        "Times are of calls that were run.",
        ("tool", "calls", "errors", "cut", "median", "95% within"),
        tool_rows(run.store.calls()),
    )


def tool_rows(calls: Iterable[tuple[ToolCall, ToolResult]]) -> tuple[tuple[str, ...], ...]:
    """The same as a table: name, calls, errors, cut results, seconds."""
    uses: dict[str, _Use] = {}
    for call, result in calls:
        use = uses.setdefault(call.name, _Use())
        use.calls += 1
        use.errors += result.error
        use.cut += result.left_out > 0
        if result.seconds:
            use.seconds.append(result.seconds)
    return tuple(_row(name, use) for name, use in sorted(uses.items()))


def call_views(path: Sequence[Turn], at: int) -> tuple[CallView, ...]:
    results = path[at].results
    if not results:
        return ()
    asked = {call.id: call for turn in path[:at][-1:] for call in turn.calls}
    end = max((one.began + one.seconds for one in results), default=0.0) or 1.0
    return tuple(_view(asked.get(one.call_id), one, end) for one in results)


def _view(call: ToolCall | None, result: ToolResult, end: float) -> CallView:
    name, arguments = ("", "") if call is None else (call.name, call.arguments[:SHOWN])
    left = 100 * result.began / end
    width = min(100 * result.seconds / end, 100 - left)  # rounding may put it a little over
    return CallView(name, arguments, result.seconds, result.error, result.left_out, left, width)


def _row(name: str, use: _Use) -> tuple[str, ...]:
    times = ("", "")
    if use.seconds:
        ordered = sorted(use.seconds)
        late = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
        times = f"{statistics.median(ordered):.3f} s", f"{late:.3f} s"
    return (name, f"{use.calls:,}", f"{use.errors:,}", f"{use.cut:,}", *times)
