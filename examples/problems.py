"""A reward of one's own, and 200 word problems to try it on (docs/howto/own-question.md).
python examples/problems.py    writes problems.jsonl"""

import json
import random
import re

NAMES = ("Ann", "Bob", "Cal", "Dee", "Eve", "Fay", "Gus", "Hal", "Ida", "Jim", "Kay", "Leo")
THINGS = ("pens", "cups", "hats", "keys", "maps", "nuts", "pots", "rugs")


def calculation(question, reply, answer, row):
    """1 for a reply with one calculation, such as `3 * 14 - 5`, that gives the answer."""
    found = re.findall(r"\d+(?: [-+*] \d+)+", reply)
    return float(len(found) == 1 and eval(found[0]) == int(answer))


def problem(rng):
    name, thing, boxes = rng.choice(NAMES), rng.choice(THINGS), rng.randint(2, 5)
    count, change, many = rng.randint(11, 18), rng.randint(2, 9), rng.choice(("each", "all"))
    first = f"{name} has {boxes} boxes with {count} {thing} in {many}."
    then, sign = rng.choice(
        ((f"gets {change} {thing} more", 1), (f"gives {change} {thing} away", -1))
    )
    total = (boxes if many == "each" else 1) * count + sign * change
    question = f"{first} {name} {then}. How many {thing} has {name}?"
    return {"question": question, "answer": total, "kind": many}


if __name__ == "__main__":
    rng, rows = random.Random(0), {}
    while len(rows) < 200:
        row = problem(rng)
        rows[row["question"]] = row
    with open("problems.jsonl", "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows.values())
