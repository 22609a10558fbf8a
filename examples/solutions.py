"""Teaches a model to act before trees are grown: solutions of GSM8K are played in real Python sessions and imitated.
python examples/solutions.py train.jsonl smollm2 FOLDER [ROWS]  (GSM8K's rows; FOLDER gets the model and other tasks)"""

import asyncio
import json
import re
import sys
from pathlib import Path

import coterie
from coterie.environments.protocol import Shared
from coterie.environments.registry import PlayedSettings, make_environment
from coterie.record.rows import rows, view
from coterie.rollout.episodes import Driver, Episode
from coterie.rollout.recorded_turns import recorded_response
from coterie.runs.benchmark import benchmark_settings
from coterie.tools.sandbox.pool import Sandbox

source, model, folder = sys.argv[1], coterie.load(sys.argv[2]), Path(sys.argv[3])
count, batch, step = int([*sys.argv, "480"][4]), 16, re.compile(r"<<(.*?)=.*?>>")
gold = {
    one["question"]: one["answer"] for one in map(json.loads, Path(source).read_text().splitlines())
}
short = [q for q in gold if 1 <= len(step.findall(gold[q])) <= 4 and len(q) < 260]
easy = [q for q in short[count:] if len(step.findall(gold[q])) <= 2]
right = {q: gold[q].split("####")[1].strip().replace(",", "") for q in short}


def written(part, split, questions):
    (folder / part).mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({"question": q, "answer": right[q]}) for q in questions)
    (folder / part / f"{split}.jsonl").write_text("\n".join(lines))


written("taught", "train", short[:count])
written("taught", "heldout", easy[:1])
written("tasks", "train", easy[: len(easy) // 2])
written("tasks", "heldout", easy[len(easy) // 2 :])
words = [f"dataset.source={folder / 'taught'}", "environment=python_maths", "environment.steps=4"]
words.append("environment.subject=numbers")
world = make_environment(benchmark_settings(PlayedSettings, "qa", words))
(agent,) = world.actors


class Teacher:
    async def respond(self, prompt, context):
        solution = gold[prompt.task.public["question"]]
        steps = "\n".join(f"print({one})" for one in step.findall(solution))
        thought = re.sub(r"<<.*?>>", "", solution).partition("\n")[0]
        text = f"Thought: {thought}\nAction:\n{steps}\nEnd Action"
        if any(turn.speaker.name == agent for turn in prompt.tree.turns.values()):
            answer = right[prompt.task.public["question"]]
            text = f"Thought: The last number is the answer.\nAnswer: {answer}"
        return recorded_response(prompt, context, text, "data", model.renderer)


async def taught():
    async with Sandbox() as sandbox:
        driver = Driver(world, {agent: Teacher()}, seed=0, shared=Shared(sandbox))
        episodes = [Episode(task, 0, 0, "teach") for task in world.tasks("train", count, 0)]
        async with driver.play_all(episodes) as playing:
            return [one.tree async for one in playing if one.tree is not None]


won = [(tree, end) for tree in asyncio.run(taught()) for end, _ in tree.trajectories() if end.score]
lessons = [list(rows(view(tree, end.leaf, agent))) for tree, end in won]
settings = coterie.TrainingSettings(learning_rate=1e-4, warmup_ratio=0.1)
steps = max(1, len(lessons) // batch)
with coterie.Trainer(
    model.model, coterie.SFT(), settings, folder / "model", steps=steps
) as trainer:
    for at in range(trainer.done, steps):
        few = lessons[at * batch : (at + 1) * batch]
        print(at, trainer.step([row for one in few for row in one]), flush=True)
    trainer.finish()
