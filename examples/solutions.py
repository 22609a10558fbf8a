"""Teaches a model to act before trees are grown: solutions of GSM8K are played in real Python sessions and imitated.
python examples/solutions.py train.jsonl smollm2 FOLDER [ROWS]  (GSM8K's rows; FOLDER gets the model and other tasks)"""

import json
import re
import sys
from pathlib import Path

import coterie

source, model, folder = sys.argv[1], coterie.load(sys.argv[2]), Path(sys.argv[3])
count, step = int([*sys.argv, "480"][4]), re.compile(r"<<(.*?)=.*?>>")
rows = map(json.loads, Path(source).read_text().splitlines())
gold = {row["question"]: row["answer"] for row in rows}
short = [q for q in gold if 1 <= len(step.findall(gold[q])) <= 4 and len(q) < 260]
easy = [q for q in short[count:] if len(step.findall(gold[q])) <= 2]
right = {q: gold[q].split("####")[1].strip().replace(",", "") for q in short}


def write(part, split, questions):
    (folder / part).mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({"question": q, "answer": right[q]}) for q in questions)
    (folder / part / f"{split}.jsonl").write_text("\n".join(lines))


write("taught", "train", short[:count])
write("taught", "heldout", easy[:1])
write("tasks", "train", easy[: len(easy) // 2])
write("tasks", "heldout", easy[len(easy) // 2 :])


def script(task):
    """All messages of an expert: the solution's calculations, then the answer."""
    question = task.public["question"]
    steps = "\n".join(f"print({formula})" for formula in step.findall(gold[question]))
    thought = re.sub(r"<<.*?>>", "", gold[question]).partition("\n")[0]
    return [
        f"Thought: {thought}\nAction:\n{steps}\nEnd Action",
        f"Thought: The last number is the answer.\nAnswer: {right[question]}",
    ]


world = coterie.environment(
    "python_maths", dataset="qa", source=str(folder / "taught"), subject="numbers", steps=4
)
lessons = coterie.demonstrate(world, world.tasks("train", count, 0), script)
settings = coterie.TrainingSettings(learning_rate=1e-4, warmup_ratio=0.1, batch_size=16)
coterie.train(model, lessons, settings, folder / "model")
