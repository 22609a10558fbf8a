"""A pool of one real vLLM server, against the same model in this process (float32).

In order: the packaged weights, then adapters on them, then another checkpoint, then a death.
"""

import asyncio
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from openai import OpenAI

from coterie.engines.pool import ServerPool, vllm_pool
from coterie.engines.protocol import EngineError, Sampling
from coterie.errors import UserError
from coterie.models.adapters import load_adapter
from coterie.models.loading import LoadedModel, load, reload
from coterie.training.trainer import train
from tests.helpers.serve_command import serve_command
from tests.helpers.stopping_models import BARELY, WORD, save_stopping, stopping_rows
from tests.helpers.template_models import make_tokenizer
from tests.vllm.conftest import MODEL, SETTINGS
from tests.vllm.references import (
    TOLERANCE,
    adapter,
    apart,
    behaviour,
    other_checkpoint,
    prompts,
    scores,
)

SEEDS = (1, 2, 2**59 + 3)
HOT = Sampling(temperature=1.3, max_tokens=48)


@pytest.mark.parametrize(
    "sampling",
    [HOT, Sampling(temperature=0.7, top_p=0.9, max_tokens=48), Sampling(max_tokens=3)],
)
def test_behaviour_logprobs_are_those_of_the_same_model_in_process(
    runner: asyncio.Runner, pool: ServerPool, model: LoadedModel, sampling: Sampling
) -> None:
    for prompt in prompts(model):
        for said in runner.run(pool.sample(prompt, SEEDS, sampling)):
            assert 1 <= len(said.ids) <= sampling.max_tokens
            assert apart(said.logprobs, behaviour(model, prompt, said, sampling)) < TOLERANCE


@pytest.mark.usefixtures("pool")
def test_the_model_runs_in_the_engine_process_and_none_spins_beside_it() -> None:
    running = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]
    assert any("EngineCore" in words for words in running)
    assert not any("VLLM::Worker" in words for words in running)


def test_a_greedy_completion_is_that_of_the_model_in_process_and_certain(
    runner: asyncio.Runner, pool: ServerPool, model: LoadedModel
) -> None:
    for prompt in prompts(model):
        (said,) = runner.run(pool.sample(prompt, [0], Sampling(temperature=0, max_tokens=24)))
        assert set(said.logprobs) == {0.0}
        with torch.inference_mode():
            logits = model.model(torch.tensor([[*prompt, *said.ids]])).logits[0]
        assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == list(said.ids)


def test_a_seed_says_the_same_again_alone_or_in_a_crowd(
    runner: asyncio.Runner, pool: ServerPool, model: LoadedModel
) -> None:
    prompt, *others = prompts(model)
    alone = runner.run(pool.sample(prompt, SEEDS[:1], HOT))

    async def crowd() -> list[tuple[int, ...]]:
        calls = [pool.sample(other, SEEDS, HOT) for other in (prompt, *others)]
        return [said.ids for said in (await asyncio.gather(*calls))[0]]

    said = runner.run(crowd())
    assert said[0] == alone[0].ids
    assert len(set(said)) == len(SEEDS)


def test_a_completion_ends_with_an_end_of_turn_or_a_stop_string_and_its_text_before(
    runner: asyncio.Runner, pool: ServerPool, model: LoadedModel
) -> None:
    decode, ends = model.renderer.decode, model.renderer.end_ids
    prompt = prompts(model)[0]
    (whole,) = runner.run(pool.sample(prompt, [1], Sampling(max_tokens=200)))
    assert whole.finish == "end" and whole.ids[-1] in ends
    assert whole.text == decode(whole.ids[:-1])
    stop = whole.text[len(whole.text) // 2 :][:4]
    (cut,) = runner.run(pool.sample(prompt, [1], Sampling(max_tokens=200, stop=(stop,))))
    assert cut.finish == "stop_string" and cut.ids == whole.ids[: len(cut.ids)]
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert stop in decode(cut.ids)
    short = Sampling(max_tokens=len(whole.ids) - 1)
    (length,) = runner.run(pool.sample(prompt, [1], short))
    assert length.finish == "length" and length.ids == whole.ids[:-1]


def test_what_prompts_share_is_read_once(
    runner: asyncio.Runner, pool: ServerPool, model: LoadedModel
) -> None:
    prompt = tuple(range(10, 140))
    runner.run(pool.sample(prompt, [0], HOT))
    (again,) = runner.run(pool.sample((*prompt, 77), [1], HOT))
    assert again.cached == 128
    assert apart(again.logprobs, behaviour(model, (*prompt, 77), again, HOT)) < TOLERANCE


def test_logprobs_are_those_of_the_engine_in_process(
    runner: asyncio.Runner, pool: ServerPool, model: LoadedModel
) -> None:
    prompt = prompts(model)[0]
    said = [one.ids for one in runner.run(pool.sample(prompt, SEEDS, HOT))]
    for _ in range(2):  # also with the prompt in the prefix cache
        found = runner.run(pool.logprobs(prompt, said))
        for one, other in zip(found, scores(model, prompt, said), strict=True):
            assert apart(one, other) < TOLERANCE


def test_out_of_context_fails_for_good(runner: asyncio.Runner, pool: ServerPool) -> None:
    retries = pool.stats.retries
    with pytest.raises(EngineError, match="context"):
        runner.run(pool.sample([5] * 1000, [0], Sampling(max_tokens=100)))
    assert pool.stats.retries == retries


def test_an_argument_that_vllm_does_not_have_is_refused_in_its_own_words(
    runner: asyncio.Runner, model: LoadedModel, tmp_path: Path
) -> None:
    settings = SETTINGS.model_copy(update={"arguments": {"max_num_sequences": 8}})

    async def run() -> None:
        async with vllm_pool(
            MODEL, model.renderer, settings, tmp_path, policy="talker", version="0"
        ):
            pass

    with pytest.raises(UserError, match=r"(?s)did not start.*--max-num-sequences"):
        runner.run(run())


def test_a_packaged_model_is_served_by_vllm_until_ctrl_c() -> None:
    words = ("--dtype", "float32", "--enforce-eager", "--max-num-seqs", "16")
    with serve_command("model", MODEL, "--port", "0", "--", *words, logs=True) as (child, url):
        client = OpenAI(base_url=f"{url}/v1", api_key="none")
        asked = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}
        reply = client.chat.completions.create(**asked, n=2, max_tokens=8, logprobs=True)  # type: ignore[call-overload]
        assert len(reply.choices) == 2 and reply.choices[0].logprobs.content
        processes = psutil.Process(child.pid).children(recursive=True)
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 0
    assert len(processes) >= 3 and not any(process.is_running() for process in processes)


@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_served_model_stops_at_the_end_of_turn_that_was_trained(
    method: str, tmp_path: Path
) -> None:
    """An adapter needs an option, because vLLM reads generation settings of the base alone."""
    base = save_stopping(tmp_path / "base", make_tokenizer("chatml"), "<|im_end|>", "<|endoftext|>")
    settings = BARELY.model_copy(update={"method": method})
    final = train(load(base).model, stopping_rows(), settings, tmp_path / "run").final
    words = ["--dtype", "float32", "--enforce-eager", "--max-num-seqs", "4"]
    if method == "lora":
        words += ["--enable-lora", "--max-lora-rank", "16", "--lora-modules", f"adapter={final}"]
        words += ["--generation-config", str(final)]
    served = base if method == "lora" else final
    with serve_command("model", str(served), "--port", "0", "--", *words, logs=True) as (_, url):
        asked: dict[str, Any] = {
            "model": "adapter" if method == "lora" else "final",
            "messages": [{"role": "user", "content": "How?"}],
        }
        client = OpenAI(base_url=f"{url}/v1", api_key="none")
        (reply,) = client.chat.completions.create(**asked, max_tokens=8, temperature=0).choices
    assert (reply.message.content, reply.finish_reason) == (WORD, "stop")


def test_a_server_that_runs_already_is_used_and_left_alone(
    runner: asyncio.Runner, pool: ServerPool, model: LoadedModel, tmp_path: Path
) -> None:
    settings = SETTINGS.model_copy(update={"urls": (pool.members[0].client.url,)})
    prompt = prompts(model)[0]

    async def use() -> list[tuple[int, ...]]:
        async with vllm_pool(
            "unused", model.renderer, settings, tmp_path, policy="talker", version="0"
        ) as other:
            return [one.ids for one in await other.sample(prompt, SEEDS, HOT)]

    said = runner.run(use())
    assert said == [one.ids for one in runner.run(pool.sample(prompt, SEEDS, HOT))]


def test_adapters_are_loaded_under_names_that_were_not_used_before(
    runner: asyncio.Runner, pool: ServerPool, model: LoadedModel, tmp_path: Path
) -> None:
    prompt = prompts(model)[0]
    for number in (1, 2):
        folder = adapter(tmp_path / "same-name", seed=number)
        runner.run(pool.load(folder, f"adapter-{number}"))
        assert pool.version == f"adapter-{number}"
        served = [card.id for card in runner.run(pool.members[0].client.models())]
        assert served[0] == "talker" and served[1].endswith(f"-{number}") and not served[2:]
        base = load(MODEL)
        merged = LoadedModel(
            load_adapter(base.model, folder), base.tokenizer, base.renderer,
            base.context_length, base.source,
        )  # fmt: skip
        for said in runner.run(pool.sample(prompt, SEEDS, HOT)):
            assert apart(said.logprobs, behaviour(merged, prompt, said, HOT)) < 5 * TOLERANCE
            assert apart(said.logprobs, behaviour(model, prompt, said, HOT)) > 0.01
        (found,) = runner.run(pool.logprobs(prompt, [said.ids]))
        raw = Sampling(max_tokens=48)
        assert apart(found, behaviour(merged, prompt, said, raw)) < 5 * TOLERANCE


def test_a_checkpoint_is_read_in_place_and_no_old_key_or_value_is_used(
    runner: asyncio.Runner, pool: ServerPool, model: LoadedModel, tmp_path: Path
) -> None:
    prompt = tuple(range(10, 140))
    folder = other_checkpoint(tmp_path / "other")
    other = load(MODEL)
    reload(other, folder)
    for name, version, now in ((MODEL, "back", model), (folder, "other", other)):
        runner.run(pool.load(Path(name) if now is other else Path(model.source), version))
        for _ in range(2):
            for said in runner.run(pool.sample(prompt, SEEDS, HOT)):
                assert apart(said.logprobs, behaviour(now, prompt, said, HOT)) < TOLERANCE
        (found,) = runner.run(pool.logprobs(prompt, [said.ids]))
        assert apart(found, scores(now, prompt, [said.ids])[0]) < TOLERANCE
    served = [card.id for card in runner.run(pool.members[0].client.models())]
    assert served == ["talker"]


def test_a_server_that_is_killed_comes_back_with_the_weights_it_had(
    runner: asyncio.Runner, pool: ServerPool, model: LoadedModel
) -> None:
    prompt = prompts(model)[0]
    before = runner.run(pool.sample(prompt, SEEDS, HOT))
    (member,) = pool.members
    restarts = pool.stats.restarts
    assert pool.version == "other"

    async def killed() -> list[tuple[int, ...]]:
        children = psutil.Process().children(recursive=True)
        talking = asyncio.create_task(pool.sample(prompt, SEEDS, HOT))
        while not member.load:
            await asyncio.sleep(0)
        for process in children:
            if "EngineCore" in " ".join(process.cmdline()) or "EngineCore" in process.name():
                process.kill()
        await talking  # on a busy machine these may have been sampled before
        return [one.ids for one in await pool.sample(prompt, SEEDS, HOT)]

    assert runner.run(killed()) == [one.ids for one in before]
    assert pool.stats.restarts == restarts + 1
