"""``coterie view``: the record of a run in the browser, as one HTML file, or as text."""

import asyncio
import base64
import contextlib
import dataclasses
import gc
import getpass
import hashlib
import html
import itertools
import json
import os
import re
import secrets
import socket
import webbrowser
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import typer

from coterie.errors import CONTROL_CHARACTERS, UserError, did_you_mean
from coterie.terminal import notes, results

NUMBERS = ("iteration", "updates", "position")
"""Parameters that are numbers."""
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
IMAGES = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif", b"RIFF": "webp"}
"""First bytes of images, and their types."""
POLICY = (
    "default-src 'none'; script-src {0}; style-src {0}; connect-src {1}; img-src {2}; base-uri 'none'; "
    "form-action 'none'; require-trusted-types-for 'script'"
)
"""Content security policy: texts of models could neither run nor load anything, even if the page showed them as HTML.

Takes the sources of scripts and styles, of answers, and of images.
"""
MAX_EXPORT = 50 * 2**20
LARGE = 2000
"""Number of rollouts of a stage whose list is read before it is asked for. Lists of fewer take 0.2 seconds."""
SHOWN = CONTROL_CHARACTERS | dict.fromkeys(
    (*range(0x202A, 0x202F), *range(0x2066, 0x206A)), "\ufffd"
)
"""Table for ``str.translate``. Marks of direction could make a text look like another one in a terminal."""
Fields = dict[str, Any]
Answer = tuple[str, Mapping[str, str], Any]
"""Route, parameters and answer."""
ListAhead = tuple[Mapping[str, str], object, str]
"""Parameters of a list that is read before it is asked for, the state of the store, and the answer as JSON."""
console = notes()


class TaskKey(NamedTuple):
    """Dialogues of a task in a stage."""

    iteration: int
    stage: str
    task: str
    run: int = 0

    def params(self, *names: str) -> dict[str, str]:
        """Return these fields as the parameters of an answer; run 0 is not named."""
        fields = {name: str(getattr(self, name)) for name in names}
        return fields | ({"run": str(self.run)} if self.run else {})


class Viewer:
    """Answers about one or several runs.

    Args:
        folders: Run folders, or stores of evaluations.
        show_secrets: Include secrets of tasks, and prompts that contain them.
        tokenizers: Files ``tokenizer.json`` of each store of an evaluation.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        *,
        show_secrets: bool,
        tokenizers: Mapping[Path, Iterable[Path]] = MappingProxyType({}),
    ) -> None:
        from coterie.record import lineage
        from coterie.record.browse import KEY, Browser
        from coterie.runs.run import read_config

        self.folders, self.browsers = folders, list[Browser]()
        for folder in folders:
            store, files = folder, tokenizers.get(folder)
            if files is None:
                stored = read_config(folder)[1]
                store, files = folder / "store.sqlite", tokenizer_files(folder, stored)
            self.browsers.append(Browser(store, files, secrets=show_secrets))
            self.browsers[-1].version()  # a missing or foreign store is an error of the command
        self.routes: dict[str, tuple[Callable[..., Fields], Sequence[str]]] = {
            "tasks": (Browser.tasks, ("iteration", "stage")),
            "search": (Browser.search, ("iteration", "stage", "text")),
            "task": (Browser.task, ("iteration", "stage", "task")),
            "tree": (Browser.tree, ("iteration", "stage", "task")),
            "path": (lineage.path, ("leaf",)),
            "prompt": (lineage.prompt, ("turn",)),
            "turn": (lineage.turn, ("id",)),
            "row": (lineage.row, KEY),
        }

    def close(self) -> None:
        for browser in self.browsers:
            browser.close()

    def answer(self, route: str, params: Mapping[str, str]) -> Fields:
        """Return the answer of a route; ``run`` is the number of the run.

        Raises ``KeyError`` for an unknown route, run, node or task, and ``ValueError`` for other parameters.
        """
        number = int(params.get("run", "0"))
        values = {name: value for name, value in params.items() if name != "run"}
        if not 0 <= number < len(self.browsers):
            raise KeyError(f"there is no run {number}")
        browser = self.browsers[number]
        if route == "version":
            versions = " ".join(browser.version() for browser in self.browsers)
            return {"version": versions, "running": browser.is_written()}
        if route == "health":
            from coterie.reports.health import health  # other routes start without it

            return {"checks": health(browser.store, self.folders[number])}
        if route == "overview":
            return self._overview(number)
        if route == "sections":
            from coterie.reports.overview import sections

            return browser.answer(sections, self.folders[number], _preset)
        if route == "words":
            return {"words": _words(self.folders[number])}
        if route == "compare":
            return self._compare(values.get("a", ""), values.get("b", ""))
        if route not in self.routes:
            raise KeyError(f"there is no route {route}")
        question, names = self.routes[route]
        if set(names) != values.keys():
            raise ValueError(f"{route} has the parameters {', '.join(names)}")
        arguments = [int(values[name]) if name in NUMBERS else values[name] for name in names]
        answer = browser.answer(question, *arguments)
        for turn in answer["turns"] if route == "path" else ():
            turn["plan"] = _plan_levels("".join(part["text"] for part in turn["parts"]))
        return answer

    def _overview(self, number: int) -> Fields:
        from coterie.reports.overview import overview

        fields = self.browsers[number].answer(overview, self.folders[number])
        find = "SELECT iteration, stage FROM tree GROUP BY 1, 2 ORDER BY min(key)"
        # Two stages with dialogues may be compared, also of two runs.
        sides = [
            (
                f"{run}/{iteration}/{stage}",
                f"{folder.absolute().name}: {stage} of iteration {iteration}",
            )
            for run, folder in enumerate(self.folders)
            for iteration, stage in self.browsers[run].fetch(find)
        ]
        return {**fields, "secrets": self.browsers[0].secrets, "sides": sides}

    def _compare(self, a: str, b: str) -> Fields:
        """Return the scores of tasks that two stages have, each given as ``RUN/ITERATION/STAGE``."""
        answer: Fields = {}
        sides = dict[str, Mapping[str, tuple[float, str]]]()
        for side, text in (("a", a), ("b", b)):
            run, iteration, stage = text.split("/", 2)
            answer[side] = {"run": int(run), "iteration": int(iteration), "stage": stage}
            browser = self.browsers[int(run)]
            sides[side] = browser.answer(type(browser).scores, int(iteration), stage)["tasks"]
        answer["tasks"] = sorted(sides["a"].keys() & sides["b"].keys())
        for side, scores in sides.items():
            answer[f"{side}_score"] = [scores[task][0] for task in answer["tasks"]]
            answer[f"{side}_leaf"] = [scores[task][1] for task in answer["tasks"]]
        return answer

    def image(self, hash_: str) -> tuple[bytes, str]:
        """Return an image with its media type, which is never one that a browser would run."""
        for browser in self.browsers:
            with contextlib.suppress(KeyError):
                data = browser.store.image(hash_)
                kinds = (
                    f"image/{kind}" for start, kind in IMAGES.items() if data.startswith(start)
                )
                return data, next(kinds, "application/octet-stream")
        raise KeyError(f"there is no image {hash_}")


def list_ahead(viewer: Viewer, large: int, is_idle: Event) -> ListAhead | None:
    """Return the largest list of the first run, if it is large and nobody writes it. Queries wait for ``is_idle``."""
    reader = Viewer(viewer.folders[:1], show_secrets=viewer.browsers[0].secrets)
    # A request of the page shows the error, too.
    with contextlib.closing(reader), contextlib.suppress(Exception):
        state = reader.browsers[0].quiet_state()
        reader.browsers[0].db.set_progress_handler(lambda: not is_idle.wait(), 10_000)
        stages = [s for s in reader.answer("overview", {})["stages"] if s["has_trees"]]
        largest = max(stages, key=lambda stage: int(stage["rollouts"]), default=None)
        if state and largest and largest["rollouts"] >= large:
            params = {name: str(largest[name]) for name in ("iteration", "stage")}
            return params, state, dumps(reader.answer("tasks", params))
    return None


def _plan_levels(text: str) -> list[list[Fields]]:
    """Return the tasks of a plan in a text by level; each level waits only for tasks of earlier levels."""
    if "<plan>" not in text:
        return []
    from coterie.environments.workflow.plan_graph import BrokenPlan, parse_plan

    with contextlib.suppress(BrokenPlan):
        plan = parse_plan(text)
        tasks = {task.id: dataclasses.asdict(task) for task in plan.tasks}
        return [[tasks[id_] for id_ in level] for level in plan.levels]
    return []


def _preset(name: str, stored: Mapping[str, Any]) -> dict[str, object] | None:
    from coterie.config.plugins import is_spec
    from coterie.recipes.registry import preset_values

    # The code of a plug-in is not run to look at its run.
    return None if is_spec(name) else preset_values(name, stored)


def _words(folder: Path) -> dict[str, str]:
    """Return what a run's recipe says about the names of its credit and its rule of selection."""
    from coterie.config.plugins import is_spec
    from coterie.recipes.registry import settings
    from coterie.runs.run import read_config

    recipe, stored = read_config(folder) if folder.is_dir() else ("", {})
    # As in `_preset`; settings of an older version may be refused.
    with contextlib.suppress(UserError):
        return {} if not recipe or is_spec(recipe) else settings(recipe, (), stored).words
    return {}


def tokenizer_files(folder: Path, stored: Mapping[str, object]) -> Iterator[Path]:
    """Yield the files ``tokenizer.json`` of a run: of its last checkpoints, and of the models in its settings."""
    from coterie.config.resolve import flatten

    for role in sorted(folder.glob("training/*")):
        yield from sorted(role.glob("iteration-*/final/tokenizer.json"))[-1:]
    for key, name in flatten(dict(stored)).items():
        if key.rpartition(".")[2] == "model" and isinstance(name, str):
            yield from tokenizers_of(name)


def tokenizers_of(model: str) -> Iterator[Path]:
    """Yield the file ``tokenizer.json`` of a model, if it is on this machine."""
    from huggingface_hub import try_to_load_from_cache

    from coterie.models.loading import resolve

    with contextlib.suppress(UserError):  # the model is gone
        file = Path(source := resolve(model)) / "tokenizer.json"
        cached = file if file.is_absolute() else try_to_load_from_cache(source, file.name)
        if isinstance(cached, str | Path) and Path(cached).is_file():
            yield Path(cached)


def dumps(value: object) -> str:
    """Return JSON in ASCII, which is safe in a page: without ``<``, and with ``null`` for infinite numbers."""
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = dumps(json.loads(json.dumps(value), parse_constant=lambda _: None))
    return text.replace("<", "\\u003c")


def page_files() -> dict[str, bytes]:
    """Return the files of the page by name."""
    folder = Path(str(resources.files("coterie.reports") / "viewer"))
    files = [file for file in sorted(folder.rglob("*")) if file.suffix in TYPES]
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def serve(viewer: Viewer, port: int, *, opens: bool) -> None:
    """Serve the page on 127.0.0.1 until Ctrl-C."""
    import uvicorn

    from coterie.cli.serve import HOST, listener_on
    from coterie.cli.view_server import application

    with contextlib.closing(listener_on(port)) as listener:
        port, token = listener.getsockname()[1], secrets.token_urlsafe(24)
        # Cookies do not depend on the port, and several viewers may run.
        app = application(viewer, token, f"coterie-{port}")
        # What was imported stays, so that no collection of garbage has to look at it.
        gc.freeze()
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=1
        )
        url = f"http://{HOST}:{port}/?token={token}"
        with contextlib.suppress(KeyboardInterrupt), TemporaryDirectory() as private:

            async def announce_and_serve() -> None:
                print(url, flush=True)
                login = f"{getpass.getuser()}@{socket.gethostname()}"
                console.print(
                    f"from another machine: ssh -N -L {port}:{HOST}:{port} {login}, then open this address there"
                )
                console.print("Ctrl-C ends it")
                if opens:
                    open_in_browser(url, Path(private))
                await uvicorn.Server(config).serve(sockets=[listener])

            # The address is printed inside of `run`: Ctrl-C while it creates its loop would leave a traceback.
            asyncio.run(announce_and_serve())
    console.print("stopped")


def open_in_browser(url: str, private: Path) -> None:
    """Open an address with a token in the browser by a file in a private folder."""
    # Without a display, a text browser would take the terminal over.
    if os.uname().sysname == "Darwin" or {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        # Other users see the arguments of programs, which must not have the token.
        link = private / "view.html"
        link.write_text(f'<meta http-equiv="refresh" content="0;url={url}">')
        webbrowser.open(link.as_uri())


# -- export -------------------------------------------------------------------------------------------


def export_page(viewer: Viewer, tasks: Mapping[str, Sequence[TaskKey]], file: Path) -> None:
    """Write the page with all answers about the dialogues of tasks as one new HTML file, which needs no server.

    Raises ``UserError`` if it would be larger than :data:`MAX_EXPORT`.
    """
    from coterie.config.folders import atomic_file, check_new

    check_new(file)
    blocks = [block(*answer) for answer in run_answers(viewer, [*itertools.chain(*tasks.values())])]
    size = sum(map(len, blocks))
    for number, task_keys in enumerate(tasks.values()):
        for answer in task_answers(viewer, task_keys):
            blocks.append(block(*answer))
            size += len(blocks[-1])
            if size > MAX_EXPORT:
                fits = f"{number} of its {len(tasks)} tasks fit"
                problem = f"the export would be larger than {MAX_EXPORT >> 20} MiB; {fits}"
                raise UserError(problem, "choose fewer with --tasks")
    with atomic_file(file) as part:
        part.write_text(bundle(page_files(), "".join(blocks)), encoding="utf-8")


def block(route: str, params: Mapping[str, str], answer: Any) -> str:
    """Return the element of a page that holds an answer."""
    key = html.escape(dumps([route, params]))
    return f'<script type="application/json" data-key="{key}">{dumps(answer)}</script>\n'


def run_answers(
    viewer: Viewer,
    task_keys: Sequence[TaskKey],
    answers: Mapping[str, Fields] = MappingProxyType({}),
) -> Iterator[Answer]:
    """Yield the answers about whole runs, with only the tasks of these keys.

    ``answers`` are answers about the first run by route, which are not asked for.
    """
    from coterie.record.browse import KEY
    from coterie.runs.loop import EVALUATION

    for route in ("overview", "sections", "health", "words"):
        answer = answers.get(route) or viewer.answer(route, {})
        yield route, {}, answer
        # The overview leads to the rows that tell most about the last steps.
        for update in answer.get("last_updates", ()):
            key = {name: str(update[name]) for name in KEY}
            yield "row", key, viewer.answer("row", key)
    for run in range(1, len(viewer.browsers)):
        yield "overview", {"run": str(run)}, viewer.answer("overview", {"run": str(run)})
    stages = dict.fromkeys(task_key._replace(task="") for task_key in task_keys)
    for stage in stages:
        tasks = {task_key.task for task_key in task_keys if task_key._replace(task="") == stage}
        browser = viewer.browsers[stage.run]
        columns = browser.answer(type(browser).tasks, stage.iteration, stage.stage, tasks)
        yield "tasks", stage.params("iteration", "stage"), columns
    policies = sorted((s.run, s.iteration) for s in stages if s.stage == EVALUATION)
    evaluated = [f"{run}/{iteration}/{EVALUATION}" for run, iteration in policies]
    tasks_of_page = {task_key.task for task_key in task_keys}
    # Policies are compared with the one before and with the first one.
    pairs = [*itertools.pairwise(evaluated), *((evaluated[0], last) for last in evaluated[2:])]
    for a, b in pairs:
        answer = viewer.answer("compare", {"a": a, "b": b})
        rows = [index for index, task in enumerate(answer["tasks"]) if task in tasks_of_page]
        columns = {name: [v[i] for i in rows] for name, v in answer.items() if isinstance(v, list)}
        yield "compare", {"a": a, "b": b}, {**answer, **columns}


def task_answers(
    viewer: Viewer, task_keys: Iterable[TaskKey], *, brief: bool = False
) -> Iterator[Answer]:
    """Yield the answers about the dialogues of keys, and all that they lead to.

    With ``brief``, only the first prompt of each agent in a dialogue; later ones repeat the dialogue.
    """
    waiting = [("task", task_key.params("iteration", "stage", "task")) for task_key in task_keys]
    done = set[str]()
    while waiting:
        route, params = waiting.pop()
        if (key := dumps([route, params])) in done:
            continue
        done.add(key)
        if route == "image":
            data, kind = viewer.image(params["hash"])
            yield route, params, f"data:{kind};base64,{base64.b64encode(data).decode()}"
            continue
        answer = viewer.answer(route, params)
        run = {"run": params["run"]} if "run" in params else {}
        for link, names in _links(route, params, answer, brief):
            waiting.append((link, names if link == "image" else {**names, **run}))
        yield route, params, answer


def _links(
    route: str, params: Mapping[str, str], answer: Fields, brief: bool
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the questions to which an answer leads."""
    from coterie.record.browse import KEY

    parts = [part for message in answer.get("messages", ()) for part in message["parts"]]
    if route == "task" and answer["root"]:
        yield "tree", dict(params)
    elif route == "tree":
        # Not only the rollouts: candidates of a turn end here, too.
        inner = {0, *answer["parent"]}
        yield from (("path", {"leaf": id_}) for n, id_ in enumerate(answer["id"]) if n not in inner)
    elif route == "path":
        parts = [part for turn in answer["turns"] for part in turn["parts"]]
        agents = set[str]()
        for turn in answer["turns"]:
            yield "turn", {"id": turn["id"]}
            if turn["has_prompt"] and not (brief and turn["speaker"] in agents):
                yield "prompt", {"turn": turn["id"]}
                agents.add(turn["speaker"])
        yield from (("row", {name: str(row[name]) for name in KEY}) for row in answer["trained"])
    yield from (("image", {"hash": part["image"]}) for part in parts if part["image"])


def bundle(files: Mapping[str, bytes], blocks: str = "", summary: str = "") -> str:
    """Return ``index.html`` with its styles and scripts inside, and a policy that allows only these, by hash.

    Args:
        files: Files of the page by name.
        blocks: Elements with answers. They stand before the script of the page, which reads them.
        summary: HTML for readers without scripts; default: the sentence of ``index.html``.
    """
    hashes, modules = list[str](), list[str]()

    def inline(tag: str, content: str) -> str:
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        hashes.append(f"'sha256-{digest}'")
        return f"<{tag}>{content}</{tag}>"

    def script(match: re.Match[str]) -> str:
        source = files[match["name"]].decode().replace("</script", r"<\/script")
        if match["module"]:
            modules.append(_as_function(source))
            return ""
        return inline("script", source)

    text = files["index.html"].decode()
    if summary:
        start, rest = text.split("<noscript>")
        text = f"{start}<noscript>{summary}{rest[rest.index('</noscript>') :]}"
    text = re.sub(
        r'<link rel="stylesheet" href="(.*?)">',
        lambda m: inline("style", files[m[1]].decode()),
        text,
    )
    text = re.sub(r'<script(?P<module> type="module")? src="(?P<name>.*?)"></script>', script, text)
    # Modules can't import each other in a file, so they become one script.
    code = inline("script", "\n".join(['"use strict";', *modules]))
    policy = html.escape(POLICY.format(" ".join(hashes), "'none'", "data:"))
    meta = f'<head>\n<meta http-equiv="Content-Security-Policy" content="{policy}">'
    return text.replace("<head>", meta, 1).replace("</body>", f"{blocks}{code}\n</body>")


def _as_function(source: str) -> str:
    """Return a module as a function that returns its exports. Its imports are exports of earlier modules."""
    names = re.findall(
        r"^export (?:async )?(?:function|class|const|let) (\w+)", source, re.MULTILINE
    )
    for group in re.findall(r"^export const \{(.*?)\}", source, re.MULTILINE):
        names += group.split(",")
    source = re.sub(r"^import .*$", "", source, flags=re.MULTILINE)
    exports = ", ".join(name.strip() for name in names)
    source = re.sub(r"^export ", "", source, flags=re.MULTILINE)
    return f"const {{ {exports} }} = (() => {{\n{source}\nreturn {{ {exports} }};\n}})();"


# -- text ---------------------------------------------------------------------------------------------


def print_task(viewer: Viewer, name: str) -> None:
    """Print the dialogues of ``ITERATION/STAGE/TASK``."""
    browser, output = viewer.browsers[0], results()
    task_keys = browser.fetch(
        "SELECT iteration || '/' || stage || '/' || task, iteration, stage, task FROM tree"
    )
    task_key = next((task_key for text, *task_key in task_keys if text == name), None)
    if task_key is None:
        fix = f"{did_you_mean(name, [text for text, *_ in task_keys])}`coterie view {viewer.folders[0]}` lists all"
        raise UserError(f"{viewer.folders[0]} has no dialogues of {name}", fix)
    answer = browser.answer(type(browser).task, *task_key)
    for damage in answer["damaged"]:
        console.print(damage)
    for rollout in answer["rollouts"]:
        facts = {name: rollout[name] for name in ("score", "answer", "reason", "failure")}
        facts_text = ", ".join(f"{name} {fact}" for name, fact in facts.items() if fact is not None)
        texts, leaf = [f"== {rollout['sample']}: {facts_text}"], rollout["leaf"]
        for turn in viewer.answer("path", {"leaf": leaf})["turns"] if leaf else ():
            texts.append(f"{turn['speaker']}: {''.join(part['text'] for part in turn['parts'])}")
            texts += [f"[{call['name']} {call['arguments']}]" for call in turn["calls"]]
            texts += [f"[result: {result['text']}]" for result in turn["results"]]
        for text in texts:
            output.print(f"{text}\n".translate(SHOWN), soft_wrap=True, highlight=False)


def view(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    compare: Annotated[Path | None, typer.Option(help="Second run to compare with.")] = None,
    export: Annotated[Path | None, typer.Option(help="HTML file to write instead.")] = None,
    tasks: Annotated[
        str | None, typer.Option(help="With --export: tasks, such as a,b; default: all.")
    ] = None,
    text: Annotated[
        str | None, typer.Option(help="Print the dialogues of ITERATION/STAGE/TASK instead.")
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free port.")
    ] = 0,
    show_secrets: Annotated[
        bool, typer.Option("--secrets", help="Show right answers, and prompts with them.")
    ] = False,
    no_open: Annotated[bool, typer.Option("--no-open", help="Only print the address.")] = False,
) -> None:
    """Show a run in the browser: scores, each dialogue with its tokens, trees, and what each turn trained.

    The run may be going on; nothing is written into its folder. The page is served on 127.0.0.1, at an address with a
    random token. Right answers, references and prompts with them are left out without --secrets.

    Examples:

        coterie view runs/mine

        coterie view runs/mine --compare runs/other

        coterie view runs/mine --export why.html --tasks train-0-3,train-0-7

        coterie view runs/mine --text 0/rollout/train-0-3
    """
    viewer = Viewer([folder, *([compare] if compare else [])], show_secrets=show_secrets)
    if text is not None:
        print_task(viewer, text)
    elif export is not None:
        find = "SELECT DISTINCT i.iteration, i.stage, i.task FROM item i JOIN tree t USING (iteration, stage)"
        task_keys = dict[str, list[TaskKey]]()
        for task_key in itertools.starmap(
            TaskKey, viewer.browsers[0].fetch(f"{find} ORDER BY i.task")
        ):
            task_keys.setdefault(task_key.task, []).append(task_key)
        names = [task for task in task_keys if task]
        chosen = names if tasks is None else [tasks] if tasks in names else tasks.split(",")
        for task in chosen:
            if task not in names:
                fix = f"{did_you_mean(task, names)}`coterie view {folder}` lists them"
                raise UserError(f"{folder} has no task {task!r}", fix)
        export_page(viewer, {task: task_keys[task] for task in chosen}, export)
        print(export)
    else:
        serve(viewer, port, opens=not no_open)
