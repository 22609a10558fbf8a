"""Plug-ins are found by file, module and entry point, with settings of their own; broken ones are refused at once."""

import json
import shutil
from pathlib import Path

import pytest

from coterie.cli.doctor import check_plugins
from coterie.config.plugins import find
from coterie.datasets.catalogue import SPLITS
from coterie.datasets.load import Rows
from coterie.datasets.question_files import QASettings
from coterie.environments.registry import ENVIRONMENTS, make_environment
from coterie.errors import UserError
from coterie.recipes.registry import recipe, settings
from coterie.runs.run import StageKey
from tests.conftest import Cli, refused
from tests.helpers.read_page import read_page

ROOT = Path(__file__).parents[2]
SMALL = (
    "model=tiny-exchange", "iterations=1", "rollout.tasks=2", "rollout.rollouts_per_task=2", "rollout.max_tokens=6",
    "evaluate.tasks=2", "select.threshold=-9", "train.max_length=256", "engine.device=cpu",
)  # fmt: skip


@pytest.fixture
def guess(tmp_path: Path) -> Path:
    """The file of a plug-in."""
    return Path(shutil.copy(ROOT / "tests/helpers/guess.py", tmp_path / "guess.py"))


def package(folder: Path, name: str, group: str, entry: str) -> None:
    """Write an installed package with one entry point, as importers see it."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{entry}\n")


def test_a_file_is_a_run_of_its_own_that_resumes_from_anywhere(
    cli: Cli, guess: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = cli("run", "optima/isft", "environment=guess.py:Guess", "environment.turns=2", *SMALL,
              "--folder", tmp_path / "run")  # fmt: skip
    assert ran.code == 0, ran.err
    (overview,) = read_page(tmp_path / "run/report.html")["overview"]
    assert "Guess" in dict(overview["facts"])["benchmark"] and len(overview["evaluations"]) == 2
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert cli("run", "optima/isft", "--folder", tmp_path / "run").code == 0
    few = (f"policy={tmp_path / 'run'}", "tasks=2", "max_tokens=6")
    moved = cli("evaluate", f"{guess}:Guess", *few)
    assert moved.code == 0 and '"benchmark": "Guess"' in moved.out
    guess.write_text(guess.read_text() + "\n# another one\n")
    problem = refused(cli, "run", "optima/isft", "--folder", tmp_path / "run")
    assert f"{guess} has changed" in problem or f"{guess}:Guess has changed" in problem


def test_its_keys_are_listed_and_checked(cli: Cli, guess: Path) -> None:
    words = ("config", "optima/isft", f"environment={guess}:Guess")
    assert "The largest" in cli(*words).out
    for word, problem in (
        ("environment.mots=5", "did you mean 'environment.most'?"),
        ("environment.most=1", "environment.most=1: "),
        ("environment.agents=2", "unknown key 'environment.agents'"),
    ):
        assert problem in refused(cli, *words, word)


def test_an_entry_point_is_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, "guessing", "coterie.environments", "numbers = tests.helpers.guess:Guess")
    monkeypatch.syspath_prepend(str(tmp_path))
    own = settings("optima/isft", ["environment=numbers", "environment.most=5"])
    assert own.environment.name == "numbers" and make_environment(own).name == "guess"
    by_module = settings(
        "optima/isft", ["environment=tests.helpers.guess:Guess", "environment.most=5"]
    )
    one, other = (recipe(s).fingerprint(StageKey(0, "rollout")) for s in (own, by_module))
    assert one != other, "another name is another environment in the record"
    package(tmp_path, "taking", "coterie.environments", "exchange = tests.helpers.guess:Guess")
    with pytest.raises(UserError, match="package taking has an entry point 'exchange'"):
        settings("optima/isft")
    package(tmp_path, "more", "coterie.environments", "numbers = tests.helpers.guess:Guess")
    with pytest.raises(UserError, match="both have an entry point"):
        find(ENVIRONMENTS, "numbers")
    for name, problem in (("debates", "did you mean 'debate'"), ("no_such:W", "No module named")):
        with pytest.raises(UserError, match=problem):
            find(ENVIRONMENTS, name)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["environment=debate"], "needs a data set"),
        (["dataset=gsm8k", "environment=exchange"], "generates its own tasks"),
        (["dataset=gsm8k", "environment=information_exchange"], "but dataset=gsm8k has Gsm8kRow"),
        (["environment=persona"], "optima/isft has no preset for persona"),
    ],
)
def test_data_sets_and_environments_must_go_together(overrides: list[str], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        settings("optima/isft", overrides)


def test_a_file_of_questions_is_divided_by_its_questions(tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "qa.jsonl"
    lines = [json.dumps({"q": f"question {n % 20}?", "a": f"answer {n % 20}"}) for n in range(40)]
    file.write_text("\n".join(lines))
    own = QASettings(name="qa", source=str(file), heldout=0.25, question="q", answer="a")
    train, heldout = (Rows(own).split(split) for split in SPLITS)
    assert (len(train), len(heldout)) == (15, 5), "each question once"
    assert not {row.key for row in train} & {row.key for row in heldout}
    file.write_text("\n".join(reversed(lines)))
    assert {row.key for row in Rows(own).split("heldout")} == {row.key for row in heldout}
    columns = ("dataset.question=q", "dataset.answer=a")
    overrides = (
        f"dataset.source={file}",
        *columns,
        "policy=tiny-exchange",
        "tasks=2",
        "max_tokens=6",
    )
    played = cli("evaluate", "qa", *overrides, "environment=debate", "environment.turns=2")
    assert played.code == 0 and '"benchmark": "qa"' in played.out, played.err
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    (tmp_path / "heldout.jsonl").write_text(lines[0])
    folder = ("dataset=qa", f"dataset.source={tmp_path}", *columns)
    problem = refused(cli, "run", "optima/isft", *folder, *SMALL)
    assert "1 questions of qa are both training and held-out rows" in problem


ROWS = "from coterie.datasets.rows import QuestionRow\nclass Mine:\n    row = QuestionRow\n    def rows(self, split):\n"
RECIPE = "from coterie.recipes.base import Recipe\nclass Mine(Recipe):\n"
WORLD = "class World:\n    "
ENV, SET = "optima/isft|environment={}:World", "optima/isft|dataset={}:Mine"
TERM = "optima/isft|reward.terms={{{}:mine: 1}}"
TOOL = "optima/isft|tools=[{}:Mine]|tools.calls=tags"
PARTS = [
    (ENV.replace("{}", "missing.py"), "", "there is no file"),
    (ENV, "class World(:\n", "mine.py, line 1: SyntaxError"),
    (ENV, "import os\nimport not_there\n", "mine.py, line 2: ModuleNotFoundError: No module"),
    (ENV, "import sys\nsys.exit(3)\n", "mine.py, line 2: SystemExit: 3"),
    (ENV, "class Word: pass\n", "has no World"),
    (ENV, "World = 5\n", "is not a class"),
    (ENV, f"{WORLD}pass\n", "has no name, version, actors"),
    (ENV, f"{WORLD}settings_type = dict\n", "settings_type that is not settings"),
    (ENV, f"{WORLD}def __init__(self):\n        self.x = 1 / 0\n", "mine.py, line 3: ZeroDivisionError"),
    (SET, "class Mine: pass\n", "has no method rows"),
    (SET, "class Mine:\n    def rows(self, split): return []\n", "has no row type that is QuestionRow"),
    (SET, f"{ROWS}        return []\n", "has no train rows"),
    (SET, f"{ROWS}        return ['text']\n", "has a str as row 1 of train"),
    (SET, f"{ROWS}        return [QuestionRow(id='a', question='b', answer='c')]\n", "both training and held-out"),
    (TERM, "mine = 5\n", "is not a function"),
    (TOOL, "class Mine: tools, tags = (), {}\n", "has no identity, open"),
    ("{}:Mine", "class Mine: pass\n", "is not a recipe"),
    ("{}:Mine", f"{RECIPE}    pass\n", "has no stages"),
    ("{}:Mine", f"{RECIPE}    def stages(self): return []\n", "has no default environment or data set"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "text", "problem"), PARTS)
def test_a_broken_plugin_is_refused_with_its_place(
    words: str, text: str, problem: str, tmp_path: Path, cli: Cli
) -> None:
    (tmp_path / "mine.py").write_text(text)
    small = SMALL if words.startswith("optima") else ()
    assert problem in refused(
        cli, "run", *words.format(tmp_path / "mine.py").split("|"), *small, "--dry-run"
    )


def test_a_reward_belongs_to_what_its_stage_depends_on(tmp_path: Path) -> None:
    prints = []
    for text in ("def mine(sample): return 1\n", "def mine(sample): return 2\n"):
        (tmp_path / "mine.py").write_text(text)
        own = recipe(settings("optima/isft", [f"reward.terms={{{tmp_path}/mine.py:mine: 1}}"]))
        prints.append([own.fingerprint(StageKey(0, stage)) for stage in ("rollout", "reward")])
    assert prints[0][0] == prints[1][0] and prints[0][1] != prints[1][1]


def test_a_recipe_of_a_file_has_values_and_a_role_of_its_own(tmp_path: Path, cli: Cli) -> None:
    """The example with another default, under a role of another name: it plays all agents and is trained."""
    text = (ROOT / "examples/recipe.py").read_text()
    assert 'trains="policy"' in text and "max_length=1024" in text
    text = text.replace('trains="policy"', 'trains="student"').replace(
        "max_length=1024", "max_length=512"
    )
    roles = '    def roles(self):\n        return (Role("student", self.settings.model),)\n'
    (tmp_path / "mine.py").write_text(f"from coterie.runs.loop import Role\n{text}\n{roles}")
    overrides = ("environment=exchange", "model=tiny-exchange", "train.epochs=2")
    own = settings(f"{tmp_path}/mine.py:BestOfN", overrides)
    assert own.model_dump()["train"]["max_length"] == 512
    few = ("tasks=2", "evaluate.tasks=2", "engine.device=cpu", "--folder", "run")
    ran = cli("run", f"{tmp_path}/mine.py:BestOfN", *overrides, *few)
    assert ran.code == 0, ran.err
    assert (tmp_path / "run/training/student/iteration-00/final/model.safetensors").is_file()
    assert not (tmp_path / "run/training/policy").exists()
    assert '"version": 1' in cli("evaluate", "exchange", "policy=run", "tasks=2").out


def test_doctor_imports_each_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins = {"fine": "", "raises": "x = 1 / 0\n", "exits": "import sys\nsys.exit(3)\n"}
    for name, text in plugins.items():
        (tmp_path / f"{name}.py").write_text(f"{text}def {name}(sample): return 1\n")
        package(tmp_path, f"package_{name}", "coterie.rewards", f"{name} = {name}:{name}")
    results = {one.what.rpartition(" ")[2]: one for one in check_plugins()}
    assert results["fine"].ok and not results["raises"].ok and not results["exits"].ok
    assert "raises.py, line 1: ZeroDivisionError" in results["raises"].result
