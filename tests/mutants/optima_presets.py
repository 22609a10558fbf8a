"""Faults of the presets of Optima: values that are not those published."""

from tests.mutation.mutant import Mutant

PUBLISHED = "tests/test_presets.py::test_presets_of_optima_have_the_published_values"
FOLDER = "recipes/optima/presets/"


def wrong(method: str, dataset: str, find: str, replace: str, breaks: str) -> Mutant:
    """A preset that says another value."""
    key = find.partition(":")[0].strip().replace("_", "-")
    return Mutant(
        f"optima-preset-{method}-{dataset}-{key}".replace("_", "-"),
        f"{FOLDER}{method}/{dataset}.yaml",
        find,
        replace,
        breaks,
        (f"{PUBLISHED}[optima/{method}]",),
    )


MUTANTS = (
    wrong(
        "isft", "hotpot_qa", "learning_rate: 0.00002", "learning_rate: 0.000002",
        "ten times too slow",
    ),
    wrong(
        "idpo", "gsm8k", "learning_rate: 0.0000005", "learning_rate: 0.000005",
        "DPO ten times too fast",
    ),
    wrong("isft_dpo", "mmlu", "beta: 0.1", "beta: 1.0", "held to the reference ten times too hard"),
    wrong("isft", "trivia_qa", "threshold: 0.6", "threshold: 0.06", "nearly everything is selected"),
    wrong(
        "idpo", "2wiki", "theta_diff: 0.2", "theta_diff: 0.02", "pairs without a real difference"
    ),
    wrong("isft", "math", "lambda_token: 0.4", "lambda_token: 0.04", "tokens hardly cost anything"),
    wrong("isft_dpo", "cbt", "percentile: 80", "percentile: 8", "all dialogues are too long"),
    wrong("idpo", "arc_c", "nll: 1.0", "nll: 0.1", "the chosen side is hardly kept likely"),
    wrong("isft", "mmlu", "tasks: 10000", "tasks: 1000", "a tenth of the data"),
    wrong(
        "isft_dpo", "exchange", "nll: 0.0", "nll: 1.0", "the objective of iDPO in place of plain DPO"
    ),
    wrong("isft", "arc_c", "samples: 15", "samples: 10", "the wrong number of samples"),
    wrong(
        "idpo", "math", "from_initial: true", "from_initial: false",
        "the debates' SFT goes on from the last policy",
    ),
)  # fmt: skip
