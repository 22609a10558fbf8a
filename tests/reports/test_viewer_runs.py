"""The viewer on finished runs: its walks in Chromium, its numbers and lineage against the record, and secrets.

Tests of the page are skipped without Chromium.
"""

import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

import coterie.cli.view as view_module
from coterie.cli.app import main
from coterie.cli.view import tokenizer_files
from coterie.models.loading import load
from coterie.record.browse import KEY, ROW, ROWS
from coterie.record.rows import TrainedRow, rows, view
from coterie.record.store import Store
from coterie.record.tree import Tree
from coterie.rollout.dense_search import distinct_rollouts
from coterie.runs.run import read_config
from coterie.runs.search_items import rollouts
from tests.golden import methods
from tests.golden.__main__ import WIKI, commands
from tests.reports.conftest import Viewer

COMMON = "seed=7 evaluate.tasks=2 engine.device=cpu"
QUICK = {
    "rl/grpo": f"{COMMON} rollout.tasks=3 rollout.rollouts_per_task=4 rollout.max_tokens=32 steps.count=1",
    "dense_tree/tiny": (
        f"{COMMON} model=tiny-acts rollout.tasks=2 rollout.max_tokens=24 environment.steps=8 search.max_children=3 "
        "search.rollouts_per_search=4 search.pairs=6 search.rollouts_per_task=16 pairs.margin=0.1 pairs.max_visits=1 "
        "budget.pairs=6 train.batch_size=4 train.max_length=1024"
    ),
    "sft": f"chats.jsonl {COMMON} model=tiny-exchange evaluate.rows=2 evaluate.max_tokens=4 train.max_length=256",
}
"""Words of runs of seconds."""
WALKED = (
    *QUICK,
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("optima/isft", "rl/ppo", "sweet_rl/backend")
    ),
)
"""Runs on which the walks are made."""
RUNS = (
    *QUICK,
    *(pytest.param(name, marks=pytest.mark.slow) for name in methods.METHODS if name not in QUICK),
)
FIRST = "the first link of the list"
Runs = Mapping[str, Path]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Runs:
    """Folders of finished runs by method: all that the tests of this session ask for.

    They are made before the browser is there, whose event loop would not let another one run.
    """
    folder, made = tmp_path_factory.mktemp("viewed"), dict[str, Path]()
    chats = [
        [{"role": "user", "content": f"What is {n} plus 1?"}, {"role": "assistant", "content": f"It is {n + 1}"}]
        for n in range(12)
    ]  # fmt: skip
    (folder / "chats.jsonl").write_text(
        "".join(json.dumps({"messages": chat}) + "\n" for chat in chats)
    )
    wiki = Path(__file__).parents[2] / WIKI
    lines = [line for split in ("train", "heldout") for line in (wiki / f"{split}.jsonl").open()]
    methods.write_inputs(folder, [json.loads(line) for line in lines])
    tests = [item for item in request.session.items if hasattr(item, "callspec")]
    asked = [item.callspec.params["method"] for item in tests if item.path == Path(__file__)]
    for method in dict.fromkeys([*QUICK, *asked]):
        made[method] = folder / method.replace("/", "-")
        quick = [f"run {method} {QUICK.get(method)} --folder {made[method]}".split()]
        for words in quick if method in QUICK else commands(method, renamed=True):
            with pytest.MonkeyPatch.context() as patch, contextlib.suppress(SystemExit):
                patch.chdir(folder)
                patch.setenv("COTERIE_HOME", f"{folder}/home")
                patch.setattr(sys, "argv", ["coterie", *words])
                main()
        assert (made[method] / "store.sqlite").is_file()
    return made


class RunViewer(Viewer):
    """A window with the page of a run."""

    def __init__(self, browser: Any, folder: Path) -> None:
        self.source = view_module.Viewer([folder], show_secrets=False)
        super().__init__(browser, {})

    def answer(self, name: str, params: dict[str, str]) -> Any:
        return json.loads(view_module.dumps(self.source.answer(name, params)))

    def walk(self, hand: str, *links: str) -> str:
        """Follow links from the overview, by mouse or keyboard alone; return the text of the last screen."""
        assert len(links) <= 4
        self.open("#/")
        for link in links:
            if link == FIRST:
                element = self.page.locator(".line:not(.head) a").first
            else:
                element = self.page.get_by_role("link", name=link, exact=True).first
            if hand == "mouse":
                element.click()
            else:
                focused, tabs = "element => element === document.activeElement", 0
                while not element.evaluate(focused) and (tabs := tabs + 1) < 60:
                    self.press("Tab")
                assert tabs < 60, f"Tab does not reach {link}"
                self.press("Enter")
            self.wait()
        assert self.problems == []
        return str(self.page.inner_text("main"))


@pytest.fixture
def window(shared_browser: Any) -> Iterator[Callable[[Path], RunViewer]]:
    windows = list[RunViewer]()

    def opened(folder: Path) -> RunViewer:
        windows.append(RunViewer(shared_browser, folder))
        return windows[-1]

    yield opened
    for opened_window in windows:
        opened_window.page.close()


class Raised(NamedTuple):
    """The row and the token that an optimizer step made more likely than any other, from the record alone."""

    position: int
    row: TrainedRow
    token: int | None
    """Id of the token; ``None`` for a row of a file, whose tokens are not recorded."""
    tree: Tree | None
    pair: int | None
    """Position of the other side."""


def sampled(trees: list[Tree], row: TrainedRow) -> tuple[Tree | None, list[int], list[float]]:
    """Return the tree of a row, and ids and log-probs of its trained tokens."""
    leaf = row.origin.split("/")[0]
    tree = next((tree for tree in trees if leaf in tree.turns), None)
    if tree is None:
        return None, [], []
    _, agent, segment = row.origin.split("/")
    source = [*rows(view(tree, leaf, agent))][int(segment)]
    turns = [row.turn] if row.turn else [target.turn for target in source.targets]
    ids = [id_ for turn in turns for id_ in tree.turns[turn].ids]
    assert len(ids) == row.tokens
    return tree, ids, [p for turn in turns for p in tree.turns[turn].sample.logprobs]  # type: ignore[union-attr]


def raised(folder: Path, update: dict[str, Any]) -> Raised:
    with Store.open(folder / "store.sqlite", read_only=True) as store:
        trained = store.update(
            update["iteration"], update["stage"], update["role"], update["updates"]
        ).rows
        trees = [store.read_tree(key) for key in store.tree_keys()]
    rises = dict[int, float]()
    for position, row in enumerate(trained):
        if "advantage" in row.arrays:
            rises[position] = float(
                np.max(row.arrays["advantage"] * (1 - np.exp(row.arrays["logprob"])))
            )
        elif row.side != "rejected":
            rises[position] = row.metrics["loss"]
    position = max(rises, key=lambda n: rises[n])
    row = trained[position]
    tree, ids, logprobs = sampled(trees, row)
    weights = row.arrays.get("advantage", np.ones(len(ids)))
    gains = weights * (1 - np.exp(row.arrays.get("logprob", logprobs)))
    sides = [
        n for n, side in enumerate(trained) if side.pair == row.pair is not None and n != position
    ]
    return Raised(
        position, row, ids[int(np.argmax(gains))] if ids else None, tree, *(sides or [None])
    )


@pytest.mark.parametrize("hand", ["mouse", "keyboard"])
@pytest.mark.parametrize("method", WALKED)
def test_two_links_lead_to_the_token_that_the_last_step_raised_and_its_pair_or_group(
    runs: Runs, window, method: str, hand: str
) -> None:
    viewer = window(runs[method])
    (update,) = [
        u for u in viewer.source.answer("overview", {})["last_updates"] if u["role"] == "policy"
    ]
    expected = raised(viewer.source.folders[0], update)
    link = "What the last step made more likely"
    text = viewer.walk(hand, link)
    assert f"Row {expected.position} of update {update['updates']}, policy" in text
    if expected.tree is None:
        assert f"read {expected.row.origin} of the training data" in text
        return
    facts = viewer.page.inner_text(".inspector")
    assert f"id\n{expected.token}\n" in facts
    assert ("advantage\n" in facts) == ("advantage" in expected.row.arrays)
    # The keys go on from this token.
    viewer.press("End")
    assert facts != viewer.page.inner_text(".inspector")
    if expected.pair is not None:
        text = viewer.walk(hand, link, "Its pair: rejected")
        assert f"Row {expected.pair} of update" in text and "rejected" in text
    text = viewer.walk(hand, link, "Its task and group")
    assert viewer.page.inner_text("h1") == expected.tree.task
    leaves = viewer.page.locator("tbody td:first-child a[href*=path]").count()
    assert leaves == len(expected.tree.outcomes)


@pytest.mark.parametrize("hand", ["mouse", "keyboard"])
@pytest.mark.parametrize("method", [name for name in WALKED if name != "sft"])
def test_two_links_lead_to_a_rollout_that_was_not_used_and_its_reason(
    runs: Runs, window, method: str, hand: str
) -> None:
    viewer = window(runs[method])
    with Store.open(viewer.source.folders[0] / "store.sqlite", read_only=True) as store:
        stages = {(item.key.iteration, item.key.stage) for item in store.items()}
        entries = [entry for stage in stages for _, entry in store.left_out(*stage)]
        trees = [store.read_tree(key) for key in store.tree_keys()]
    if not entries:
        viewer.open("#/")
        assert "Rollouts that were not used" not in viewer.page.inner_text("main")
        return
    text = viewer.walk(hand, "Rollouts that were not used", FIRST)
    screen = viewer.page.evaluate("decodeURIComponent(location.hash).split('?')[0].split('/')")
    if "path" in screen:
        tree = next(tree for tree in trees if screen[-1] in tree.turns)
        nodes = {tree.root, *(turn.id for turn in tree.path(screen[-1]))}
    else:
        # Candidates of turns have a task, but no rollout.
        (tree,) = [t for t in trees if [str(t.iteration), t.stage, t.task] == screen[2:]]
        nodes = {tree.root, *tree.turns}
    reasons = {entry.reason for entry in entries if entry.node in nodes}
    assert reasons and all(reason.replace("_", " ") in text for reason in reasons)


@pytest.mark.parametrize("hand", ["mouse", "keyboard"])
@pytest.mark.parametrize("method", WALKED)
def test_two_links_lead_to_the_same_task_before_and_after(
    runs: Runs, window, method: str, hand: str
) -> None:
    viewer = window(runs[method])
    viewer.walk(hand, "Tasks before and after", FIRST)
    task = viewer.page.evaluate("new URLSearchParams(location.hash.split('?')[1]).get('task')")
    with Store.open(viewer.source.folders[0] / "store.sqlite", read_only=True) as store:
        iterations = store.iterations("evaluate")
        for side, iteration in (("Before", iterations[0]), ("After", iterations[-1])):
            (outcome,) = store.tree(iteration, "evaluate", task).outcomes.values()
            card = viewer.page.locator(f"article[aria-label={side}]")
            assert f"{outcome.score:.3f}" in card.inner_text()
            assert outcome.leaf in card.locator("h3 a").get_attribute("href")


@pytest.mark.parametrize("method", RUNS)
def test_each_row_leads_to_the_turns_that_list_it_and_no_other_turn_does(
    runs: Runs, method: str
) -> None:
    folder = runs[method]
    source = view_module.Viewer([folder], show_secrets=False)
    with Store.open(folder / "store.sqlite", read_only=True) as store:
        trees = [store.read_tree(key) for key in store.tree_keys()]
    expected, listed = set[tuple[Any, ...]](), set[tuple[Any, ...]]()
    for trained in source.browsers[0].records(f"SELECT {ROW} {ROWS} WHERE leaf NOTNULL", ()):
        key, leaf, turn = [trained[name] for name in KEY], trained["leaf"], trained["turn"]
        tree = next(tree for tree in trees if leaf in tree.turns)
        row = [*rows(view(tree, leaf, trained["agent"]))][trained["segment"]]
        turns = {turn} if turn else {target.turn for target in row.targets}
        expected |= {(target, *key) for target in turns}
        shown = source.answer("row", dict(zip(KEY, map(str, key), strict=True)))
        assert {target["turn"] for target in shown["targets"]} == turns
    for tree in trees:
        for turn in tree.turns:
            for shown in source.answer("turn", {"id": turn})["rows"]:
                listed.add((turn, *(shown[name] for name in KEY)))
    assert listed == expected


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for item in value.values() for text in texts_in(item))
    elif isinstance(value, list | tuple):
        yield from (text for item in value for text in texts_in(item))


@pytest.mark.parametrize("method", RUNS)
def test_an_export_has_no_secret_as_text_or_as_ids(runs: Runs, method: str) -> None:
    folder = runs[method]
    source = view_module.Viewer([folder], show_secrets=False)
    public, secrets = list[str](), set[str]()
    with Store.open(folder / "store.sqlite", read_only=True) as store:
        trees = [store.read_tree(key) for key in store.tree_keys()]
        for task in map(store.task, store.task_ids()):
            public += [json.dumps(task.public, ensure_ascii=False), *texts_in(task.public)]
            secrets |= {secret.reveal(min(secret.readers)) for secret in task.secrets.values()}
    for tree in trees:
        messages = [
            message.parts for request in tree.requests.values() for message in request.messages
        ]
        parts = [part for of in (*messages, *(t.parts for t in tree.turns.values())) for part in of]
        public += [part.text for part in parts if not part.source.startswith("secret:")]
        for turn in tree.turns.values():
            public += [call.arguments for call in turn.calls]
            public += [result.text for result in turn.results]
        # Actions of agents may come to the right answer, which then is in no turn.
        for outcome, path in tree.trajectories():
            if not any(part.source.startswith("secret:") for turn in path for part in turn.parts):
                public.append(outcome.answer or "")
    keys = [view_module.TaskKey(tree.iteration, tree.stage, tree.task) for tree in trees]
    answers = [*view_module.run_answers(source, keys), *view_module.task_answers(source, keys)]
    shown, numbers = "\n".join(texts_in(answers)), view_module.dumps(answers)
    # A number that is also the value of a setting is no secret.
    (sections,) = [answer for route, _, answer in answers if route == "sections"]
    public += texts_in([s for s in sections["sections"] if s["id"] in ("changes", "settings")])
    tokenizers = [
        Tokenizer.from_file(f"{file}") for file in tokenizer_files(folder, read_config(folder)[1])
    ]
    for secret in secrets:
        # An agent may find the right answer, and the question may mention it.
        as_word = re.compile(rf"(?<!\w){re.escape(secret)}(?!\w)")
        if as_word.search("\n".join(public)):
            continue
        assert not as_word.search(shown), secret
        for tokenizer in tokenizers:
            # The first and the last token may be joined with what is around the secret.
            ids = ",".join(map(str, tokenizer.encode(secret).ids[1:-1]))
            assert ids.count(",") < 2 or not re.search(rf"[\[,]{ids}[\],]", numbers), secret


def test_numbers_of_a_pair_are_the_losses_of_the_model(runs: Runs) -> None:
    """The reference is computed again by the base model, margin and loss from the log-probs."""
    folder = runs["dense_tree/tiny"]
    source = view_module.Viewer([folder], show_secrets=False)
    settings = read_config(folder)[1]
    (update,) = source.answer("overview", {})["last_updates"]
    model = load("tiny-acts").model
    for position in range(0, update["rows"], 2):
        sides = list[float]()
        for n in (position, position + 1):
            shown = source.answer(
                "row", {name: f"{({**update, 'position': n})[name]}" for name in KEY}
            )
            metrics, ids = shown["metrics"], torch.tensor([shown["ids"]])
            (target,) = shown["targets"]
            with torch.no_grad():
                logprobs = model(input_ids=ids).logits.log_softmax(-1)[0, :-1]
            of_tokens = logprobs.gather(1, ids[0, 1:, None])[
                target["start"] - 1 : target["stop"] - 1
            ]
            assert metrics["reference"] == pytest.approx(float(of_tokens.sum()), abs=1e-3)
            sides.append(metrics["logprob"] - metrics["reference"])
        assert shown["row"]["side"] == "rejected"
        margin = settings["objective"]["beta"] * (sides[0] - sides[1])
        assert metrics["margin"] == pytest.approx(margin, abs=1e-5)
        assert metrics["loss"] == pytest.approx(np.log1p(np.exp(-margin)), abs=1e-5)


def test_values_and_visits_of_a_tree_are_those_of_its_rollouts(runs: Runs) -> None:
    folder = runs["dense_tree/tiny"]
    source = view_module.Viewer([folder], show_secrets=False)
    checked = 0
    with Store.open(folder / "store.sqlite", read_only=True) as store:
        for tree in store.trees(0, "rollout"):
            rewards, leaves = dict[str, list[float]](), dict[str, set[str]]()
            recorded = rollouts(store, 0, tree.task)[tree.task]
            for path, rollout in distinct_rollouts(tree, recorded, set()):
                for node in (tree.root, *path):
                    rewards.setdefault(node, []).append(rollout.reward or 0.0)
                    leaves.setdefault(node, set()).add(path[-1])
            place = {"iteration": "0", "stage": "rollout", "task": tree.task}
            shown = source.answer("tree", place)
            assert shown["id"][0] == tree.root
            for node, value, visits in zip(
                shown["id"], shown["value"], shown["visits"], strict=True
            ):
                if node in rewards:
                    assert value == pytest.approx(np.mean(rewards[node]), abs=1e-4)
                    assert visits == len(leaves[node])
                    checked += 1
    assert checked > 20


def test_the_overview_names_benchmark_metric_and_the_row_that_the_last_step_raised_most(
    runs: Runs,
) -> None:
    overview = view_module.Viewer([runs["rl/grpo"]], show_secrets=False).answer("overview", {})
    assert dict(overview["facts"])["benchmark"] == "exchange"
    assert overview["metric"] == "exact match"
    (update,) = overview["last_updates"]
    assert update["position"] == raised(runs["rl/grpo"], update).position
