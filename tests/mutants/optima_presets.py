"""Faults of the presets of Optima: values that are not those published."""

import re

from tests.mutation.mutant import PACKAGE, Mutant

PUBLISHED = "tests/test_presets.py::test_presets_of_optima_have_the_published_values"
FOLDER = "recipes/optima/presets/"


def wrong(method: str, part: str, find: str, replace: str, breaks: str) -> Mutant:
    """Presets of which one part says another value: ``common``, ``micro_world``, or a data set."""
    key = find.partition(":")[0].strip()
    before = _up_to(f"{FOLDER}{method}.yaml", part, find)
    return Mutant(
        f"optima-preset-{method}-{part}-{key}".replace("_", "-"),
        f"{FOLDER}{method}.yaml",
        before + find,
        before + replace,
        breaks,
        (f"{PUBLISHED}[optima/{method}]",),
    )


def _up_to(file: str, part: str, find: str) -> str:
    """A part of a file from its name up to a text; all of the part if the text is not in it."""
    text = (PACKAGE / file).read_text(encoding="utf-8")
    found = re.search(rf"^( *){part}:\n.*?(?=^\1\S|\Z)", text, re.MULTILINE | re.DOTALL)
    return found[0].partition(find)[0] if found else f"{part}:\n"


MUTANTS = (
    wrong(
        "isft", "hotpot_qa", "learning_rate: 0.00002", "learning_rate: 0.000002",
        "ten times too slow",
    ),
    wrong(
        "idpo", "common", "learning_rate: 0.0000005", "learning_rate: 0.000005",
        "DPO ten times too fast",
    ),
    wrong("isft_dpo", "mmlu", "beta: 0.1", "beta: 1.0", "held to the reference ten times too hard"),
    wrong("isft", "trivia_qa", "threshold: 0.6", "threshold: 0.06", "nearly everything is selected"),
    wrong(
        "idpo", "common", "theta_diff: 0.2", "theta_diff: 0.02", "pairs without a real difference"
    ),
    wrong("isft", "math", "lambda_token: 0.4", "lambda_token: 0.04", "tokens hardly cost anything"),
    wrong("isft_dpo", "common", "percentile: 80", "percentile: 8", "all dialogues are too long"),
    wrong("idpo", "common", "nll: 1.0", "nll: 0.1", "the chosen side is hardly kept likely"),
    wrong("isft", "mmlu", "tasks: 10000", "tasks: 1000", "a tenth of the data"),
    wrong(
        "isft_dpo", "micro_world", "nll: 0.0", "nll: 1.0",
        "the objective of iDPO in place of plain DPO",
    ),
    wrong("isft", "arc_c", "samples: 15", "samples: 10", "the wrong number of samples"),
    wrong(
        "idpo", "math", "from_initial: true", "from_initial: false",
        "the debates' SFT goes on from the last policy",
    ),
    Mutant(
        "presets-without-the-common-values",
        "recipes/presets.py",
        'overlaid(common, rows[name])',
        'overlaid(rows[name])',
        "a data set has only its own values, and defaults for the others",
        (f"{PUBLISHED}[optima/isft]",),
    ),
    Mutant(
        "presets-with-common-values-over-their-own",
        "recipes/presets.py",
        'overlaid(common, rows[name])',
        'overlaid(rows[name], common)',
        "what a data set says of its own is lost where there is a common value",
        (f"{PUBLISHED}[optima/isft]",),
    ),
)  # fmt: skip
