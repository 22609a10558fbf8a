"""Trainings on ranks that coterie starts and ends: weights of one process, ranks that die or never come, refusals."""

import json
import queue
import re
import socket
import threading
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from coterie.config.plugins import at_place
from coterie.errors import UserError
from coterie.models.adapters import add_head, add_lora, load_adapter, load_head
from coterie.models.loading import LoadedModel, load
from coterie.progress import Silent
from coterie.record.rows import Row
from coterie.training import ranks
from coterie.training.distributed import check_launch
from coterie.training.losses import DPO, SFT, DPOSettings, Regression
from coterie.training.policy_gradient import PolicyGradient, PolicyGradientSettings
from coterie.training.rank_trainer import RankTrainer, ranks_of
from coterie.training.rank_trainer import train_on_ranks as train_with
from coterie.training.reference import read_rows, row_logprobs
from coterie.training.settings import Tracker, TrainingSettings
from coterie.training.trainer import train
from tests.conftest import SMALL, refused
from tests.helpers.launch_ranks import CONFIGS
from tests.helpers.template_models import make_model as templated
from tests.helpers.training_models import (
    SETTINGS,
    make_pairs,
    make_rows,
    referenced_pairs,
    tiny_llama,
)

TWO = SETTINGS.model_copy(update={"processes": 2, "epochs": 1})
LORA = TrainingSettings(**{**TWO.model_dump(), "method": "lora", "lora_r": 4})
SHARDED = TWO.model_copy(update={"launch": str(CONFIGS / "fsdp2.yaml")})


@pytest.fixture
def saved(tmp_path: Path) -> LoadedModel:
    folder = tmp_path / "model"
    tiny_llama(vocab_size=300).save_pretrained(folder)
    templated("chatml").tokenizer.save_pretrained(folder)
    return load(folder)


def sampled(model: torch.nn.Module) -> list[Row]:
    """Return rows of paths of two segments, with log-probs some way off the model's."""
    rows = []
    with torch.no_grad():
        for number, row in enumerate(make_rows(12)):
            (own,) = row_logprobs(model, [row])
            far = tuple((own + 0.3 * torch.randn(len(own))).tolist())
            new = {"logprobs": far, "reference": far, "path_tokens": 14}
            rows.append(replace(row, **new, advantages=(1.0 - number % 3,) * len(own)))
    return rows


def train_on_ranks(saved, items, settings, folder, *rest):
    with ranks_of(saved, settings, folder) as started:
        return train_with(*started, saved.model, items, settings, folder, *rest)


class Steps(Silent):
    """Progress that keeps its losses."""

    def __init__(self) -> None:
        self.total, self.losses, self.closed = 0, [], False

    def start(self, total: int, description: str) -> None:
        self.total = total

    def advance(self, n: int, **fields: float) -> None:
        self.losses += [fields["loss"]] if fields else []

    def close(self) -> None:
        self.closed = True


def in_process(settings: TrainingSettings) -> TrainingSettings:
    """Return the settings without ranks."""
    return settings.model_copy(update={"processes": None, "launch": None})


def held_out(model: torch.nn.Module, read=row_logprobs) -> torch.Tensor:
    with torch.no_grad():
        return torch.cat(read(model, make_rows(10, seed=9)))


@pytest.mark.ranks
@pytest.mark.parametrize("settings", [TWO, LORA, SHARDED], ids=["full", "lora", "fsdp2"])
@pytest.mark.parametrize("kind", ["sft", "dpo", "policy"])
def test_two_ranks_end_with_the_log_probs_of_one(saved, tmp_path, settings, kind):
    items, objective = (make_rows(), SFT())
    if kind == "dpo":
        items, objective = referenced_pairs(), DPO(DPOSettings(beta=0.5, nll_coef=0.2))
    if kind == "policy":
        items = sampled(saved.model)
        objective = PolicyGradient(
            PolicyGradientSettings(aggregation="sequence", kl_coef=0.1, entropy_coef=0.01)
        )
    watched = Steps()
    before = held_out(saved.model)
    report = train_on_ranks(saved, items, settings, tmp_path / "two", objective, watched, Tracker())
    assert torch.equal(held_out(saved.model), before), "the model itself is left as it is"
    one = train(saved.model, items, in_process(settings), tmp_path / "one", objective=objective)
    counts = (report.steps, report.rows, report.targets)
    assert counts == (one.steps, one.rows, one.targets)
    assert watched.total == one.steps == len(watched.losses) and watched.closed
    assert report.first_loss == pytest.approx(one.first_loss, abs=1e-5)
    if kind == "policy":
        both = [tmp_path / ranks / "metrics.jsonl" for ranks in ("one", "two")]
        one_rank, two = (json.loads(file.read_text().splitlines()[0]) for file in both)
        assert one_rank.keys() == two.keys()
        for name in ("ratio", "ratio_min", "ratio_max", "clip_share", "entropy", "reference_kl"):
            assert two[name] == pytest.approx(one_rank[name], abs=1e-4), name
    if settings is LORA:
        ranks, single = (
            held_out(load_adapter(load(tmp_path / "model").model, done.final))
            for done in (report, one)
        )
    else:
        ranks, single = held_out(load(report.final).model), held_out(saved.model)
    assert (ranks - single).abs().max() < 1e-4
    assert (ranks - before).abs().max() > 1e-3
    assert sorted(file.name for file in (tmp_path / "two").iterdir()) == ["final", "metrics.jsonl"]


@pytest.mark.ranks
@pytest.mark.parametrize("settings", [TWO, LORA], ids=["full", "lora"])
def test_a_value_head_goes_on_ranks_and_comes_back(saved, tmp_path, settings):
    torch.nn.init.normal_(add_head(saved.model).weight)
    if settings is LORA:
        wrapped = add_lora(saved.model, r=4, alpha=8)
        saved = replace(saved, model=wrapped)
    report = train_on_ranks(
        saved, make_pairs(), settings, tmp_path / "two", Regression(), Silent(), Tracker()
    )
    alone = in_process(settings)
    train(saved.model, make_pairs(), alone, tmp_path / "one", objective=Regression())
    if settings is LORA:
        loaded = load_adapter(load(tmp_path / "model").model, report.final)
    else:
        loaded = load(report.final).model
    load_head(loaded, report.final)
    values = partial(read_rows, reads="values")
    ranks, single = (held_out(model, values) for model in (loaded, saved.model))
    assert (ranks - single).abs().max() < 1e-4


DIES = """
import os, signal
from pathlib import Path
from coterie.training.losses import SFT

RUN = Path({folder!r})

class Dies(SFT):
    def losses(self, items, logprobs):
        saved = [int(folder.name[-8:]) for folder in RUN.glob("checkpoint-????????")]
        deaths = len(list(RUN.glob("died-*")))
        if os.environ["RANK"] == "1" and max(saved, default=0) >= 2 and deaths < {deaths}:
            (RUN / f"died-{{deaths}}").touch()
            os.kill(os.getpid(), signal.{signal})
        return super().losses(items, logprobs)
"""


def rank_processes() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [one for one in children if "coterie.training.rank" in one.cmdline()]


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("name", "deaths"),
    [("SIGKILL", 2), ("SIGKILL", 9), ("SIGSTOP", 1)],
    ids=["twice", "always", "hangs"],
)
def test_ranks_start_again_at_the_last_checkpoint_when_one_dies_or_hangs(
    saved, tmp_path, name, deaths, caplog
):
    settings = TWO.model_copy(update={"save_every_steps": 2, "stall_seconds": 10.0})
    folder, file = tmp_path / "two", tmp_path / "dies.py"
    file.write_text(DIES.format(folder=str(folder), deaths=deaths, signal=name))
    objective, watched = at_place(f"{file}:Dies")(), Steps()
    arguments = saved, make_rows(), settings, folder, objective, watched, Tracker()
    if deaths == 9:
        problem = r"(?s)2 ranks ended 4 times in a row: rank 1 .*resume from the last checkpoint"
        with pytest.raises(UserError, match=problem):
            train_on_ranks(*arguments)
        assert not rank_processes()
        return
    report = train_on_ranks(*arguments)
    model = load(tmp_path / "model").model
    whole = train(model, make_rows(), in_process(settings), tmp_path / "one")
    assert report.steps == whole.steps == len(watched.losses)
    assert (report.rows, report.tokens) == (whole.rows, whole.tokens)
    assert report.last_loss == pytest.approx(whole.last_loss, abs=1e-5)
    assert len(list(folder.glob("died-*"))) == deaths
    # A killed rank's connection may end before its status is known.
    killed = r"(ended with status 137|closed its connection)"
    reason = "has not answered for 10 s" if name == "SIGSTOP" else killed
    assert len(re.findall(f"rank 1 {reason}; all ranks start again", caplog.text)) == deaths


@pytest.mark.ranks
def test_strangers_do_not_stop_ranks_which_listen_on_this_machine_alone(saved, tmp_path):
    strangers = []

    @contextmanager
    def launch(environment, count, log):
        host, _, port = environment[ranks.ADDRESS].rpartition(":")
        for _ in range(3):
            strangers.append(socket.create_connection((host, int(port))))  # silent
        with suppress(AuthenticationError):
            Client((host, int(port)), authkey=b"wrong")
        with ranks.local_ranks(environment, count, log) as problem:
            yield problem

    with ranks_of(saved, TWO, tmp_path / "two", {"launch": launch}) as (started, source):
        with RankTrainer(started, source, SFT(), TWO, tmp_path / "two", Row, steps=1) as trainer:
            trainer.step(make_rows(8))
            listeners = [
                connection.laddr.ip
                for process in rank_processes()
                for connection in process.net_connections("tcp")
                if connection.status == psutil.CONN_LISTEN
            ]
            assert set(listeners) == {"127.0.0.1"}
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(strangers[0].getpeername())
    for stranger in strangers:
        stranger.close()


def test_many_silent_connections_end_and_a_rank_still_connects(monkeypatch):
    monkeypatch.setattr(ranks, "STRANGERS", 4)
    arrivals = queue.SimpleQueue()
    greet = partial(ranks._greet, b"secret", Path("nonce"), 5.0, arrivals)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        threading.Thread(target=ranks._accept, args=(listener, greet), daemon=True).start()
        silent = [socket.create_connection(address, timeout=10) for _ in range(12)]
        with Client(address, authkey=b"secret") as link:
            link.recv_bytes()
            link.send_bytes(b'{"rank": 0}')
            assert arrivals.get(timeout=10)[1] == {"rank": 0}
        for stranger in silent:
            with stranger:
                # The first eight end before their time limit, on a busy machine even before the challenge is sent.
                while stranger in silent[:8] and stranger.recv(1000):
                    pass
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.ranks
def test_a_step_that_is_sent_again_is_taken_once(saved, tmp_path):
    rows = make_rows(8)
    with (
        ranks_of(saved, TWO, tmp_path / "two") as (started, source),
        RankTrainer(started, source, SFT(), TWO, tmp_path / "two", Row, steps=2) as trainer,
    ):
        first = trainer.step(rows)
        trainer.done = 0  # as if its answer was lost
        assert trainer.step(rows) == first
        assert trainer.step(rows)["step"] == 2


@pytest.mark.ranks
def test_what_a_rank_refuses_is_reported_as_if_there_were_one(saved, tmp_path):
    rows = make_rows()
    rows[3] = replace(rows[3], weight=float("nan"))
    problem = "row3 has weight nan; the objective sft needs a weight >= 0"
    with pytest.raises(UserError, match=problem):
        train_on_ranks(saved, rows, TWO, tmp_path / "two", SFT(), Silent(), Tracker())


def test_ranks_that_do_not_come_are_named_and_ended(saved, tmp_path, monkeypatch):
    monkeypatch.setattr(ranks, "JOIN_SECONDS", 0.3)
    with pytest.raises(UserError, match=r"ranks 0, 1 of 2 did not connect within 0.3 s"):
        train_on_ranks(saved, make_rows(), TWO, tmp_path / "two", SFT(), Silent(), Tracker())
    assert not rank_processes()


def test_a_machine_with_fewer_devices_than_ranks_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    check_launch(TWO, "cpu")
    check_launch(SETTINGS, "cuda")
    with pytest.raises(
        UserError, match=r"policy\.train requests 2 ranks, but this machine has 1 GPUs"
    ):
        check_launch(TWO, "cuda", "policy.train")
    eight = SETTINGS.model_copy(update={"launch": str(CONFIGS / "ddp.yaml")})
    with pytest.raises(UserError, match="train requests 8 ranks"):
        check_launch(eight, "cuda")
    check_launch(eight.model_copy(update={"processes": 1}), "cuda")


class Scaled(SFT):
    """An objective with a number outside of settings, which other processes do not get."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale


@pytest.mark.ranks
def test_an_objective_that_ranks_cannot_rebuild_is_refused(saved, tmp_path):
    class Local(SFT):
        pass

    for objective in (Scaled(2.0), Local()):
        with pytest.raises(UserError, match=r"ranks can't rebuild"):
            train_on_ranks(
                saved, make_rows(), TWO, tmp_path / "two", objective, Silent(), Tracker()
            )


@pytest.mark.ranks
def test_ranks_train_by_an_objective_of_a_file_on_rows_with_numbers_of_numpy(saved, tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        "from coterie.training.losses import SFT\n\n"
        "class Doubled(SFT):\n"
        "    def losses(self, items, logprobs):\n"
        "        return 2 * super().losses(items, logprobs)\n"
    )
    doubled = at_place(f"{file}:Doubled")()
    rows = [replace(row, weight=np.float32(0.5)) for row in make_rows()]
    one, two = (
        train_on_ranks(saved, rows, TWO, tmp_path / name, objective, Silent(), Tracker())
        for name, objective in (("one", SFT()), ("two", doubled))
    )
    assert two.first_loss == pytest.approx(2 * one.first_loss, rel=1e-5)


@pytest.mark.ranks
def test_a_run_trains_on_two_ranks(cli, tmp_path):
    words = ("run", "optima/isft", *SMALL, "--folder", "run")
    problem = refused(cli, *words, "train.launch=nowhere.yaml")
    assert "train.launch=nowhere.yaml: there is no such file" in problem
    assert not (tmp_path / "run").exists()
    ran = cli(*words, "train.processes=2")
    assert ran.code == 0, ran.err
    final = tmp_path / "run/training/policy/iteration-00/final"
    report = json.loads((final / "training.json").read_text())
    assert report["settings"]["processes"] == 2 and "training 8 rows" in ran.err
