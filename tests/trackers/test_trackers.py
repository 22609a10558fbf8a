"""Runs with the packages of all trackers, offline; what arrived is read from their own files."""

import json
import shutil
import sqlite3
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from coterie.record.store import Store
from coterie.runs.loop import REINFORCE
from coterie.runs.reinforce_record import step_records, step_stage
from coterie.runs.run import FINISHED
from tests.conftest import FEW, Cli, once, refused
from tests.helpers.run_rl import SMALL as REINFORCED
from tests.helpers.write_rows import write_jsonl

pytest.importorskip("swanlab", reason="make test-trackers installs the trackers")

ROLLOUTS = "reinforce/rollouts"
Points = dict[str, list[tuple[int, float]]]
"""Steps and values by metric, in the order in which they were logged."""


def tensorboard_points(tracking: Path) -> dict[str, Points]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = {}
    for folder in {file.parent for file in tracking.rglob("events.out.*")}:
        events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
        result[folder.name] = {
            tag: [(event.step, event.value) for event in events.Scalars(tag)]
            for tag in events.Tags()["scalars"]
        }
    return result


def log_records(data: bytes, header: int) -> Iterator[bytes]:
    """Yield the records of a file in LevelDB's log format, after a header of so many bytes."""
    position, parts, block = header, b"", 2**15
    while position < len(data):
        if (left := block - position % block) < 7:  # the padding of a block
            position += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, position)
        parts += data[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in (1, 4):  # a full record, or the last part of one
            yield parts
            parts = b""


def wandb_points(tracking: Path) -> dict[str, Points]:
    from wandb.proto.wandb_internal_pb2 import Record

    result: dict[str, Points] = defaultdict(lambda: defaultdict(list))
    for file in sorted(tracking.rglob("*.wandb")):
        for record in log_records(file.read_bytes(), header=7):
            history = Record.FromString(record).history
            row = {"/".join(one.nested_key) or one.key: one.value_json for one in history.item}
            for name in row.keys() - {"step"}:
                if not name.startswith("_"):
                    point = (int(row["step"]), json.loads(row[name]))
                    result[file.stem.removeprefix("run-")][name].append(point)
    return result


def swanlab_points(tracking: Path) -> dict[str, Points]:
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    result: dict[str, Points] = defaultdict(lambda: defaultdict(list))
    for file in sorted(tracking.rglob("*.swanlab")):
        reader = DataStoreReader()
        reader.open(str(file))
        while (data := reader.scan()) is not None:
            record = Record.FromString(data)
            if record.HasField("scalar"):
                point = (record.scalar.step, record.scalar.value.number)
                result[file.stem.removeprefix("run-")][record.scalar.key].append(point)
    return result


def trackio_points(tracking: Path) -> dict[str, Points]:
    from trackio.utils import TRACKIO_DIR

    result: dict[str, Points] = defaultdict(lambda: defaultdict(list))
    rows = "SELECT run_name, step, metrics FROM metrics WHERE run_name LIKE ? ORDER BY id"
    name = f"%-{(tracking / 'id').read_text()[:8]}"
    with closing(sqlite3.connect(TRACKIO_DIR / "coterie.db")) as database:
        for run, step, metrics in database.execute(rows, (name,)):
            for metric, value in json.loads(metrics).items():
                result[run][metric].append((step, value))
    return result


READERS: dict[str, Callable[[Path], dict[str, Points]]] = {
    "tensorboard": tensorboard_points,
    "wandb": wandb_points,
    "swanlab": swanlab_points,
    "trackio": trackio_points,
}

PAIRS = [{"prompt": f"Say {n}", "chosen": f"Sure: {n}", "rejected": "No."} for n in range(9)]
CHATS = [{"prompt": f"Say {n}", "completion": f"Sure: {n}"} for n in range(9)]
ROWS = ["dataset.source=rows.jsonl", "model=tiny-exchange", "train.batch_size=4"]
EVALUATED = ["evaluate.tasks=2", "evaluate.max_tokens=8"]
RELAY = "tests.outside.package.relay"
RECIPES = {
    "sft": ["sft", *ROWS, *EVALUATED],
    "dpo": ["dpo", *ROWS, *EVALUATED],
    "rl": [
        "rl/ppo",
        *once(*REINFORCED, "rollout.max_tokens=16"),
        "steps.count=2",
        "steps.minibatches_per_step=2",
    ],
    "two roles": [
        f"{RELAY}:RelayRecipe",
        f"environment={RELAY}:Relay",
        "evaluate.tasks=2",
        "train.batch_size=2",
    ],
}


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Remove hosts and keys; all runs share a folder of trackio, which reads the variable once."""
    for name in ("WANDB_MODE", "SWANLAB_MODE", "WANDB_API_KEY", "SWANLAB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path_factory.getbasetemp() / "trackio"))


def trained_points(run: Path, *, together: bool) -> Points:
    """Return the metrics of all trainings, one after another or ``together`` on the same steps."""
    points: Points = defaultdict(list)
    files = run.glob("training/*/iteration-*/metrics.jsonl")
    before = 0
    for file in sorted(files, key=lambda file: (file.parent.name, file.parts[-3])):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines:
            for name in line.keys() - {"step"}:
                points[f"{file.parts[-3]}/{name}"].append((before + line["step"], line[name]))
        before += 0 if together else len(lines)
    return points


def stage_values(run: Path) -> dict[str, list[float]]:
    """Return the metrics of finished stages; of reinforcement learning those of its steps."""
    values = defaultdict(list)
    with Store.open(run / "store.sqlite", read_only=True) as store:
        steps = step_records(store, 0, REINFORCE).values()
        finished = store.items(sample=FINISHED)
    rows = [(REINFORCE, step) for step in steps]
    rows += [(item.key.stage, item.metrics) for item in finished if item.key.stage != REINFORCE]
    for stage, metrics in rows:
        for name, value in metrics.items():
            if not isinstance(value, str):
                values[f"{stage}/{name}"].append(value)
    return values


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("tracker", READERS)
def test_all_metrics_of_a_run_arrive(tracker: str, recipe: str, cli: Cli, tmp_path: Path) -> None:
    """Also those of roles that are trained on the same steps."""
    write_jsonl(tmp_path / "rows.jsonl", *(PAIRS if recipe == "dpo" else CHATS))
    result = cli("run", *RECIPES[recipe], f"tracker={tracker}", "--folder", "run")
    assert result.code == 0, result.err
    ((_, points),) = READERS[tracker](Path("run/tracking")).items()
    trained = trained_points(Path("run"), together=recipe == "rl")
    assert {name.partition("/")[0] for name in trained} == {
        "rl": {"policy", "critic"}, "two roles": {"grounder", "planner"},
    }.get(recipe, {"policy"})  # fmt: skip
    for name, expected in trained.items():
        steps, values = zip(*points[name], strict=True)
        assert steps == tuple(step for step, _ in expected), name
        assert values == pytest.approx([value for _, value in expected], rel=1e-6), name
    for name, numbers in stage_values(Path("run")).items():
        assert [value for _, value in points[name]] == pytest.approx(numbers, rel=1e-6), name


def wandb_rollouts(tracking: Path) -> dict[int, list[dict[str, Any]]]:
    from wandb.proto.wandb_internal_pb2 import Record

    result = {}
    for file in tracking.rglob("*.wandb"):
        for record in log_records(file.read_bytes(), header=7):
            history = Record.FromString(record).history
            row = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in history.item}
            if path := row.get(f"{ROLLOUTS}/path"):
                (table,) = tracking.rglob(Path(path).name)
                read = json.loads(table.read_text())
                rows = [dict(zip(read["columns"], one, strict=True)) for one in read["data"]]
                result[int(row["step"])] = rows
    return result


def trackio_rollouts(tracking: Path) -> dict[int, list[dict[str, Any]]]:
    from trackio.utils import TRACKIO_DIR

    result: dict[int, list[dict[str, Any]]] = defaultdict(list)
    find = "SELECT step, messages, metadata FROM traces WHERE run_name LIKE ? AND key = ?"
    name = f"%-{(tracking / 'id').read_text()[:8]}"
    with closing(sqlite3.connect(TRACKIO_DIR / "coterie.db")) as database:
        for step, messages, facts in database.execute(find, (name, ROLLOUTS)):
            texts = [message["content"] for message in json.loads(messages)]
            result[step].append({**json.loads(facts), "messages": "\n".join(texts)})
    return result


@pytest.mark.parametrize(
    ("tracker", "read"), [("wandb", wandb_rollouts), ("trackio", trackio_rollouts)]
)
def test_rollouts_of_each_step_arrive_with_their_messages(
    tracker: str, read: Callable[[Path], dict[int, list[dict[str, Any]]]], cli: Cli
) -> None:
    words = [*RECIPES["rl"], f"tracker={tracker}", "tracker_samples=3", "--folder", "run"]
    assert cli("run", *words).code == 0
    steps = read(Path("run/tracking"))
    with Store.open("run/store.sqlite", read_only=True) as store:
        for number, record in step_records(store, 0, REINFORCE).items():
            rollouts = steps.pop(int(record["policy/updates"]))
            assert len(rollouts) == 3
            for rollout in rollouts:
                tree = store.tree(0, step_stage(REINFORCE, number), rollout["task"])
                (leaf,) = (o.leaf for o in tree.outcomes.values() if o.sample == rollout["sample"])
                said = [t.text for t in tree.path(leaf) if t.speaker.name == rollout["agent"]]
                assert all(text in rollout["messages"] for text in said) and said
                assert isinstance(rollout["reward"], float)
    assert not steps


@pytest.mark.parametrize("tracker", READERS)
def test_a_continued_run_continues_its_experiment(tracker: str, cli: Cli, tmp_path: Path) -> None:
    """Even if the run has moved; another run with the same name is another experiment."""
    words = (*FEW, "train.batch_size=4", f"tracker={tracker}", "--folder", "run")
    assert cli("run", "optima/isft", *words).code == 0
    Path("run").rename(tmp_path / "before")
    assert cli("run", "optima/isft", *words).code == 0
    (other,) = READERS[tracker](Path("run/tracking"))
    shutil.rmtree("run")
    (tmp_path / "before").rename("run")
    assert cli("run", "optima/isft", *once(*words, "iterations=2")).code == 0
    ((experiment, points),) = READERS[tracker](Path("run/tracking")).items()
    assert experiment != other or tracker == "tensorboard"
    steps = [step for step, _ in points["policy/loss"]]
    assert steps == list(range(1, len(steps) + 1)) and len(steps) > 2
    assert len(points["evaluate/score"]) == 3


@pytest.mark.parametrize("tracker", ["wandb", "swanlab"])
def test_a_tracker_that_does_not_start_is_an_error_with_a_fix(
    tracker: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here because there is no login."""
    monkeypatch.setenv(f"{tracker.upper()}_MODE", "online")
    monkeypatch.setenv("HOME", str(Path.cwd()))
    monkeypatch.setenv("NETRC", str(Path.cwd() / "netrc"))
    error = refused(cli, "run", "optima/isft", *FEW, f"tracker={tracker}", "--folder", "run")
    assert f"tracker={tracker} does not start" in error
