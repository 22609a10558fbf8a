"""A tool, and demonstrations of its use (docs/howto/first-hour.md).
python examples/calculator.py    writes demonstrations.jsonl"""

import json
import math
import re

from coterie import demonstrate, environment


def calculate(formula: str) -> int:
    """Returns the value of a formula, such as 3 * 14 - 5."""
    terms = formula.replace("-", "+-1*").split("+")
    return sum(math.prod(map(int, term.split("*"))) for term in terms)


def script(task):
    """All messages of an expert: a call of the tool, then the answer."""
    question = task.public["question"]
    boxes, count, change = re.findall(r"\d+", question)
    formula = f"{boxes} * {count}" if "in each" in question else count
    formula += f" + {change}" if "more" in question else f" - {change}"
    return [f"<calculate>{formula}</calculate>", str(calculate(formula))]


if __name__ == "__main__":
    tools = ["examples/calculator.py:calculate"]
    game = environment("problems.jsonl", tools=tools, calls="tags", prompt="{question}")
    rows = demonstrate(game, game.tasks("train", 160, 0), script)
    with open("demonstrations.jsonl", "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
