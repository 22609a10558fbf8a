"""Multi-agent reinforcement learning: steps against comlrl's, tokens of a tree, and the cost of credit to turns.

    make .venv-comlrl/.ready
    .venv/bin/python bench/multi_agent.py

About five minutes on two quiet cores. The last line is one JSON object with ``load``, the machine's load average
before, and a key for each part (``--part`` runs only one):

    vs_comlrl              steps per second of ``rl/magrpo`` over those of comlrl's MAGRPO; one turn
    vs_comlrl_two_turns    the same with two turns
    prefix_saving          tokens that the trainer computes for the rows of a spine, over the tokens of these rows
    turn_overhead          seconds of a step with advantages of turns over those with advantages of paths

**vs_comlrl.** The baseline is ``MAGRPOTrainer`` of comlrl 1.4.3, which has an environment of its own
(``.venv-comlrl``). Two agents with their own weights, a random Qwen2 of two layers and width 64 in float32, answer one
question with up to 4 tokens; the reward is 1 if the first says x and the second y. A step is one task with 8 joint
actions. With two turns (``joint_mode="aligned"``) each of these has 8 joint actions in the next turn, and the reward of
a dialogue is the sum. Set equal on both sides: initial weights, prompts, number of samples and tokens, threads,
learning rate 3e-3, advantages divided by the standard deviation, AdamW's weight decay of 0.01, and sampling at
temperature 1 without top-p and top-k (comlrl's defaults of 0.6, 0.6 and 50 are another distribution than its loss).
comlrl's ``early_termination_threshold`` is off, since its default never plays a second turn here, and its buffer holds
one step, so that both update in each step; its other defaults stay. Its side is ``trainer.train()`` alone, without logs
and checkpoints. Ours is the whole stage: loading, the record of all turns, checkpoints each 5 steps, the final weights.
Neither side evaluates. Both have one thread: with two, comlrl was half as fast on a busy machine. With two turns comlrl
takes an optimizer step for each turn, and ours one for both. ``tokens`` is the number of sampled tokens of a step,
``reward`` the mean of the last tenth of the steps over all rounds.

**prefix_saving.** The rows of a step of ``rl/vine``: alternatives of each turn of a rollout of ``exchange``, each
played to the end. ``seconds_vs_flat`` is the time of the update with tries over that with one row after the other.

**turn_overhead.** The whole ``train_step`` with the advantages of ``rl/turns`` and of ``rl/grpo``, from rewards to the
optimizer, on the same rollouts of ``exchange`` and with the same loss, without a divergence.

Sides alternate, at most ``--rounds`` times, and another round begins only if it would end in time. Ratios are of
medians; a spread is the smallest and the largest ratio of one round.
"""

import coterie  # noqa: F401  # isort: skip  # before torch, which reads how threads are to wait
import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.timing import Times, alternate, rounds
from bench.trie_training import Ours
from coterie import Ending, Message, Task
from coterie.environments import Grade, Pure, Transition
from coterie.environments.registry import task_pair
from coterie.models.prefix_trie import CostRule
from coterie.progress import Silent
from coterie.recipes import rl
from coterie.recipes.registry import recipe, settings
from coterie.runs.loop import REINFORCE, run_stages
from coterie.runs.reinforce_batch import StepBatch, StepSamples
from coterie.runs.reinforce_record import step_records
from coterie.runs.reinforce_settings import ReinforceSettings
from coterie.runs.roles import Learner
from coterie.runs.run import StageKey, new_run

ROOT = Path(__file__).parents[1]
COMLRL = ROOT / ".venv-comlrl/bin/python"
QUESTION, GOALS = "say a word", ("x", "y")
SAMPLES, MAX_TOKENS, RATE = 8, 4, 3e-3
STEPS = {1: 120, 2: 16}
"""Steps of a run, by the number of turns."""
REPEATS = 15
"""Rounds of the parts whose sides are single steps."""
SHARES = {
    "vs_comlrl": 0.5,
    "vs_comlrl_two_turns": 0.3,
    "prefix_saving": 0.1,
    "turn_overhead": 0.1,
}
"""Share of the time limit of each part."""
LEARNER = StageKey(0, REINFORCE)
TRAIN_STEP = rl.train_step
"""The real one, which measurements of a step replace."""


class OneTurn(Pure):
    """Two agents with one prompt; both succeed if each says its own letter."""

    name, metric, turns = "one-turn", "reward", 1
    actors = {"first": "agent", "second": "agent"}  # noqa: RUF012

    @property
    def limits(self) -> dict[str, int]:
        return {"turns": len(self.actors) * self.turns}

    @property
    def score_range(self) -> tuple[float, float]:
        return 0.0, float(self.turns)

    def tasks(
        self, split: Any, count: int, seed: int, previous_counts: Sequence[int] = ()
    ) -> list[Task]:
        start = sum(previous_counts)
        return [Task(f"{split}-{n}", {}) for n in range(start, start + count)]

    def next_actors(self, state: Any) -> tuple[str, ...]:
        return tuple(self.actors)

    def observe(self, state: Any, actor: str) -> tuple[Message, ...]:
        """Return the question, and after each turn the agent's own message and its partner's."""
        messages = [Message.of("user", QUESTION)]
        for start in range(0, len(state.turns), 2):
            pair = state.turns[start : start + 2]
            for turn in sorted(pair, key=lambda turn: turn.speaker.name != actor):
                is_own = turn.speaker.name == actor
                messages.append(Message("assistant" if is_own else "user", turn=turn.id))
        return tuple(messages)

    async def act(self, state: Any, turns: Any, session: Any, *, replayed: Any = ()) -> Transition:
        reward = succeeds(state.turns[-2:])
        done = len(state.turns) == self.limits["turns"]
        return Transition(
            end=Ending("over") if done else None, rewards=dict.fromkeys(self.actors, reward)
        )

    async def grade(self, state: Any, session: Any) -> Grade:
        return Grade(sum(succeeds(state.turns[n : n + 2]) for n in range(0, len(state.turns), 2)))


class TwoTurns(OneTurn):
    """The same twice."""

    name, turns = "two-turns", 2


def succeeds(pair: Sequence[Any]) -> float:
    """Return the reward of a joint action."""
    return float(all(goal in turn.text for goal, turn in zip(GOALS, pair, strict=True)))


def write_model(folder: Path) -> None:
    """Write a random Qwen2 whose tokens are the letters of the task."""
    special = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
    words = [*special, *sorted({*QUESTION, *GOALS})]
    inner = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, special[0]))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens([AddedToken(text, normalized=False) for text in special])
    # comlrl takes the first padding token for the end of the prompt, so it is not the end token.
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<|end|>", pad_token="<|pad|>"
    )
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
    )
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(words),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        pad_token_id=0,
        eos_token_id=1,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def our_run(model: Path, turns: int, seed: int) -> dict[str, Any]:
    """Return the seconds of the stage, and the mean rewards and sampled tokens of its steps."""
    world = OneTurn if turns == 1 else TwoTurns
    overrides = [
        f"environment={Path(__file__)}:{world.__name__}",
        f"model={model}",
        f"seed={seed}",
        "rollout.tasks=1",
        f"rollout.rollouts_per_task={SAMPLES}",
        f"rollout.max_tokens={MAX_TOKENS}",
        "advantage.baseline=mean_std",
        f"steps.count={STEPS[turns]}",
        f"steps.patience={STEPS[turns] + 1}",
        f"train.learning_rate={RATE}",
    ]
    made = recipe(settings("rl/magrpo", overrides))
    with (
        TemporaryDirectory() as folder,
        new_run(Path(folder) / "run", made.name, made.settings, "none") as run,
    ):
        run_stages(made, run, Silent(), [LEARNER])
        steps = [metrics for _, metrics in sorted(step_records(run.store, 0, REINFORCE).items())]
        return {
            "seconds": float(run.metrics(LEARNER)["seconds"]),
            "rewards": [float(metrics["reward"]) for metrics in steps],
            "tokens": fmean(float(metrics["sampled_tokens"]) for metrics in steps),
        }


def comlrl_run(model: Path, turns: int, seed: int) -> dict[str, Any]:
    """Return the same of comlrl, in a process of its own."""
    options = {
        "question": QUESTION,
        "goals": GOALS,
        "turns": turns,
        "samples": SAMPLES,
        "max_tokens": MAX_TOKENS,
        "learning_rate": RATE,
        "steps": STEPS[turns],
        "seed": seed,
        "threads": torch.get_num_threads(),
    }
    command = [str(COMLRL), str(ROOT / "bench/comlrl_side.py"), str(model), json.dumps(options)]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def against_comlrl(turns: int, maximum: int, seconds: float) -> dict[str, Any]:
    """Return the ratio of the steps per second of both sides, and what they learned."""
    if not COMLRL.exists():
        sys.exit("comlrl is not installed; run make .venv-comlrl/.ready")
    sides = {"coterie": our_run, "comlrl": comlrl_run}
    times, runs = Times(), dict[str, list[dict[str, Any]]]()
    with TemporaryDirectory() as folder:
        write_model(Path(folder))
        for seed in rounds(maximum, seconds):
            for side, run in sides.items():
                found = run(Path(folder), turns, seed)
                times.add(side, found["seconds"])
                runs.setdefault(side, []).append(found)
    steps = STEPS[turns]
    return {
        "ratio": times.ratio("comlrl", "coterie"),
        "spread": times.spread("comlrl", "coterie"),
        "rounds": times.rounds(),
        "steps": steps,
        "steps_per_second": {side: steps / median for side, median in times.medians().items()},
        "reward": {side: fmean(map(last_reward, runs[side])) for side in sides},
        "tokens": {side: fmean(found["tokens"] for found in runs[side]) for side in sides},
    }


def last_reward(found: dict[str, Any]) -> float:
    """Return the mean reward of the last tenth of the steps."""
    rewards: list[float] = found["rewards"]
    return fmean(rewards[-max(len(rewards) // 10, 1) :])


class Measured(Exception):
    """Ends a run whose first step was measured."""


def measure_step(
    method: str, overrides: Sequence[str], measure: Callable[..., dict[str, Any]]
) -> dict[str, Any]:
    """Sample a step of a method on ``exchange``, and return what ``measure`` says of it in the place of its update."""
    figures: dict[str, Any] = {}

    def train_step(*arguments: Any) -> tuple[StepBatch, dict[str, float]]:
        figures.update(measure(*arguments))
        raise Measured

    made = recipe(settings(method, [task_pair("exchange"), *overrides]))
    with (
        TemporaryDirectory() as folder,
        patch.object(rl, "train_step", train_step),
        new_run(Path(folder) / "run", made.name, made.settings, "none") as run,
    ):
        try:
            run_stages(made, run, Silent(), [LEARNER])
        except Measured:
            return figures
    raise AssertionError("no step was taken")


def prefix_saving(maximum: int, seconds: float) -> dict[str, Any]:
    """Return the tokens of a step's rows, with and without tries, and the time of the update."""

    def measure(
        samples: StepSamples, policies: Sequence[Learner], critic: None, s: Any, *_: object
    ) -> dict[str, Any]:
        paths = rl.prepare(samples, policies, critic, s).paths
        rows, (policy,) = [row for path in paths for row in path.rows], policies
        rule, objective = CostRule.of(policy.scorer), policy.config.objective
        packed, flat = (Ours(policy.scorer, rows, choice, objective) for choice in (rule, None))
        sides = {"packed": packed.step, "flat": flat.step}
        times = alternate(sides, maximum, seconds)
        return {
            "ratio": packed.computed / flat.computed,
            "tokens": flat.computed,
            "computed_tokens": packed.computed,
            "trained_tokens": sum(row.target_count for row in rows),
            "rows": len(rows),
            "seconds_vs_flat": times.ratio("packed", "flat"),
            "spread": times.spread("packed", "flat"),
            "rounds": times.rounds(),
        }

    return measure_step("rl/vine", [], measure)


def turn_overhead(maximum: int, seconds: float) -> dict[str, Any]:
    """Return the time of a step with advantages of turns over that of one with advantages of paths."""

    def measure(
        samples: StepSamples,
        policies: Sequence[Learner],
        critic: None,
        s: ReinforceSettings,
        *_: Any,
    ) -> dict[str, Any]:
        # Each step makes the samples older; the rule that drops old ones is off, so that all steps
        # have the same rows.
        rollout = s.rollout.model_copy(update={"max_staleness": 1})
        sides = {
            method: partial(
                TRAIN_STEP,
                *(samples, policies, critic),
                s.model_copy(update={"rollout": rollout, "advantage": settings(method).advantage}),
                *("bench", False),
            )
            for method in ("rl/turns", "rl/grpo")
        }
        times = alternate(sides, maximum, seconds)
        return {
            "ratio": times.ratio("rl/turns", "rl/grpo"),
            "spread": times.spread("rl/turns", "rl/grpo"),
            "rounds": times.rounds(),
            "seconds": times.medians(),
            "paths": len(samples.paths),
            "tokens": sum(path.tokens for path in samples.paths),
        }

    updates = 2 * (maximum + 1)
    overrides = [
        f"steps.count={updates}",
        "rollout.tasks=2",
        "loss.kl_coef=0",
        "loss.dual_clip=null",
    ]
    return measure_step("rl/grpo", overrides, measure)


def main() -> None:
    """Measure, print, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=SHARES, help="only this one")
    parser.add_argument("--rounds", type=int, default=3, help="maximum rounds against comlrl")
    parser.add_argument("--threads", type=int, default=1, help="of torch, on both sides")
    parser.add_argument("--seconds", type=float, default=300, help="begin no round that ends later")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    parts: dict[str, Callable[[float], dict[str, Any]]] = {
        "vs_comlrl": partial(against_comlrl, 1, args.rounds),
        "vs_comlrl_two_turns": partial(against_comlrl, 2, args.rounds),
        "prefix_saving": partial(prefix_saving, REPEATS),
        "turn_overhead": partial(turn_overhead, REPEATS),
    }
    figures: dict[str, Any] = {"load": os.getloadavg()[0]}
    for name in [args.part] if args.part else list(parts):
        figures[name] = parts[name](args.seconds * SHARES[name])
        print(name, json.dumps(figures[name]), flush=True)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
