"""Logs for Inspect (``inspect_ai``): the trajectories of a stage as samples with messages, scores and token counts.

Plain JSON in Inspect's log format 2, so the package is not needed. The messages of a sample are the turns of its path.
Before an agent's turn stand the messages of its prompt that are no turns.
"""

import base64
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from coterie.environments.qa_metrics import known_answers, question_of
from coterie.record.rows import prompts
from coterie.record.store import Store
from coterie.record.tree import ItemKey, Task, Tree
from coterie.record.turn import THOUGHT, Part, ToolCall, Turn, digest
from coterie.runs.evaluation import left_out

Fields = dict[str, Any]
Usage = Mapping[str, Mapping[str, int]]
"""Token counts by model."""


@dataclass(frozen=True, slots=True)
class LogHead:
    """Names and times of a log that its store does not know."""

    task: str
    model: str
    metric: str
    start: datetime
    end: datetime


def eval_log(store: Store, iteration: int, stage: str, head: LogHead, *, secrets: bool) -> Fields:
    """Return the log of a stage; without ``secrets``, privileged parts of its messages are names of their fields.

    The mean score is the report's: failed and ungraded dialogues of tasks that can be graded count as 0.
    """
    metrics, samples = store.metrics(iteration, stage), list[Fields]()
    for tree in store.trees(iteration, stage):
        writer = _MessageWriter(store, tree, secrets)
        for outcome, path in tree.trajectories():
            key = ItemKey(iteration, stage, tree.task, f"{outcome.sample:04d}")
            score = {
                "value": outcome.score,
                "answer": outcome.answer,
                "explanation": f"ended by {outcome.ending.reason}",
                "metadata": metrics.get(key, {}),
            }
            samples.append({
                **_sample(store.task(tree.task), outcome.sample),
                "uuid": outcome.leaf,
                "messages": list(writer.messages(path)),
                "scores": {} if outcome.score is None else {head.metric: score},
                "metadata": writer.credit.get(tree.root, {}),
                "model_usage": _usage(tree, path),
            })  # fmt: skip
    # A failed dialogue is a sample with an error.
    for key, reason in store.failures(iteration, stage):
        if key.task:
            number = int(key.sample) if key.sample.isdecimal() else 0
            error = {"message": reason, "traceback": "", "traceback_ansi": ""}
            samples.append({**_sample(store.task(key.task), number), "error": error})
    samples.sort(key=lambda sample: (sample["id"], sample["epoch"]))
    # Tasks that cannot be graded do not lower the mean.
    ungradable = left_out(store, iteration, stage)
    ids = list(dict.fromkeys(sample["id"] for sample in samples))
    all_scores = [sample.get("scores") for sample in samples if sample["id"] not in ungradable]
    values = [scores[head.metric]["value"] for scores in all_scores if scores]
    mean = {"name": "mean", "value": sum(values) / max(1, len(all_scores))}
    # The id depends on the samples, so that a second export is the same log.
    leaves = [sample.get("uuid") for sample in samples]
    name = digest(head.task, head.model, iteration, stage, leaves)[:22]
    return {
        "version": 2,
        "status": "success",
        "eval": {
            **dict.fromkeys(("eval_id", "run_id", "task_id"), name),
            "created": head.start.isoformat(),
            "task": head.task,
            "dataset": {"name": head.task, "samples": len(ids), "sample_ids": ids},
            "model": head.model,
            "config": {"epochs": max((sample["epoch"] for sample in samples), default=1)},
            "metadata": {"iteration": iteration, "stage": stage},
        },
        # Inspect reads headers alone by a parser of its own, which requires every section and has no defaults.
        "plan": {"name": "coterie", "steps": [{"solver": stage}]},
        "results": {
            "total_samples": len(samples),
            "completed_samples": sum("error" not in sample for sample in samples),
            "scores": [{"name": head.metric, "scorer": head.metric, "metrics": {"mean": mean}}],
        },
        "stats": {
            "started_at": head.start.isoformat(),
            "completed_at": head.end.isoformat(),
            "model_usage": _sum(sample.get("model_usage", {}) for sample in samples),
        },
        "samples": samples,
    }


def _sample(task: Task, number: int) -> Fields:
    answers = list(known_answers(task))
    target = answers if len(answers) > 1 else "".join(answers)
    return {"id": task.id, "epoch": number + 1, "input": question_of(task), "target": target}


def _usage(tree: Tree, path: Sequence[Turn]) -> Usage:
    agents = dict.fromkeys(turn.speaker.name for turn in path if turn.sample)
    return _sum(
        {turn.writer: {"input_tokens": len(prompt), "output_tokens": len(turn.ids)}}
        for agent in agents
        for prompt, turn in prompts(tree, path[-1].id, agent)
        if turn.sample
    )


def _sum(usages: Iterable[Usage]) -> Usage:
    total: dict[str, Counter[str]] = {}
    for usage in usages:
        for model, counts in usage.items():
            all_tokens = sum(counts[name] for name in ("input_tokens", "output_tokens"))
            total.setdefault(model, Counter()).update({**counts, "total_tokens": all_tokens})
    return total


class _MessageWriter:
    """Messages of the paths of a tree, with the credit of turns (rewards, advantages) as metadata."""

    def __init__(self, store: Store, tree: Tree, secrets: bool) -> None:
        self._store, self._tree, self._secrets = store, tree, secrets
        self.credit: dict[str, Fields] = {}
        for credit in store.credit_of(tree):
            self.credit.setdefault(credit.node, {})[credit.name] = credit.value

    def messages(self, path: Sequence[Turn]) -> Iterator[Fields]:
        history, caller = dict[str, Counter[str]](), ""
        for turn in path:
            name = turn.speaker.name
            if turn.prompt is not None:
                yield from self._prompt(turn, history.setdefault(name, Counter()))
            metadata = {"speaker": name, **self.credit.get(turn.id, {})}
            # Ids of calls are unique only within a turn, so the id of the calling turn precedes them.
            for result in turn.results:
                error = {"type": "unknown", "message": result.text} if result.error else None
                yield {
                    "role": "tool",
                    "content": result.text,
                    "tool_call_id": f"{caller}-{result.call_id}",
                    "error": error,
                    "metadata": metadata,
                }
            caller = turn.id if turn.calls else caller
            fields = {"id": turn.id, "content": self._content(turn.parts), "metadata": metadata}
            if turn.speaker.kind == "agent":
                calls = [_call(turn, call) for call in turn.calls]
                yield {"role": "assistant", "model": turn.writer, "tool_calls": calls, **fields}
            # Results of tools are messages already.
            elif not turn.results:
                yield {"role": "user", **fields}

    def _prompt(self, turn: Turn, history: Counter[str]) -> Iterator[Fields]:
        """Yield the messages of a turn's prompt that are no turns and that no earlier prompt of the agent had."""
        agent, counts = turn.speaker.name, Counter[str]()
        for message in self._tree.messages(self._tree.requests[str(turn.prompt)]):
            content = self._content([part for part in message.parts if part.visible_to(agent)])
            if message.turn is None and content:
                role = "user" if message.role == "inline" else message.role
                # A prompt repeats earlier messages of the agent, so only additional copies are new.
                counts[key := f"{role} {content}"] += 1
                if counts[key] > history[key]:
                    yield {"role": role, "content": content, "metadata": {"reader": agent}}
        history |= counts

    def _content(self, parts: Sequence[Part]) -> str | list[Fields]:
        content = list[Fields]()
        for part in parts:
            is_secret = part.source.startswith("secret:") and not self._secrets
            text = f"<{part.source}>" if is_secret else part.text
            content_type = "reasoning" if part.source == THOUGHT else "text"
            # Adjacent parts of the same kind become one.
            if content and content[-1]["type"] == content_type:
                content[-1][content_type] += text
            else:
                content.append({"type": content_type, content_type: text})
            if part.image is not None:
                data = base64.b64encode(self._store.image(part.image)).decode()
                content.append({"type": "image", "image": f"data:image/png;base64,{data}"})
        is_text = all(part_["type"] == "text" for part_ in content)
        return "".join(part_["text"] for part_ in content) if is_text else content


def _call(turn: Turn, call: ToolCall) -> Fields:
    try:
        arguments = dict(json.loads(call.arguments))
    # The arguments of a malformed call are no JSON object.
    except (TypeError, ValueError):
        arguments = {"arguments": call.arguments}
    fields = {"arguments": arguments, "parse_error": call.error or None}
    return {"id": f"{turn.id}-{call.id}", "function": call.name, "type": "function", **fields}
