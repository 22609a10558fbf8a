"""Faults of the steps of reinforcement learning: what is sampled, compared and trained on, and how a run goes on."""

from tests.mutation.mutant import Mutant

TESTS, FOLDER = "tests/test_reinforce.py::", "runs/reinforce/"
NEWEST = f"{TESTS}test_every_step_samples_from_the_newest_weights_and_its_first_ratio_is_one"
KEPT = f"{TESTS}test_roles_go_on_from_the_newest_step_that_all_have_kept"
DYNAMIC = f"{TESTS}test_tasks_are_drawn_anew_until_enough_groups_tell_something"
FLAT = f"{TESTS}test_steps_without_anything_to_learn_stop_the_run_with_advice"
EACH = f"{TESTS}test_each_agent_can_have_a_policy_of_its_own"
FORK = f"{TESTS}test_a_fork_keeps_what_its_steps_sampled"
REFUSED = f"{TESTS}test_what_cannot_work_is_refused_when_it_is_read"
PARTS = f"{TESTS}test_the_minibatches_of_an_epoch_have_each_group_once"
REWARD = f"{TESTS}test_the_reward_of_a_path_is_what_was_given_and_what_the_run_adds"
ACTS = f"{TESTS}test_rewards_of_acts_stand_at_the_last_token_of_the_agents_turn"
FORM = f"{TESTS}test_a_path_that_breaks_its_form_is_worth_what_the_run_says"
TELLING = f"{TESTS}test_a_task_tells_something_if_one_of_its_agents_groups_does"


def _fault(name: str, file: str, find: str, replace: str, breaks: str, *tests: str) -> Mutant:
    return Mutant(f"reinforce-{name}", file, find, replace, breaks, tests)


MUTANTS = (
    _fault("old-version", f"{FOLDER}learner.py", "        self._engine.version = self.version\n", "",
           "a turn names the version that the engine was opened with", NEWEST),
    _fault("stale-trained", f"{FOLDER}preparing.py",
           "if all(target.writer == writers[path.agent] for row", "if any(True for row",
           "paths of other weights are trained on", f"{TESTS}test_paths_of_other_weights_are_dropped_and_counted"),
    _fault("draws-again", f"{FOLDER}sampling.py", "[count] * found.draws", "[]",
           "every step has the same tasks", DYNAMIC),
    _fault("rounds-without-end", f"{FOLDER}sampling.py", "while found.rounds < self.settings.rounds:",
           "while found.rounds < 9:", "rounds have no bound", FLAT),
    _fault("flat-groups-kept", f"{FOLDER}preparing.py", 
           "        fresh = [path for path in fresh if path.task in kept]\n", "",
           "groups that tell nothing are trained on after dynamic sampling", DYNAMIC),
    _fault("no-hope-goes-on", f"{FOLDER}loop.py", "if len(last) < self.steps.patience:",
           "if last:",
           "a run that learns nothing goes on for ever", FLAT),
    _fault("flat-step-updates", f"{FOLDER}loop.py", "if judged.telling or self.rules.always:", "if True:",
           "momentum moves the weights where nothing was learned", FLAT),
    _fault("first-step-again", f"{FOLDER}loop.py", "                return step + 1\n", "                return step\n",
           "a step that all roles have kept is taken again", KEPT),
    _fault("newest-of-one", f"{FOLDER}loop.py", "if all(int(done[updates_of(role)]) in known for role, known",
           "if any(int(done[updates_of(role)]) in known for role, known",
           "a role goes on from a step that the other has not kept", KEPT),
    _fault("kept-one", f"{FOLDER}learner.py", "KEPT = 2", "KEPT = 1",
           "no step is left of which all roles have a checkpoint", KEPT),
    _fault("agents-mixed", f"{FOLDER}updating.py", "path.task in tasks and path.agent in agents", "path.task in tasks",
           "a policy is trained on another one's turns", EACH),
    _fault("fork-forgets", "trajectories/jsonl.py", "(iteration, stage.partition(\"/\")[0]) in steps",
           "(iteration, stage) in steps", "a fork loses what the steps sampled", FORK),
    _fault("top-p", f"{FOLDER}settings.py", "        if self.top_p < 1:", "        if self.top_p < 0:",
           "a part of the distribution is sampled from", REFUSED),
    _fault("too-many-minibatches", "recipes/reinforcing.py", "if s.steps.minibatches > s.rollout.tasks:", "if False:",
           "there are quietly fewer optimiser steps than were asked for",
           f"{TESTS}test_what_cannot_work_is_refused_before_the_run"),
    _fault("trial-of-more-minibatches", "recipes/rl/recipe.py", ', "steps.minibatches": tasks}', "}",
           "a dry run of settings that can work has no estimate",
           f"{TESTS}test_a_trial_has_no_more_minibatches_than_tasks"),
    _fault("as-many-minibatches", "recipes/reinforcing.py", "if s.steps.minibatches > s.rollout.tasks:",
           "if s.steps.minibatches >= s.rollout.tasks:", "minibatches of one task each are refused",
           f"{TESTS}test_as_many_minibatches_as_tasks_are_not_refused"),
    _fault("groups-lost", f"{FOLDER}updating.py", "frozenset(order[part::parts])", "frozenset(order[part:parts])",
           "groups are in no minibatch", PARTS),
    _fault("same-order", f"{FOLDER}updating.py", 'random.Random(f"{seed}/{epoch}")', 'random.Random(f"{seed}")',
           "all epochs have one order", PARTS),
    _fault("ungraded-is-zero", "rewards/path_reward.py", "            return None\n        if self.settings.malformed",
           "            return 0.0\n        if self.settings.malformed",
           "a path that was not graded counts as wrong", REWARD),
    _fault("form-by-answers-alone", "rewards/path_reward.py", "return well == 0 or float(wrong or 0) > 0",
           "return well == 0", "tags in a wrong order are worth as much as others", FORM),
    _fault("out-of-form-costs-nothing-else", "rewards/path_reward.py", "            worth = self.settings.malformed\n",
           "            return self.settings.malformed\n", "breaking the form is a way out of costs", FORM),
    _fault("unfenced-programs", "environments/workflow/segments.py",
           "one.closed and not python_blocks(one.body)", "not one.closed",
           "a program that is run without fences is in form",
           "tests/test_gap_rewards.py::test_a_program_that_is_run_without_fences_is_out_of_form"),
    _fault("wrong-and-quick", "rewards/path_reward.py", "if self.settings.gated and not", "if False and not",
           "a wrong path gains by being quick", REWARD),
    _fault("score-before-given", f"{FOLDER}paths.py",
           "    if final is not None:\n", "    if final is None and False:\n",
           "what the environment gives in grading is passed over", ACTS),
    _fault("act-of-another", f"{FOLDER}paths.py", 'given.get((turn.id, f"{REWARD}:{agent}"))\n        if reward',
           'next((v for (n, _), v in given.items() if n == turn.id), None)\n        if reward',
           "an agent gets another one's reward", ACTS),
    _fault("act-at-the-end", f"{FOLDER}paths.py", "        place = ends.get(turn.id, place)\n",
           "        place = list(ends.values())[-1]\n", "rewards of acts stand at the end of the path", ACTS),
    _fault("first-agent-tells", f"{FOLDER}preparing.py",
           "for path, value in zip(paths, found.values, strict=True) if value)",
           "for path, value in list(zip(paths, found.values, strict=True))[:2] if value)",
           "only the first agent's group decides", TELLING),
    _fault("overlong-observed", "rewards/path_reward.py", "sum(len(turn.ids) for turn in graded.own),",
           "sum(len(turn.ids) for turn in graded.path),", "the length of observations is punished",
           f"{TESTS}test_observations_change_no_reward_of_length"),
    _fault("masked-trained", f"{FOLDER}preparing.py",
           'settings.truncated == "mask" and', 'settings.truncated == "train" and',
           "paths that were cut off are trained on where they should not be",
           f"{TESTS}test_a_path_that_was_cut_off_is_compared_and_not_trained_on"),
)  # fmt: skip
