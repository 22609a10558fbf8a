"""MAGRPO of comlrl 1.4.3: the other side of ``bench/multi_agent.py``, run by the Python of ``.venv-comlrl``.

    .venv-comlrl/bin/python bench/comlrl_side.py MODEL JSON

The JSON object has the options in ``Options``. The last line is one JSON object: the seconds of ``trainer.train()``
(neither imports nor loading), and by step the mean reward of the joint actions and the number of sampled tokens.
"""

import json
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
from comlrl.trainers.reinforce import MAGRPOConfig, MAGRPOTrainer
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer


@dataclass(frozen=True)
class Options:
    """What both sides have in common."""

    question: str
    goals: list[str]
    """What each agent must say."""
    turns: int
    samples: int
    """Answers of each agent to a prompt."""
    max_tokens: int
    learning_rate: float
    steps: int
    seed: int
    threads: int

    @property
    def nodes(self) -> int:
        """Return the number of prompts of an agent in a step."""
        # The first one, and one after each joint action before the last turn.
        return sum(self.samples**turn for turn in range(self.turns))


class CountingTrainer(MAGRPOTrainer):  # type: ignore[misc]
    """MAGRPO that counts sampled tokens, end tokens included."""

    sampled_tokens = 0

    def _generate_completions(self, *args: Any, **kwargs: Any) -> Any:
        completions = super()._generate_completions(*args, **kwargs)
        for ids in completions["completion_input_ids"][0]:
            ended = (ids == self.tokenizer.eos_token_id).nonzero()
            self.sampled_tokens += int(ended[0]) + 1 if len(ended) else len(ids)
        return completions


def train(model: str, options: Options) -> dict[str, Any]:
    """Train two agents for ``steps`` steps of one task each."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    end, rewards = tokenizer.eos_token, list[float]()

    def to_prompt(item: dict[str, Any], external_prompts: str | None = None) -> str:
        messages = [{"role": "user", "content": item["prompt"]}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return str(text)

    def reward(first: list[str], second: list[str]) -> list[float]:
        pairs = zip(first, second, strict=True)
        found = [float(all(map(str.__contains__, pair, options.goals))) for pair in pairs]
        rewards.extend(found)
        return found

    def next_prompts(
        agent_completions: list[str], prompt_history_per_agent: list[list[str]], **_: Any
    ) -> list[str]:
        """Continue each agent's chat with its own answer, and its partner's as the user's message."""
        return [
            f"{history[-1]}{own}{end}<|user|>{partner}{end}<|assistant|>"
            for history, own, partner in zip(
                prompt_history_per_agent, agent_completions, agent_completions[::-1], strict=True
            )
        ]

    trainer = CountingTrainer(
        agents=[AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32) for _ in range(2)],
        tokenizer=tokenizer,
        train_dataset=Dataset.from_list([{"prompt": options.question}] * options.steps),
        reward_func=reward,
        formatters=to_prompt,
        external_transition=next_prompts,
        args=MAGRPOConfig(
            num_train_epochs=1,
            agent_learning_rate=options.learning_rate,
            num_generations=options.samples,
            max_new_tokens=options.max_tokens,
            # The same distribution as in the loss.
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            num_turns=options.turns,
            # By default, no second turn is played after rewards of 0 or more.
            early_termination_threshold=None,
            external_prompt_passthrough=True,
            eval_interval=0,
            # One update for each step, agent and turn: the smallest number that trains in each step.
            rollout_buffer_size=options.nodes,
        ),
    )
    began = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - began
    # By step: the joint actions of the first turn, then those of the second, in one sum of means.
    per_step, first = len(rewards) // options.steps, options.samples
    means = []
    for start in range(0, len(rewards), per_step):
        turns = (rewards[start : start + first], rewards[start + first : start + per_step])
        means.append(sum(sum(turn) / len(turn) for turn in turns if turn))
    tokens = trainer.sampled_tokens / options.steps
    return {"seconds": seconds, "rewards": means, "tokens": tokens}


def main() -> None:
    """Train, and print one JSON object."""
    options = Options(**json.loads(sys.argv[2]))
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    print(json.dumps(train(sys.argv[1], options)))


if __name__ == "__main__":
    main()
