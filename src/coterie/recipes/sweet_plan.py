"""What a run of ``sweet_rl`` will cost, and the refusal of what can't work."""

from pathlib import Path

from coterie.engines.chat_model import check_chat
from coterie.engines.keys import find_key
from coterie.engines.servers.vllm import check_vllm
from coterie.environments.coding import CRITIC, Coding
from coterie.environments.person import REFERENCE, SCRIPT
from coterie.environments.services import check_person
from coterie.models.loading import check_context, load_renderer, weights_of
from coterie.recipes.plan import (
    BYTES_PER_WEIGHT,
    Plan,
    check_disjoint,
    check_length,
    check_memory,
    longest_prompt,
    shortest_prompt,
    updates_of,
)
from coterie.recipes.sweet_settings import POLICY, SweetSettings
from coterie.tools.sandbox.jail import make_jail
from coterie.training.trackers import check_tracker


def sweet_plan(settings: SweetSettings, world: Coding) -> Plan:
    """Check the settings against world, model and machine, and say what the run costs.

    Token counts are upper bounds: every turn at its limit. Raises ``UserError`` for what can't work.
    """
    s = settings
    _check_services(s, world)
    for name, training in s.trainings.items():
        check_tracker(training.tracker, f"{name}.tracker")
    train = world.tasks("train", s.rollout.tasks, s.seed)
    heldout = world.tasks("heldout", s.evaluate.tasks, s.seed)
    check_disjoint(train, heldout)
    renderer, context = load_renderer(s.model)
    longest = longest_prompt(world, renderer, train + heldout)
    if s.method == "sweet" and s.critic.kind != "judge" and s.critic.privileged:
        longest += max(len(renderer.written(t.secrets[REFERENCE].reveal(CRITIC))) for t in train)
    check_context(context, longest + s.most_tokens, s.model)
    shortest = shortest_prompt(world, renderer, train)
    for name, training in s.trainings.items():
        check_length(name, training, context, shortest)
    weights = weights_of(s.model)
    memory = weights * max(BYTES_PER_WEIGHT[one.method] for one in s.trainings.values())
    check_memory(memory, s)
    dialogues, evaluations = len(train) * s.rollout.repeats, 2 * len(heldout)
    rows = _rows(s, len(train), dialogues, world.max_turns)
    sampled = (dialogues + evaluations) * world.max_turns * s.most_tokens
    if s.method == "sweet":
        sampled += _branched(s, dialogues) * world.max_turns * s.candidates.count * s.most_tokens
    return Plan(
        s.rounds,
        f"{len(train):,} of {s.rollout.tasks:,} asked for",
        f"{len(heldout):,} of {s.evaluate.tasks:,} asked for",
        longest + world.max_turns * (s.most_tokens + 64) > context,
        weights,
        memory,
        longest,
        dialogues,
        evaluations,
        sampled,
        sum(rows),
        sum(updates_of(n, one) for n, one in zip(rows, s.trainings.values(), strict=True)),
    )


def _rows(s: SweetSettings, tasks: int, dialogues: int, turns: int) -> list[int]:
    """Rows or pairs of each training, at most."""
    if s.method == "rejection_ft":
        return [dialogues]
    pairs = tasks * (s.rollout.repeats - 1)
    if s.method == "multi_turn_dpo":
        return [pairs]
    critic = {"judge": [], "classifier": [dialogues]}.get(s.critic.kind, [pairs])
    return [*critic, _branched(s, dialogues) * turns * s.pairs.count]


def _branched(s: SweetSettings, dialogues: int) -> int:
    return max(1, int(dialogues * s.candidates.share))


def _check_services(s: SweetSettings, world: Coding) -> None:
    """The person, the judge and the sandbox can be had."""
    if s.engine.kind == "vllm":
        check_vllm(s.engine.vllm)
    make_jail(s.sandbox)
    if s.person.url is None and s.person.model == SCRIPT:
        check_person(world.script)
    for name, chat, known in (
        ("person", s.person, SCRIPT),
        ("critic.judge", s.critic.judge, POLICY),
    ):
        check_chat(name, chat, known)
        if chat.key_variable is not None:
            find_key(chat.key_variable, Path())
        if chat.url is None and chat.model not in (SCRIPT, POLICY):
            weights_of(chat.model)
