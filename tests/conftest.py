"""Fixtures for tests that drive the whole command line with the packaged model."""

import coterie  # noqa: F401 - before torch: it sets how torch's threads wait on shared cores

# isort: split

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

torch.set_num_threads(2)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so started by a shell, in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

SMALL = (
    "iterations=1", "rollout.tasks=4", "rollout.samples=2", "rollout.max_tokens=96",
    "evaluate.tasks=4", "select.threshold=-100", "select.top_share=1", "train.epochs=1",
    "engine.device=cpu",
)  # fmt: skip
"""Settings of a run of seconds; everything that is sampled is trained on."""


def once(*words: str) -> tuple[str, ...]:
    """Words of which the last of each key stays: the command line takes each key once."""
    return tuple({word.partition("=")[0]: word for word in words}.values())


class Said(NamedTuple):
    """What a command printed, and its exit status."""

    code: int
    out: str
    err: str


Cli = Callable[..., Said]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    """Run ``coterie`` with the given words, in an empty folder."""
    from coterie.cli.app import main

    monkeypatch.chdir(tmp_path)

    def call(*words: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["coterie", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        out, err = capsys.readouterr()
        return Said(code, out, err)

    return call
