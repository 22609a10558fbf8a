"""The benchmark of a step of reinforcement learning compares equal updates; its figures are not looked at here."""

import pytest

pytest.importorskip("trl")
from bench import rl_step
from tests.training_models import tiny_llama

SIDES = {"packed", "flat"}


def test_all_sides_take_the_same_step(monkeypatch):
    for name, value in {"PATHS": 4, "PROMPT": 30, "OWN": 10}.items():
        monkeypatch.setattr(rl_step, name, value)
    policy = tiny_llama(vocab_size=300).train()
    found = rl_step.measured(policy, seconds=0)
    assert (found["tokens"], found["computed_tokens"]) == (160, 70)
    assert found["loss_diff"] < 1e-5 and found["grad_rel_diff"] < 1e-4
    assert found["logprob_diff"] < 1e-5
    assert (found["update_rounds"], found["logprobs_rounds"]) == (1, 1)
    assert set(found["update_seconds"]) == {*SIDES, "trl"}
    assert set(found["logprobs_seconds"]) == {*SIDES, "transformers"}
    assert (list(found["trl_search"]), found["trl_batch"]) == ([1], 1), "no time for other sizes"
    assert "forward" not in vars(policy), "TRL's head is taken off again"


def test_operations_are_those_of_the_trie(monkeypatch):
    for name, value in {"PATHS": 2, "PROMPT": 3, "OWN": 2}.items():
        monkeypatch.setattr(rl_step, name, value)
    policy = tiny_llama()
    layers = 2 * (16 * (16 + 8 + 8 + 16) + 3 * 16 * 32 + 2 * 16) + 16
    pairs = 1 + 2 + 3 + 2 * (4 + 5)
    expected = 6 * layers * 7 + 12 * 16 * 2 * pairs + 6 * 16 * 32 * 4
    assert rl_step.update_operations(policy, rl_step.paths(policy)) == expected
