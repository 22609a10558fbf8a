"""What the pages take for granted: runs, files of the user's, a model, a hub."""

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent

import pytest

from coterie.config.folders import sha256
from coterie.datasets.catalogue import find
from coterie.datasets.files import REVISIONS
from coterie.datasets.load import distinct_passages, rows_of, write_passages
from coterie.models.catalogue import MANIFEST
from coterie.tools.retrieval import build_index
from tests.docs_check.pages import ROOT
from tests.docs_check.rules import MOAT, ON_ROWS, SMALL, SWEET
from tests.docs_check.terminal import HOME, typed
from tests.environments.games.test_pddl import write_game
from tests.environments.plans.test_python_maths import FUNCTIONS
from tests.helpers.program_rows import CODEFORCES, EXAMS, HUMANEVAL, LIVE, METHOD, PROGRAM_TRACES
from tests.helpers.serve_command import serve_command
from tests.helpers.serve_hub import Hub, serve_files
from tests.helpers.template_models import make_model
from tests.helpers.web_tasks import write_tasks
from tests.helpers.write_rows import write_parquet
from tests.recipes.test_sweet_steps import ROWS

SAMPLES = Path(str(resources.files("coterie") / "assets/data"))
RUNS = {
    "isft": f"optima/isft {SMALL}",
    "lora": f"optima/isft {SMALL} train.method=lora",
    "sweet": f"sweet_rl/backend {SWEET}",
    "moat": f"moat/maths {MOAT}",
    "rl": f"rl/grpo {ON_ROWS}",
}
"""Runs that pages have from elsewhere."""


@dataclass(frozen=True)
class House:
    """What all pages share."""

    folder: Path
    server: str
    """The URL of ``coterie serve model tiny-exchange``."""

    def prepared(self, name: str) -> Path:
        """A finished run of :data:`RUNS`; the first of several processes makes it."""
        with (self.folder / f"{name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (self.folder / name).exists():
                words = ["coterie", "run", *RUNS[name].split(), "--folder", f"new-{name}"]
                fault = typed(words, self.folder)
                assert not fault, fault
                (self.folder / f"new-{name}").rename(self.folder / name)
        return self.folder / name


Make = Callable[[House, Path], object]


def run(name: str) -> Make:
    return lambda house, path: shutil.copytree(house.prepared(name), path)


def lines(*rows: object) -> Make:
    return lambda _, path: path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def text(content: str) -> Make:
    return lambda _, path: path.write_text(content)


def whole(rows: Path) -> Make:
    """The rows of a file of lines as one list."""
    return lambda _, path: path.write_text(f"[{','.join(rows.read_text().splitlines())}]")


def first_block(page: str) -> Make:
    """Write the first block of Python of a page."""
    _, _, rest = (ROOT / page).read_text().partition("```python\n")
    return text(dedent(rest.partition("```")[0]))


def upstream_tasks(_: House, path: Path) -> None:
    """Write functions under the names of the files on the hub."""
    path.mkdir()
    for name, sample in (("train", "train"), ("test", "heldout")):
        shutil.copy(SAMPLES / f"colbench_code/{sample}.jsonl", path / f"{name}.jsonl")


def worked(start: int, stop: int) -> list[dict[str, str]]:
    """Return word problems with solutions as in GSM8K."""
    return [
        {"question": f"How much is {n} and 1?", "answer": f"It is {n}+1=<<{n}+1={n + 1}>>{n + 1}.\n#### {n + 1}"}
        for n in range(start, stop)
    ]  # fmt: skip


def index_of_pages(house: House, path: Path) -> None:
    lines(NORWAY)(house, path.with_name("pages.jsonl"))
    build_index(path.with_name("pages.jsonl"), path)


def own_passages(name: str) -> Make:
    """Write the passages of the packaged rows of a data set, as ``coterie data passages`` does."""
    return lambda _, path: write_passages(distinct_passages(rows_of(name, ["sample"])), path)


def tool_tasks(house: House, path: Path) -> None:
    (own := path / "trade_calculator").mkdir(parents=True)
    lines(*worked(0, 3))(house, own / "tasks.jsonl")
    (own / "functions.py").write_text(FUNCTIONS)


def pddl_game(_: House, path: Path) -> None:
    path.mkdir()
    write_game(path).rename(path / "gripper.pddl")
    (path / "post").rename(path / "gripper")


QUESTIONS = tuple({"question": f"{n} + 1?", "answer": f"It is {n + 1}."} for n in range(40))
PREFERENCES = tuple(
    {"prompt": row["question"], "chosen": row["answer"], "rejected": "No."} for row in QUESTIONS
)
SEARCH = "tools:\n  - name: wiki_search\n    corpus: passages.jsonl\n    topk: 2\n"
NORWAY = {"title": "Norway", "text": "Oslo is the capital of Norway."}
OSLO = {"id": "7", "contents": '"Oslo"\nOslo is the capital of Norway.'}
GIVEN: Mapping[str, Mapping[str, Make]] = {
    "docs/recipes/sft.md": {
        "chats.jsonl": lines(*QUESTIONS),
        "gsm8k550.jsonl": lines(*QUESTIONS),
        "preferences.jsonl": lines(*PREFERENCES),
    },
    "README.md": {
        "chats.jsonl": lines(*QUESTIONS),
        "preferences.jsonl": lines(*PREFERENCES),
        "questions.jsonl": lines(*({**row, "answer": str(n + 1)} for n, row in enumerate(QUESTIONS))),
        "rewards.py": text(
            "def score(question, reply, answer, row):\n    return float(answer in reply)\n"
        ),
        "my_agent.py": first_block("docs/howto/own-agent.md"),
    },
    "docs/concepts.md": {
        "mine.yaml": lambda house, path: shutil.copy(house.prepared("isft") / "config.yaml", path)
    },
    "docs/howto/action-lines.md": {"pages.jsonl": lines(NORWAY)},
    "docs/howto/bring-your-own.md": {
        "runs/lora": run("lora"),
        "mine.jsonl": lines(*({"q": f"What is {n} and 1?", "a": str(n + 1)} for n in range(40))),
    },
    "docs/howto/data-and-models.md": {
        "hotpot_dev_distractor_v1.json": whole(SAMPLES / "hotpot_qa/heldout.jsonl"),
        "errands.jsonl": lambda _, path: write_tasks(path), "backend_tasks": upstream_tasks,
    },
    "docs/howto/evaluate.md": {
        "runs/mine": run("isft"), "runs/sweet": run("sweet"), "runs/moat": run("moat"), "runs/rl": run("rl"),
        "runs/sft": run("isft"), "questions.jsonl": lines(*({**row, "kind": "sum"} for row in worked(0, 40))),
        "pddl": pddl_game, "m3": tool_tasks,
    },
    "docs/recipes/moat.md": {
        "runs/moat": run("moat"), "errands.jsonl": lambda _, path: write_tasks(path), "pages": index_of_pages,
    },
    "docs/recipes/rl.md": {"runs/mine": run("rl")},
    "docs/howto/viewer.md": {"runs/mine": run("isft")},
    "docs/recipes/gap.md": {"tools.yaml": text(SEARCH)},
    "experiments/gap.md": {"tools.yaml": text(SEARCH), "passages.jsonl": own_passages("2wiki")},
    "docs/howto/contests.md": {
        "livecodebench.jsonl": lines(LIVE, METHOD), "aime24.jsonl": lines(EXAMS["aime24"]),
        "HumanEval.jsonl": lines(HUMANEVAL), "codeforces.jsonl": lines(CODEFORCES),
        "traces.json": text(json.dumps(PROGRAM_TRACES)),
    },
    "docs/howto/first-hour.md": {"letters.py": lambda _, path: shutil.copy(ROOT / "examples/letters.py", path)},
    "docs/howto/own-agent.md": {"my_agent.py": first_block("docs/howto/own-agent.md")},
    "docs/howto/export.md": {
        "colbench_code_offline_15k_llama8b.jsonl": lines(*ROWS), "runs/mine": run("isft"),
    },
    "docs/howto/serve-and-endpoints.md": {"runs/optima-isft": run("isft"), "runs/rl": run("rl")},
    "docs/howto/training.md": {"chats.jsonl": lines(*QUESTIONS)},
    "docs/howto/search.md": {"passages.jsonl": lines(OSLO)},
    "docs/howto/tools.md": {
        "passages.jsonl": lines(OSLO),
        "tools.yaml": text("tools:\n  - name: wiki_search\n    corpus: passages.jsonl\n"),
    },
}  # fmt: skip
"""What a page does not say how to make, by its place in the page's folder."""


def furnish(page: str, folder: Path, house: House) -> None:
    """Put into a page's folder what is there in the repository, and what is given."""
    for name in ("examples", "configs", "bench"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "runs").mkdir()
    shutil.copytree(house.folder / HOME, folder / HOME)
    for name, make in GIVEN.get(page, {}).items():
        make(house, folder / name)


@contextmanager
def house(folder: Path, variables: pytest.MonkeyPatch) -> Iterator[House]:
    """Everything that pages share, in a folder; before any command, for all processes are forked from one that has read
    the hub's address."""
    home = folder / HOME
    with (folder / "home.lock").open("a") as lock, ExitStack() as stack:
        hub = serve_files(Hub(_hub_files(), revision=REVISIONS[0]))
        stack.callback(hub.server_close)
        stack.callback(hub.shutdown)
        variables.setenv("HF_ENDPOINT", f"http://127.0.0.1:{hub.server_port}")
        variables.setenv("HF_HOME", str(folder / "hub"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not home.exists():
            _put_model(home / "models/smollm2")
        fcntl.flock(lock, fcntl.LOCK_UN)
        _, server = stack.enter_context(
            serve_command("model", "tiny-exchange", "--port", "0", logs=True)
        )
        yield House(folder, server)


def _hub_files() -> dict[str, bytes]:
    (repository,) = find("gsm8k").repos
    parts = {
        repository.train[0]: worked(0, 40),
        repository.heldout[0]: worked(40, 60),
        "default/train_prefs/0000.parquet": list(PREFERENCES),
    }
    with TemporaryDirectory() as own:  # two workers of pytest have one folder
        tables = {
            name: write_parquet(Path(own) / "made.parquet", *rows).read_bytes()
            for name, rows in parts.items()
        }
    folder = SAMPLES / "colbench_code"
    return {
        **tables,
        "backend_tasks/train.jsonl": (folder / "train.jsonl").read_bytes(),
        "backend_tasks/test.jsonl": (folder / "heldout.jsonl").read_bytes(),
    }


def _put_model(folder: Path) -> None:
    """A random model in the place of ``smollm2``, as ``coterie models get`` leaves it."""
    made = make_model("smollm2", context=8192)
    made.model.save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)
    files = {file.name: sha256(file) for file in folder.iterdir()}
    (folder / MANIFEST).write_text(json.dumps({"files": files}))
