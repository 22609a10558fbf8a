"""The run of each method, as words of the command line, and the files that the runs read."""

import json
from pathlib import Path

from tests.helpers import program_rows as row_programs
from tests.helpers import web_tasks

EVALUATION = "seed=7 evaluate.tasks=2 engine.device=cpu"
OPTIMA = (
    f"{EVALUATION} rollout.tasks=4 rollout.samples=3 rollout.max_tokens=48 train.epochs=1 train.batch_rows=4 "
    "select.threshold=-100 select.top_share=0.75"
)
TREES = (
    f"{OPTIMA} dpo.tasks=3 dpo.probe=2 dpo.search.searches=3 dpo.search.rollouts=2 dpo.train.epochs=1 "
    "dpo.train.batch_rows=4 dpo.select.theta_filter=-100 dpo.select.theta_diff=0.01"
)
TRAINED = "batch_rows=4", "max_length=1024", "tokens_per_microbatch=2048", "learning_rate=1e-3"
MOAT = (
    f"{EVALUATION} iterations=1 rollout.tasks=3 rollout.samples=3 rollout.max_tokens=32 start.tasks=4 "
    "measure.tasks=2 measure.samples=2 pairs.margin=0.01 "
    + " ".join(f"{part}.train.{word}" for part in ("start", "align", "improve") for word in TRAINED)
)
DENSE = (
    f"{EVALUATION} model=tiny-acts rollout.tasks=4 rollout.max_tokens=24 search.base=3 search.window=4 "
    "search.pairs=12 search.runs=28 pairs.margin=0.1 pairs.max_visits=1 budget.pairs=6 train.batch_rows=4 "
    "train.max_length=1024 train.learning_rate=1e-4"
)
TRACES = (
    f"{EVALUATION} model=tiny-exchange environment.prompt=short traces.tasks=4 traces.min_calls=1 "
    "traces.max_truncated=1 rollout.max_tokens=16 train.epochs=1 train.max_steps=1 train.batch_rows=2 "
    "train.max_length=1024 train.tokens_per_microbatch=2048"
)
STEPS = (
    "rollout.tasks=2 rollout.draw=2 rollout.rounds=1 rollout.samples=2 steps.count=2 loss.entropy=0.01 "
    "update.max_length=1024 update.tokens_per_microbatch=2048"
)
REINFORCED = f"{EVALUATION} rollout.max_tokens=48 steps.count=2"
METHODS = {
    "optima/isft": f"{OPTIMA} iterations=2",
    "optima/idpo": f"{TREES} iterations=2",
    "optima/isft_dpo": f"{TREES} iterations=2",
    "sweet_rl/backend": (
        f"{EVALUATION} rollout.tasks=24 rollout.repeats=3 rollout.max_tokens=96 candidates.share=0.1 "
        "candidates.count=4 pairs.count=2 critic.train.epochs=1 train.max_steps=2 critic.train.batch_rows=4 "
        "policy.train.batch_rows=4"
    ),
    "moat/maths": MOAT.replace("tasks=3 rollout.samples=3", "tasks=6 rollout.samples=5")
    + " start.enabled=true correct.rejected=gold correct.gold=true",
    "moat/complex_qa": (
        f"{MOAT} model=tiny-exchange dataset=strategyqa_plans dataset.source=sample environment.corpus=pages"
    ),
    "moat/web": (
        f"{MOAT} model=tiny-exchange dataset=mind2web dataset.source=errands.jsonl environment.turns=6"
    ),
    "dense_tree/babyai": f"{DENSE} environment.level=GoToObj environment.steps=12",
    "dense_tree/gsm8k": DENSE.replace("rollout.tasks=4", "rollout.tasks=8").replace(
        "runs=28", "runs=60"
    )
    + " dataset.source=sums environment.steps=6 environment.shots=0",
    "dense_tree/math": f"{DENSE} dataset.source=sums environment.steps=6 environment.shots=0",
    "dense_tree/tiny": DENSE,
    "gap/code": (
        f"{TRACES} dataset.source=programs.jsonl traces=programs.json train.learning_rate=1e-3"
    ),
    "gap/mhqa": f"{TRACES} {STEPS} dataset=2wiki dataset.source=sample tools.config=search.yaml",
    "gap/tiny": (
        f"{EVALUATION} method=sft_rl traces.tasks=16 train.epochs=1 steps.count=2 rollout.tasks=4 "
        "rollout.samples=4 rollout.rounds=1"
    ),
    "gap/web": f"{TRACES} {STEPS} dataset.source=questions.jsonl traces=web.json tools.config=web.yaml",
    "rl/dapo": f"{REINFORCED} rollout.tasks=3 rollout.samples=4 rollout.rounds=2",
    "rl/grpo": f"{REINFORCED} rollout.tasks=3 rollout.samples=4",
    "rl/ppo": f"{REINFORCED} rollout.tasks=8",
}
"""What ``coterie run`` gets besides the method and the folder."""

BEFORE = {"moat/complex_qa": "data index pages.jsonl pages"}
"""A command that comes before a run."""

RENAMED = {
    " update.": " rl.train.",
    "batch_rows=": "batch_size=",
    "loss.entropy=": "loss.entropy_coef=",
    "rollout.draw=": "rollout.oversample_tasks=",
    "rollout.samples=": "rollout.rollouts_per_task=",
    "rollout.repeats=": "rollout.rollouts_per_task=",
    "measure.samples=": "measure.rollouts_per_task=",
    "search.runs=": "search.rollouts_per_task=",
    "dpo.probe=": "dpo.probe_dialogues=",
    "search.base=": "search.max_children=",
    "search.window=": "search.rollouts_per_search=",
    "search.rollouts=": "search.rollouts_per_search=",
}
"""What HEAD calls otherwise, in commands and YAML inputs: {text at the base: text at HEAD}, such as
``{"rollout.tasks=": "sample.tasks="}``. A command that is left empty is left out."""

PAGES = [
    {"url": f"https://made.example/{name.lower()}", "title": name, "text": text}
    for name, text in (
        ("Oslo", "Oslo is the capital of Norway, and has a harbour."),
        ("Lima", "Lima is the capital of Peru, beside an ocean."),
        ("Heron", "A heron is a bird that eats fish. It can fly, and it is smaller than a car."),
    )
]


def sum_row(number: int) -> dict[str, str]:
    """Return a problem as `tiny-acts` knows them."""
    answer = str(number + 3)
    return {
        "id": f"sum{number}", "answer": answer, "solution": rf"So \boxed{{{answer}}}.",
        "question": f"Ann has 2 boxes with {number} cups in all. Ann gets 3 cups more. How many cups has Ann?",
    }  # fmt: skip


def write_inputs(folder: Path, wiki: list[dict]) -> None:
    """Write the files that the runs read. ``wiki`` are rows of 2wiki, whose passages are searched."""

    def lines(name: str, rows: list) -> None:
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    def tools(name: str, *entries: dict) -> None:
        (folder / name).write_text(json.dumps({"tools": entries}))

    (folder / "sums").mkdir()
    for split, numbers in (("train", range(11, 31)), ("heldout", range(31, 39))):
        lines(f"sums/{split}.jsonl", [sum_row(n) for n in numbers])
    web_tasks.write_tasks(folder / "errands.jsonl")
    lines("pages.jsonl", PAGES)
    passages = {one["title"]: " ".join(one["sentences"]) for row in wiki for one in row["context"]}
    lines(
        "passages.jsonl",
        [
            {"id": str(n), "contents": f'"{title}"\n{text}'}
            for n, (title, text) in enumerate(passages.items())
        ],
    )
    lines("programs.jsonl", [row_programs.LIVE, row_programs.METHOD])
    (folder / "programs.json").write_text(json.dumps(row_programs.PROGRAM_TRACES))
    lines(
        "questions.jsonl",
        [{"question": f"Which town is number {n}?", "answer": f"T{n}"} for n in range(20)],
    )
    traces = [
        {
            "instruction": f"Answer.\n\nQuestion: {question}", "input": "",
            "output": f"<think>Look.</think><web_search>{title}</web_search><observation>\n{title}: a page\n"
            f"</observation>\n\n<think>Found.</think><answer>{title}</answer>",
        }
        for question, title in (("What is the capital of Norway?", "Oslo"), ("What is the capital of Peru?", "Lima"))
    ]  # fmt: skip
    (folder / "web.json").write_text(json.dumps(traces))
    tools("search.yaml", {"name": "wiki_search", "corpus": "passages.jsonl", "topk": 1})
    tools(
        "web.yaml",
        {"name": "web_search", "backend": "corpus", "pages": "pages.jsonl"},
        {"name": "crawl_page", "pages": "pages.jsonl"},
    )
