"""Sampling, training, scoring, writing, merging and switching on one model in one process, in any order.

After every step what the engine says is compared with a plain forward pass of the model.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.engines.inprocess import InProcessEngine
from coterie.models.adapters import activate, add_lora, save_adapter, using
from coterie.training.losses import DPO, DPOSettings
from coterie.training.reference import with_reference
from coterie.training.settings import TrainingSettings
from coterie.training.trainer import train
from tests.helpers.engine_models import (
    COMPILED,
    PLAIN,
    PROMPT,
    open_engine,
    random_model,
    recompute_logprobs,
    sample_completion,
)
from tests.helpers.training_models import SETTINGS, make_pairs, make_rows

MODELS = {"llama": COMPILED["tied"], "qwen3": PLAIN["qwen3"], "gemma": PLAIN["gemma"]}
FULL = SETTINGS.model_copy(update={"epochs": 1, "learning_rate": 3e-3})
LORA = TrainingSettings(**{**FULL.model_dump(), "method": "lora", "lora_r": 2})
ROLES = ("planner", "grounder")


@dataclass
class Bench:
    """One model, engines that live on through all that is done to it, and a folder for each training."""

    model: Any
    folder: Path
    random: random.Random
    engines: dict[str | None, InProcessEngine]
    trainings: int = 0

    def new_folder(self) -> Path:
        self.trainings += 1
        return self.folder / str(self.trainings)

    def check(self, adapter: str | None) -> None:
        """Sampling and scoring are the model's own forward pass, prompts read before or not."""
        engine, seed = self.engines[adapter], self.random.randrange(1000)
        prompt = PROMPT[: self.random.choice((20, 40, 50))]
        said, logprobs = sample_completion(engine, prompt, seed)
        (scores,) = asyncio.run(engine.logprobs(prompt, [said]))
        right = recompute_logprobs(self.model, said, prompt)
        assert logprobs == pytest.approx(right, abs=3e-4)
        assert scores == pytest.approx(right, abs=3e-4)
        assert self.model.config._attn_implementation == "sdpa"


def sft(bench: Bench, settings: TrainingSettings, adapter: str | None = None) -> None:
    train(bench.model, make_rows(8), settings, bench.new_folder(), adapter=adapter)


def dpo(bench: Bench, settings: TrainingSettings, adapter: str | None = None) -> None:
    pairs, folder = make_pairs(2), bench.new_folder()
    ready = with_reference(bench.model, pairs, settings, folder / "reference", reduction="none")
    objective = DPO(DPOSettings(nll_coef=0.2))
    train(bench.model, ready, settings, folder, objective=objective, adapter=adapter)


def changed(adapted: Any) -> Any:
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            weight.data.normal_(std=0.05)
    return adapted


def write(bench: Bench) -> None:
    weight = bench.random.choice(list(bench.model.parameters()))
    weight.data.view(-1)[bench.random.randrange(weight.numel())] += 0.5


def merge(bench: Bench) -> None:
    changed(add_lora(bench.model, r=2, alpha=4)).merge_and_unload()


def shrink(bench: Bench) -> None:
    bench.model.load_state_dict({k: w * 0.97 for k, w in bench.model.state_dict().items()})


def evaluate(bench: Bench) -> None:
    ids = torch.tensor([PROMPT])
    mask = torch.ones_like(ids)
    bench.model.generate(ids, attention_mask=mask, max_new_tokens=3, do_sample=False)


OF_ONE: tuple[Callable[[Bench], None], ...] = (
    lambda bench: sft(bench, FULL), lambda bench: sft(bench, LORA), lambda bench: dpo(bench, FULL),
    lambda bench: dpo(bench, LORA), write, merge, shrink, evaluate,
)  # fmt: skip


@pytest.mark.parametrize("kind", MODELS)
def test_one_model_in_any_order(kind: str, tmp_path: Path) -> None:
    one = random_model(MODELS[kind])
    bench = Bench(one.model, tmp_path, random.Random(kind), {None: open_engine(one)})
    bench.check(None)
    for step in bench.random.sample(OF_ONE, len(OF_ONE)):
        step(bench)
        for _ in range(bench.random.randrange(1, 3)):
            bench.check(None)


def switch(bench: Bench) -> None:
    activate(bench.model, bench.random.choice(ROLES))


def load_other(bench: Bench) -> None:
    """One role takes over what the other one has learnt."""
    mine, other = bench.random.sample(ROLES, 2)
    folder = bench.new_folder()
    save_adapter(bench.model, folder, other)
    asyncio.run(bench.engines[mine].load(folder, "next"))


def write_adapter(bench: Bench) -> None:
    role = bench.random.choice(ROLES)
    found = [w for name, w in bench.model.named_parameters() if f"lora_B.{role}." in name]
    bench.random.choice(found).data.add_(0.1)


def merge_for_a_while(bench: Bench) -> None:
    role = bench.random.choice(ROLES)
    activate(bench.model, role)
    bench.model.merge_adapter([role])
    bench.check(None)
    bench.model.unmerge_adapter()


OF_ROLES: tuple[Callable[[Bench], None], ...] = (
    lambda bench: sft(bench, LORA, bench.random.choice(ROLES)),
    lambda bench: dpo(bench, LORA, bench.random.choice(ROLES)),
    switch, load_other, write_adapter, merge_for_a_while, write,
)  # fmt: skip


@pytest.mark.parametrize("kind", ["llama", "gemma"])
def test_roles_of_one_model_in_any_order(kind: str, tmp_path: Path) -> None:
    base = random_model(MODELS[kind])
    both = base.model
    for role in ROLES:
        both = changed(add_lora(both, r=2, alpha=4, name=role))
    one = replace(base, model=both)
    engines = {name: open_engine(one, name) for name in (None, *ROLES)}
    bench = Bench(both, tmp_path, random.Random(kind), engines)
    for step in (switch, *bench.random.sample(OF_ROLES, len(OF_ROLES))):
        step(bench)
        bench.check(None)
        with using(both, None):
            bench.check(None)
        for role in bench.random.sample(ROLES, 2):
            with using(both, role):
                bench.check(role)
