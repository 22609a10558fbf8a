"""A trainer that takes steps: as rows arrive, over kills, between others' steps, beside an engine that samples."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
import torch

from coterie.errors import UserError
from coterie.models.adapters import activate, add_lora, load_adapter
from coterie.record.rows import Row, Target
from coterie.training.batches import Order
from coterie.training.checkpoint import weight_hash
from coterie.training.losses import SFT
from coterie.training.settings import TrainingSettings
from coterie.training.trainer import Trainer, train
from tests.helpers.engine_models import (
    COMPILED,
    PLAIN,
    PROMPT,
    open_engine,
    random_model,
    recompute_logprobs,
    sample_completion,
)
from tests.helpers.training_models import SETTINGS, make_rows, tiny_llama
from tests.training.test_training import metrics_of
from tests.training.test_training_checkpoints import Stop, StopAt

STEPS = 15
LONG = SETTINGS.model_copy(update={"epochs": 3})
CONSTANT = TrainingSettings(**{**SETTINGS.model_dump(), "schedule": "constant", "warmup_ratio": 0})
METHODS = {"full": LONG, "lora": TrainingSettings(**{**LONG.model_dump(), "method": "lora"})}


def arriving(settings: TrainingSettings, first: int = 0) -> Iterator[list[Row]]:
    """The rows of each step of ``train``, in its order, from one step on."""
    rows = make_rows()
    order = Order([""] * len(rows), settings.seed, settings.batch_size)
    for chosen in order.steps(first, STEPS):
        yield [rows[i] for i in chosen]


def take_steps(folder: Path, settings: TrainingSettings) -> str:
    """Train step by step, from the last checkpoint to the end; return the hash of the weights."""
    with Trainer(tiny_llama(), SFT(), settings, folder, steps=STEPS) as trainer:
        for rows in arriving(settings, trainer.done):
            trainer.step(rows)
        return weight_hash(trainer.finish().final)


@pytest.mark.parametrize("method", METHODS)
def test_steps_on_rows_that_arrive_are_bitwise_one_training(tmp_path, method):
    settings = METHODS[method]
    whole = train(tiny_llama(), make_rows(), settings, tmp_path / "whole")
    assert whole.steps == STEPS
    assert take_steps(tmp_path / "steps", settings) == weight_hash(whole.final)
    names = ("step", "loss", "grad_norm", "learning_rate")
    lines = [metrics_of(tmp_path / folder) for folder in ("steps", "whole")]
    one, other = ([[line[name] for name in names] for line in part] for part in lines)
    assert one == other


def test_a_checkpoint_is_written_when_it_is_asked_for(tmp_path):
    whole = take_steps(tmp_path / "whole", LONG)
    with Trainer(tiny_llama(), SFT(), LONG, tmp_path / "cut", steps=STEPS) as trainer:
        for step, rows in enumerate(arriving(LONG)):
            trainer.step(rows)
            if step == 5:
                trainer.save()
            if step == 8:
                break
    with Trainer(tiny_llama(), SFT(), LONG, tmp_path / "cut", steps=STEPS) as trainer:
        assert trainer.done == 6
    assert take_steps(tmp_path / "cut", LONG) == whole


def test_a_training_that_is_cut_counts_what_it_leaves_out_once(tmp_path):
    rows = [*make_rows(16), Row((2,) * 65, (Target(3, 65, "script"),)), Row((2, 3), ())]
    settings = SETTINGS.model_copy(update={"save_every_steps": 1})

    with pytest.raises(Stop):
        train(tiny_llama(), rows, settings, tmp_path, progress=StopAt(2))
    report = train(tiny_llama(), rows, settings, tmp_path)
    assert (report.steps, report.rows) == (4, 32)
    assert (report.dropped_too_long, report.dropped_empty) == (1, 1)


def test_threads_random_numbers_and_the_model_are_the_callers_between_steps(tmp_path):
    model = tiny_llama()
    model.requires_grad_(False)
    threads = torch.get_num_threads()
    settings = CONSTANT.model_copy(update={"threads": threads + 1, "gradient_checkpointing": True})
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    found = []
    with Trainer(model, SFT(), settings, tmp_path) as trainer:
        for _ in range(3):
            trainer.step(make_rows(8))
            found.append(torch.rand(1))
            assert torch.get_num_threads() == threads
            assert not model.training
            assert not model.is_gradient_checkpointing
            assert not any(weight.requires_grad for weight in model.parameters())
            assert all(weight.grad is None for weight in model.parameters())
    assert torch.equal(torch.cat(found), expected)


def test_two_adapters_of_a_base_trained_in_turn_are_each_as_if_alone(tmp_path):
    def adapted() -> torch.nn.Module:
        model = add_lora(tiny_llama(), r=2, alpha=4, name="planner")
        return add_lora(model, r=2, alpha=4, name="grounder")

    open_trainer = partial(Trainer, objective=SFT(), settings=METHODS["lora"])
    steps, alone = 6, {}
    for role in ("planner", "grounder"):
        with open_trainer(adapted(), folder=tmp_path / role, steps=steps, adapter=role) as one:
            for rows in islice(arriving(LONG), steps):
                one.step(rows)
            alone[role] = weight_hash(one.finish().final)
    both = adapted()
    activate(both, "planner")
    trainers = {
        role: open_trainer(both, folder=tmp_path / f"{role}-2", steps=steps, adapter=role)
        for role in alone
    }
    for rows in islice(arriving(LONG), steps):
        for trainer in trainers.values():
            trainer.step(rows)
            assert both.active_adapter == "planner"
    for role, trainer in trainers.items():
        trainer.publish(tmp_path / f"{role}-published")
        assert weight_hash(trainer.finish().final) == alone[role]
        assert weight_hash(tmp_path / f"{role}-published") == alone[role]
    assert both.active_adapter == "planner"


CONSTANT_LORA = TrainingSettings(**{**CONSTANT.model_dump(), "method": "lora"})


@pytest.mark.parametrize("config", [COMPILED["tied"], PLAIN["qwen3"]], ids=["compiled", "plain"])
@pytest.mark.parametrize("settings", [CONSTANT, CONSTANT_LORA], ids=["full", "lora"])
def test_an_engine_samples_from_the_new_weights_without_a_file(tmp_path, config, settings):
    one = random_model(config)
    with Trainer(one.model, SFT(), settings, tmp_path / "training") as trainer:
        engine = open_engine(replace(one, model=trainer.model))
        scores = []
        for _ in range(3):
            ids, logprobs = sample_completion(engine, PROMPT, 5)
            assert logprobs == pytest.approx(
                recompute_logprobs(trainer.model, ids, PROMPT), abs=3e-4
            )
            scores += asyncio.run(engine.logprobs(PROMPT, [PROMPT[:9]]))
            trainer.step(make_rows(8))
        assert scores[0] != scores[1] != scores[2]
        trainer.publish(tmp_path / "published")
        last = sample_completion(engine, PROMPT, 5)
    assert not (tmp_path / "training" / "final").exists()
    other = random_model(config)
    if settings.method == "lora":
        other = replace(other, model=load_adapter(other.model, tmp_path / "published"))
    else:
        published = type(other.model).from_pretrained(tmp_path / "published")
        other.model.load_state_dict(published.state_dict())
    ids, logprobs = sample_completion(open_engine(other), PROMPT, 5)
    assert ids == last[0]
    assert logprobs == pytest.approx(last[1], abs=3e-4)


def test_a_step_that_fails_leaves_nothing_behind(tmp_path):
    rows = make_rows(8)
    bad = [*rows[:3], replace(rows[3], weight=float("inf")), *rows[4:]]
    hashes = []
    for fails in (False, True):
        with Trainer(tiny_llama(), SFT(), CONSTANT, tmp_path / str(fails)) as trainer:
            trainer.step(rows)
            if fails:
                with pytest.raises(UserError, match="of rows row3 is not finite"):
                    trainer.step(bad)
                with pytest.raises(UserError, match="there are no rows"):
                    trainer.step([])
                with pytest.raises(UserError, match="longer than"):
                    trainer.step(rows, [replace(rows[0], ids=(3,) * 999)])
            trainer.step(rows)
            assert trainer.done == 2
            hashes.append(weight_hash(trainer.finish().final))
    assert hashes[0] == hashes[1]


def test_after_ctrl_c_in_the_middle_of_a_step_it_has_to_be_opened_again(tmp_path, monkeypatch):
    rows = make_rows(8)
    with Trainer(tiny_llama(), SFT(), CONSTANT, tmp_path / "two") as trainer:
        trainer.step(rows)
        trainer.save()

        def interrupted(**_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(trainer._record, "add", interrupted)
            with pytest.raises(KeyboardInterrupt):
                trainer.step(rows)
        for method in (trainer.finish, trainer.save, lambda: trainer.step(rows)):
            with pytest.raises(UserError, match="interrupted while a step changed the weights"):
                method()
    hashes = []
    for folder in ("one", "two"):
        with Trainer(tiny_llama(), SFT(), CONSTANT, tmp_path / folder) as trainer:
            for _ in range(trainer.done, 2):
                trainer.step(rows)
            hashes.append(weight_hash(trainer.finish().final))
    assert hashes[0] == hashes[1]
