"""Faults of the recipes of Optima: what each step is done with, and in which order.

Beside it: ``optima_settings`` (tasks, forks, controls), ``optima_presets``, ``optima_rewards``,
``optima_search`` (with selection), ``optima_answers`` (environments and draws), ``optima_results`` (votes and
claims), ``optima_files`` (those of the released code).
"""

from tests.mutation.mutant import Mutant

SEEN = "tests/test_optima_algorithm.py::"
STARTS = f"{SEEN}test_training_starts_from_the_last_policy_and_sft_from_the_base_where_asked"
REFERENCE = f"{SEEN}test_the_reference_of_dpo_is_the_last_policy"
OBJECTIVE = f"{SEEN}test_the_objective_is_dpo_with_the_settings_beta_and_idpos_nll"
LOSSES = f"{SEEN}test_losses_are_those_of_the_frozen_base_without_formats"
FORMATS = f"{SEEN}test_formats_are_drawn_for_each_dialogue_of_iteration_0_alone"
SAMPLERS = f"{SEEN}test_each_iterations_dialogues_are_by_its_policy_at_its_temperature"
OWN_TURNS = f"{SEEN}test_sft_is_of_both_agents_own_turns_of_each_selected_dialogue"
TRAININGS = f"{SEEN}test_each_iterations_training_has_its_own_settings_and_seed"
PROBE = f"{SEEN}test_the_probe_says_what_tokens_are_over"
VALUES = f"{SEEN}test_values_of_utterances_are_means_over_rollouts_and_pairs_prefer_the_better"
GATE = f"{SEEN}test_the_gate_of_dpo_takes_only_turns_that_always_led_to_a_right_answer"
OWN_PROBE = f"{SEEN}test_the_probe_of_an_iteration_leaves_those_of_others_out"
ADAPTERS = "tests/test_optima.py::test_an_adapter_goes_on_from_the_last_one"

MUTANTS = (
    Mutant(
        "optima-dpo-from-the-base",
        "recipes/optima/recipe.py",
        "load_to_train(POLICY, i), list(self.pairs(run, i))",
        "load_to_train(POLICY, 0), list(self.pairs(run, i))",
        "DPO starts from the base, and what was learned before is lost; its reference is the base too",
        (REFERENCE, STARTS),
    ),
    Mutant(
        "optima-dpo-against-the-base",
        "recipes/trainings.py",
        "    known = with_reference(\n        model.model,\n",
        "    from coterie.models.loading import load\n"
        "\n"
        "    known = with_reference(\n"
        "        load(run.settings.model).model,\n",
        "the reference of DPO is the base in place of the policy that it starts from",
        (REFERENCE,),
    ),
    Mutant(
        "optima-dpo-from-the-base-against-the-last-policy",
        "recipes/trainings.py",
        "    return train_role(\n        *(run, iteration, model, known,",
        "    from coterie.models.loading import load\n"
        "\n"
        "    model = load(run.settings.model)\n"
        "    return train_role(\n"
        "        *(run, iteration, model, known,",
        "DPO trains the base, against the last policy",
        (STARTS,),
    ),
    Mutant(
        "optima-dpo-without-nll",
        "recipes/optima/recipe.py",
        "pairs, self.dpo_settings.objective, own,",
        'pairs, self.dpo_settings.objective.model_copy(update={"nll": 0.0}), own,',
        "iDPO's pairs may become less likely on both sides",
        (OBJECTIVE,),
    ),
    Mutant(
        "optima-dpo-objective-of-defaults",
        "recipes/optima/recipe.py",
        "pairs, self.dpo_settings.objective, own,",
        "pairs, type(self.dpo_settings.objective)(), own,",
        "dpo.objective has no effect",
        (OBJECTIVE,),
    ),
    Mutant(
        "optima-dpo-trained-by-the-settings-of-sft",
        "recipes/optima/recipe.py",
        "own = self.seeded(self.dpo_settings.train, i)",
        "own = self.seeded(self.settings.train, i)",
        "DPO has the learning rate of SFT, a hundred times its own",
        (TRAININGS,),
    ),
    Mutant(
        "optima-dpo-sides-swapped",
        "recipes/optima/data.py",
        "yield turn_pair(chosen, rejected,",
        "yield turn_pair(rejected, chosen,",
        "the worse utterance is preferred",
        (VALUES,),
    ),
    Mutant(
        "optima-dpo-loss-under-the-policy",
        "recipes/optima/trees.py",
        "base = recipe.models(run).embedded(POLICY, 0)",
        "base = recipe.models(run).embedded(POLICY, iteration)",
        "trees are rewarded by the loss under the policy that is trained, which can please itself",
        (LOSSES,),
    ),
    Mutant(
        "optima-sft-loss-under-the-policy",
        "recipes/optima/recipe.py",
        "self.models(run).embedded(POLICY, 0)",
        "self.models(run).embedded(POLICY, i)",
        "dialogues are rewarded by the loss under the policy that is trained",
        (LOSSES,),
    ),
    Mutant(
        "optima-dpo-tokens-over-the-trees-own",
        "recipes/optima/trees.py",
        "rewards(samples, self.rule, max_tokens=self.max_tokens)",
        "rewards(samples, self.rule)",
        "the probe has no effect: each rollout's tokens are over those of its own search",
        (PROBE,),
    ),
    Mutant(
        "optima-dpo-probe-takes-the-median",
        "recipes/optima/trees.py",
        "np.percentile(lengths, s.percentile)",
        "np.percentile(lengths, 50)",
        "dpo.percentile has no effect, and half of all dialogues are too long",
        (PROBE,),
    ),
    Mutant(
        "optima-dpo-probe-under-the-tasks-count",
        "recipes/optima/trees.py",
        "for number in range(s.probe)",
        "for number in range(s.tasks)",
        "dpo.probe has no effect",
        (PROBE,),
    ),
    Mutant(
        "optima-dpo-temperature-of-sft",
        "recipes/optima/trees.py",
        "recipe.sampler(run, iteration, s.temperature,",
        "recipe.sampler(run, iteration, recipe.settings.rollout.temperature,",
        "dpo.temperature has no effect on trees",
        (SAMPLERS,),
    ),
    Mutant(
        "optima-dpo-trees-by-the-base",
        "recipes/optima/trees.py",
        "recipe.sampler(run, iteration, s.temperature,",
        "recipe.sampler(run, 0, s.temperature,",
        "trees are grown by the base in place of the newest policy",
        (SAMPLERS,),
    ),
    Mutant(
        "optima-dpo-gate-not-applied",
        "recipes/optima/trees.py",
        "settings, _mean_scores(tree).__getitem__",
        "settings",
        "dpo.select.min_score has no effect: wrong utterances are chosen",
        (GATE,),
    ),
    Mutant(
        "optima-dpo-gate-of-the-best-rollout",
        "recipes/optima/trees.py",
        "return {node: sum(scores) / len(scores) for node, scores in found.items()}",
        "return {node: max(scores) for node, scores in found.items()}",
        "an utterance that once led to a right answer passes the gate",
        (GATE,),
    ),
    Mutant(
        "optima-sft-never-from-the-base",
        "recipes/optima/recipe.py",
        "0 if self.settings.from_initial else i)",
        "i)",
        "from_initial has no effect: debates are trained on and on, and overfit",
        (STARTS,),
    ),
    Mutant(
        "optima-sft-always-from-the-base",
        "recipes/optima/recipe.py",
        "0 if self.settings.from_initial else i)",
        "0)",
        "an iteration of information exchange forgets those before it",
        (STARTS,),
    ),
    Mutant(
        "optima-sft-of-one-agent",
        "recipes/optima/recipe.py",
        "for _, r in chosen for agent in agents]",
        "for _, r in chosen for agent in agents[:1]]",
        "only Alice learns from what was selected",
        (OWN_TURNS,),
    ),
    Mutant(
        "optima-sft-same-seed-in-every-iteration",
        "recipes/base.py",
        "own.seed + self.settings.seed * 1000 + iteration",
        "own.seed + self.settings.seed * 1000",
        "every iteration shuffles its rows alike",
        (TRAININGS,),
    ),
    Mutant(
        "optima-sft-seed-of-the-run-left-out",
        "recipes/base.py",
        "own.seed + self.settings.seed * 1000 + iteration",
        "own.seed + iteration",
        "runs with other seeds shuffle their rows alike",
        (TRAININGS,),
    ),
    Mutant(
        "optima-rollout-temperatures-swapped",
        "recipes/optima/recipe.py",
        "temperature = s.temperature if i else s.first_temperature",
        "temperature = s.first_temperature if i else s.temperature",
        "iteration 0 is sampled as the later ones should be, and these too cold",
        (SAMPLERS,),
    ),
    Mutant(
        "optima-rollout-by-the-policy-before",
        "recipes/base.py",
        "if version <= iteration)",
        "if version < max(iteration, 1))",
        "dialogues are those of the policy before the newest",
        (SAMPLERS,),
    ),
    Mutant(
        "optima-rollout-top-p-left-out",
        "recipes/optima/recipe.py",
        "self.episodes(i), temperature, s.top_p, progress)",
        "self.episodes(i), temperature, 1.0, progress)",
        "rollout.top_p has no effect",
        (SAMPLERS,),
    ),
    Mutant(
        "optima-formats-in-every-iteration",
        "recipes/optima/data.py",
        "return DROP_FORMAT if iteration == 0 and pool else None",
        "return DROP_FORMAT if pool else None",
        "later policies are told formats again, and what they learned is not what is asked",
        (FORMATS,),
    ),
    Mutant(
        "optima-formats-one-for-all",
        "recipes/optima/data.py",
        'digest("format", self.settings.seed, iteration, task.id, sample)',
        'digest("format", self.settings.seed, iteration)',
        "all dialogues of iteration 0 have one format: no diversity to select from",
        (FORMATS,),
    ),
    Mutant(
        "optima-formats-are-trained",
        "recipes/optima/recipe.py",
        "context, agents = self.context(i), self.agents",
        "context, agents = None, self.agents",
        "the format prompt stays in the training rows, so that formats are learned on request only",
        ("tests/test_optima.py::test_iteration_0_samples_under_formats_and_trains_without_them",),
    ),
    Mutant(
        "optima-formats-in-the-loss",
        "recipes/optima/data.py",
        "        context = self.context(tree.iteration)\n",
        "        context = None\n",
        "the base is asked how likely a turn is under the format prompt: oddities seem fluent",
        (f"{LOSSES}[0]",),
    ),
    Mutant(
        "optima-adapters-begin-anew",
        "runs/roles.py",
        "loaded = replace(loaded, model=model)",
        "loaded = load(role.model, device=device)",
        "each training of an adapter starts from the base, though from_initial is off",
        (ADAPTERS,),
    ),
    Mutant(
        "optima-dpo-probe-of-the-first-iteration",
        "recipes/optima/trees.py",
        "run.store.metrics(iteration, PROBE)",
        "run.store.metrics(1, PROBE)",
        "tokens of later iterations are over the lengths of iteration 1",
        (OWN_PROBE,),
    ),
)
