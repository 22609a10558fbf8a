"""What a run of ``sweet_rl`` will cost, and the refusal of what can't work."""

from coterie.engines.chat_model import check_chat
from coterie.environments.checking import drawn
from coterie.environments.coding import CRITIC, Coding
from coterie.environments.user_simulator import REFERENCE, SCRIPT, check_script
from coterie.models.loading import check_context, load_renderer, weights_of
from coterie.recipes.plan import (
    BYTES_PER_WEIGHT,
    RunPlan,
    check_disjoint,
    check_length,
    check_memory,
    check_served,
    longest_prompt,
    shortest_prompt,
    updates_of,
)
from coterie.recipes.sweet_rl.settings import POLICY, SweetSettings
from coterie.tools.sandbox.jail import make_jail
from coterie.training.launch import check_launch
from coterie.training.trackers import check_tracker


def sweet_plan(settings: SweetSettings, environment: Coding) -> RunPlan:
    """Check the settings against environment, model and machine, and say what the run costs.

    Token counts are upper bounds: every turn at its limit. Raises ``UserError`` for what can't work.
    """
    s = settings
    _check_services(s, environment)
    for name, training in s.trainings.items():
        head = name == "critic.train" and s.critic.has_head
        check_launch(training, settings.engine.device_name, name, head=head)
    check_tracker(settings.tracker)
    train = drawn(environment, "train", s.rollout.tasks, s.seed)
    heldout = drawn(environment, "heldout", s.evaluate.tasks, s.seed)
    check_disjoint(train, heldout)
    renderer, context = load_renderer(s.model)
    longest = longest_prompt(environment, renderer, train + heldout)
    if s.method == "sweet" and s.critic.kind != "judge" and s.critic.privileged:
        longest += max(len(renderer.written(t.secrets[REFERENCE].reveal(CRITIC))) for t in train)
    check_context(context, longest + s.max_tokens, s.model)
    shortest = shortest_prompt(environment, renderer, train)
    for name, training in s.trainings.items():
        check_length(name, training, context, shortest)
    weights = weights_of(s.model)
    memory = weights * max(BYTES_PER_WEIGHT[one.method] for one in s.trainings.values())
    check_memory(memory, s)
    dialogues, evaluations = len(train) * s.rollout.repeats, 2 * len(heldout)
    rows = _rows(s, len(train), dialogues, environment.max_turns)
    sampled = (dialogues + evaluations) * environment.max_turns * s.max_tokens
    if s.method == "sweet":
        sampled += (
            _branched(s, dialogues) * environment.max_turns * s.candidates.count * s.max_tokens
        )
    return RunPlan(
        s.rounds,
        f"{len(train):,} of {s.rollout.tasks:,} asked for",
        f"{len(heldout):,} of {s.evaluate.tasks:,} asked for",
        longest + environment.max_turns * (s.max_tokens + 64) > context,
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


def _check_services(s: SweetSettings, environment: Coding) -> None:
    """The person, the judge and the sandbox can be had."""
    check_served(s.engine, {name: t for name, t in s.trainings.items() if name != "critic.train"})
    make_jail(s.sandbox)
    if s.user_simulator.url is None and s.user_simulator.model == SCRIPT:
        check_script(environment.script)
    for name, chat, known in (
        ("user_simulator", s.user_simulator, SCRIPT),
        ("critic.judge", s.critic.judge, POLICY),
    ):
        check_chat(name, chat, known)
