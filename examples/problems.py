"""Word problems, conversations about some, and a reward (docs/howto/first-hour.md, docs/howto/own-question.md).
python examples/problems.py    writes problems.jsonl and chats.jsonl"""

import json
import math
import random
import re

NAMES = ("Ann", "Bob", "Cal", "Dee", "Eve", "Fay", "Gus", "Hal", "Ida", "Jim", "Kay", "Leo")
THINGS = ("pens", "cups", "hats", "keys", "maps", "nuts", "pots", "rugs")


def value(formula):  # without eval: what a model writes is data
    terms = formula.replace("-", "+-1*").split("+")
    return sum(math.prod(map(int, term.split("*"))) for term in terms)


def calculation(question, reply, answer, row):
    """1 for a reply with one calculation, such as `3 * 14 - 5`, that gives the answer."""
    found = re.findall(r"\d+(?: [-+*] \d+)+", reply)
    return float(len(found) == 1 and value(found[0]) == int(answer))


def problem(rng):
    name, thing, boxes = rng.choice(NAMES), rng.choice(THINGS), rng.randint(2, 5)
    count, change, many = rng.randint(11, 18), rng.randint(2, 9), rng.choice(("each", "all"))
    verb, end, sign = rng.choice((("gets", "more", "+"), ("gives", "away", "-")))
    first = f"{name} has {boxes} boxes with {count} {thing} in {many}."
    question = f"{first} {name} {verb} {change} {thing} {end}. How many {thing} has {name}?"
    formula = (f"{boxes} * " if many == "each" else "") + f"{count} {sign} {change}"
    return {"question": question, "answer": value(formula), "kind": many}, formula


if __name__ == "__main__":
    rng, rows = random.Random(0), {}
    while len(rows) < 260:
        row, formula = problem(rng)
        rows[row["question"]] = row, formula
    with open("problems.jsonl", "w") as file:
        file.writelines(json.dumps(row) + "\n" for row, _ in [*rows.values()][:200])
    with open("chats.jsonl", "w") as file:
        for row, formula in [*rows.values()][200:]:
            user = {"role": "user", "content": row["question"]}
            reply = {"role": "assistant", "content": formula}
            file.write(json.dumps({"messages": [user, reply]}) + "\n")
