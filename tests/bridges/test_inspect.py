"""Inspect reads exported logs: messages, calls, scores and tokens are the record's, and its viewer lists them."""

import json
import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import quote, urlencode
from urllib.request import urlopen

import pytest

from coterie.cli.execution import run_recipe
from coterie.recipes.base import recorded_run
from coterie.recipes.registry import settings
from coterie.record.rows import prompts
from coterie.record.store import Store
from coterie.record.tree import ItemKey
from coterie.runs.evaluation import evaluation
from coterie.runs.run import StageKey
from coterie.terminal import notes
from tests.conftest import SMALL, Cli

inspect_log = pytest.importorskip("inspect_ai.log", reason="no inspect_ai; see make test-exports")
SECONDS = 60


@pytest.fixture(scope="module")
def dialogues(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two agents who talk."""
    folder = tmp_path_factory.mktemp("runs") / "dialogues"
    run_recipe(settings("optima/isft", SMALL), folder, notes())
    return folder


@pytest.fixture(scope="module")
def searches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of an agent that searches."""
    folder = tmp_path_factory.mktemp("runs") / "searches"
    overrides = ("evaluate.tasks=4", "traces.tasks=4", "train.epochs=1", "engine.device=cpu")
    run_recipe(settings("gap/tiny", overrides), folder, notes())
    return folder


def logs_of(cli: Cli, folder: Path, out: Path, *words: object) -> dict[tuple[str, int], Any]:
    """Export a run by the command; return its logs by stage and iteration, as Inspect lists them."""
    done = cli("export", "data", folder, "--to", "inspect", "--out", out, *words)
    assert done.code == 0 and done.out.strip() == str(out), done.err
    logs = [inspect_log.read_eval_log(one) for one in inspect_log.list_eval_logs(str(out))]
    assert len({log.eval.task_id for log in logs}) == len(logs)
    return {(log.eval.metadata["stage"], log.eval.metadata["iteration"]): log for log in logs}


def texts(messages: Any, role: str) -> list[str]:
    return [message.text for message in messages if message.role == role]


def test_dialogues_of_two_agents_have_the_records_turns_scores_and_tokens(
    cli: Cli, dialogues: Path, tmp_path: Path
) -> None:
    logs = logs_of(cli, dialogues, tmp_path / "logs")
    assert {("evaluate", 0), ("evaluate", 1), ("rollout", 0)} == set(logs)
    with recorded_run(dialogues) as (recipe, opened):
        store = opened.store
        for (stage, iteration), log in logs.items():
            assert log.status == "success" and log.eval.model == f"tiny-exchange@{iteration}"
            left = {(one.id, one.epoch): one for one in log.samples or ()}
            for tree in store.trees(iteration, stage):
                for outcome, path in tree.trajectories():
                    sample = left.pop((tree.task, outcome.sample + 1))
                    own = [one for one in sample.messages if one.role == "assistant"]
                    assert [one.text for one in own] == [turn.whole_text for turn in path]
                    speakers = [turn.speaker.name for turn in path]
                    assert [one.metadata["speaker"] for one in own] == speakers
                    score = (sample.scores or {})[recipe.environment.metric]
                    assert (score.value, score.answer) == (outcome.score, outcome.answer)
                    used = [
                        (len(prompt), len(turn.ids))
                        for agent in set(speakers)
                        for prompt, turn in prompts(tree, outcome.leaf, agent)
                    ]
                    usage = sample.model_usage[f"policy@{iteration}"]
                    assert (usage.input_tokens, usage.output_tokens) == tuple(map(sum, zip(*used)))  # noqa: B905
            assert not left, "no sample is made up"
        for version in (0, 1):
            results = logs["evaluate", version].results
            assert results is not None
            mean = results.scores[0].metrics["mean"].value
            assert mean == pytest.approx(evaluation(store, version).score)
        task = recipe.heldout_tasks()[0]
        samples = {str(one.id): one for one in logs["evaluate", 0].samples or ()}
        sample = samples[task.id]
        answer = task.secrets["answer"].reveal("grader")
        assert sample.target == answer and sample.input == task.public["question"]
        readers = [one.metadata["reader"] for one in sample.messages if one.role == "system"]
        assert readers == ["Alice", "Bob"]


def test_calls_have_their_results(cli: Cli, searches: Path, tmp_path: Path) -> None:
    log = logs_of(cli, searches, tmp_path / "logs", "--iteration", 1)["evaluate", 1]
    with Store.open(searches / "store.sqlite", read_only=True) as store:
        trees = {tree.task: tree for tree in store.trees(1, "evaluate")}
    calls = 0
    for sample in log.samples or ():
        ((_, path),) = trees[str(sample.id)].trajectories()
        assert texts(sample.messages, "user") == [f"Question: {sample.input}"]
        results = {one.tool_call_id: one.text for one in sample.messages if one.role == "tool"}
        own = [one for one in sample.messages if one.role == "assistant"]
        for message, turn in zip(own, [turn for turn in path if turn.prompt], strict=True):
            answered = next((one.results for one in path if one.parent == turn.id), ())
            for call, made, result in zip(
                message.tool_calls or (), turn.calls, answered, strict=True
            ):
                assert call.function == made.name and call.arguments == json.loads(made.arguments)
                assert results.pop(call.id) == result.text
                calls += 1
        assert not results
    assert calls


def test_a_failed_dialogue_is_an_error_and_scores_zero(
    cli: Cli, dialogues: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(dialogues, tmp_path / "run")
    with Store.open(run / "store.sqlite") as store:
        (*_, task), *_ = store.tree_keys(1, "evaluate")
        store.finish(ItemKey(1, "evaluate", task, "0001"), failure="the server stopped")
        before = evaluation(store, 1)
    assert before.score > 0
    log = logs_of(cli, run, tmp_path / "logs")["evaluate", 1]
    (sample,) = [one for one in log.samples or () if one.error]
    assert (sample.id, sample.epoch, sample.scores) == (task, 2, None)
    assert sample.error is not None and sample.error.message == "the server stopped"
    assert log.results is not None and log.results.total_samples == before.n + 1
    assert log.results.completed_samples == before.n
    mean = log.results.scores[0].metrics["mean"].value
    assert mean == pytest.approx(before.score * before.n / (before.n + 1))


def test_the_viewer_lists_the_logs(cli: Cli, searches: Path, tmp_path: Path) -> None:
    logs = logs_of(cli, searches, tmp_path / "logs")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    where = ["--log-dir", str(tmp_path / "logs"), "--host", "127.0.0.1", "--port", str(port)]
    command = [sys.executable, "-m", "inspect_ai", "view", "start", *where]
    viewer = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        api = f"http://127.0.0.1:{port}/api"
        names = [file["name"] for file in answer(f"{api}/logs")["files"]]
        assert len(names) == len(logs)
        headers = answer(f"{api}/log-headers?{urlencode([('file', name) for name in names])}")
        for name, header in zip(names, headers, strict=True):
            shown = answer(f"{api}/logs/{quote(name, safe='')}")
            assert shown["eval"]["task"].startswith("encyclopedia") and shown["samples"]
            assert header["eval"]["task_id"] == shown["eval"]["task_id"]
            assert header["results"] and "samples" not in header
    finally:
        viewer.terminate()
        viewer.wait(SECONDS)


def test_headers_summaries_and_samples_are_read_alone(
    cli: Cli, searches: Path, tmp_path: Path
) -> None:
    logs, ends = logs_of(cli, searches, tmp_path / "logs"), list[datetime]()
    with recorded_run(searches) as (recipe, run):
        seconds = {step: run.metrics(step)["seconds"] for step in recipe.stage_keys()}
    files = inspect_log.list_eval_logs(str(tmp_path / "logs"), descending=False)
    for file in files:
        header = inspect_log.read_eval_log(file, header_only=True)
        step = StageKey(header.eval.metadata["iteration"], header.eval.metadata["stage"])
        start, end = map(
            datetime.fromisoformat, (header.stats.started_at, header.stats.completed_at)
        )
        assert (end - start).total_seconds() == pytest.approx(seconds[step])
        assert start >= max(ends, default=start), "stages follow each other"
        ends.append(end)
        whole = logs[step.stage, step.iteration].samples or []
        summaries = inspect_log.read_eval_log_sample_summaries(file)
        assert [one.uuid for one in summaries] == [one.uuid for one in whole]
        first = inspect_log.read_eval_log_sample(file, whole[0].id, whole[0].epoch)
        assert [one.text for one in first.messages] == [one.text for one in whole[0].messages]


def answer(url: str) -> Any:
    """Return the JSON of a server that may still start."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        with suppress(URLError), urlopen(url, timeout=SECONDS) as reply:
            return json.load(reply)
        time.sleep(0.2)
    raise TimeoutError(url)
