"""A loop of one's own: the best of eight dialogues is imitated, step by step, on two CPU cores in minutes.
python examples/loop.py [STEPS] [TASKS]"""

import sys
from pathlib import Path

import coterie

STEPS, TASKS = (int(word) for word in [*sys.argv[1:], "12", "32"][:2])
world = coterie.environment("exchange")
model = coterie.load("tiny-exchange")
engine = coterie.InProcessEngine(model)
settings = coterie.TrainingSettings(learning_rate=5e-4, warmup_ratio=0.1, save_every_steps=4)
train, heldout = world.tasks("train", STEPS * TASKS, 0), world.tasks("heldout", 2 * TASKS, 0)


def reward(one):  # right answers, in few tokens
    return one.score - one.tokens / 200


def evaluate():
    played = coterie.play(world, engine, heldout, temperature=0)
    low, high = coterie.mean_interval([one.score for one in played], seed=0)
    tokens = sum(one.tokens for one in played) / len(played)
    print(f"right {low:.2f} to {high:.2f}, {tokens:.0f} tokens a dialogue", flush=True)


evaluate()
with coterie.Trainer(model.model, coterie.SFT(), settings, Path("loop"), steps=STEPS) as trainer:
    for step in range(trainer.done, STEPS):
        tasks = train[step * TASKS : (step + 1) * TASKS]
        played = coterie.play(world, engine, tasks, samples=8, seed=step)
        best = [max(group, key=reward) for group in coterie.by_task(played)]
        trainer.step([row for one in best if one.score for row in one.rows()])
    trainer.finish()
evaluate()
