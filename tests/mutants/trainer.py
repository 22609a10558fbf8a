"""Faults of a trainer that takes steps, of what it leaves between them, and of the policy gradient."""

from tests.mutation.mutant import Mutant

TRAINER = "tests/test_trainer.py::"
TRAINING = "tests/test_training.py::"
GRADIENT = "tests/test_policy_gradient.py::"

ADAMW = f"{TRAINING}test_a_step_is_that_of_adamw_with_decay_of_matrices_only"
BETWEEN = f"{TRAINER}test_threads_random_numbers_and_the_model_are_the_callers_between_steps"
IN_TURN = f"{TRAINER}test_two_adapters_of_a_base_trained_in_turn_are_each_as_if_alone"
ANOTHER = f"{TRAINER}test_another_training_of_the_folder_is_refused"
FORMULA = f"{GRADIENT}test_the_loss_is_that_of_the_formula"
LACKING = f"{GRADIENT}test_rows_without_what_the_objective_needs_are_refused"

MUTANTS = (
    Mutant(
        "trainer-moments-lost-between-steps",
        "training/trainer.py",
        "                self._stepper.step()\n",
        "                self._stepper.step()\n                self._optimizer.state.clear()\n",
        "every step begins with a new optimiser",
        (ADAMW,),
    ),
    Mutant(
        "trainer-schedule-restarts",
        "training/trainer.py",
        "rate = rate_at(self.done, ",
        "rate = rate_at(self.done % 2, ",
        "the schedule begins again and again",
        (ADAMW,),
    ),
    Mutant(
        "trainer-failed-gradients-stay",
        "training/trainer.py",
        "            finally:\n                self._stepper.zero_grad()\n",
        "            except ZeroDivisionError:\n                pass\n            else:\n"
        "                self._stepper.zero_grad()\n",
        "a step that failed leaves its gradient for the next one",
        (f"{TRAINER}test_a_step_that_fails_leaves_nothing_behind",),
    ),
    Mutant(
        "trainer-more-steps-than-said",
        "training/trainer.py",
        "if self.done == self._record.total:",
        "if False:",
        "steps go on beyond the schedule's end",
        (f"{TRAINER}test_more_steps_than_were_said_and_steps_after_the_end_are_refused",),
    ),
    Mutant(
        "trainer-never-saves-when-asked",
        "training/trainer.py",
        "        if self.done:\n            with self._surroundings",
        "        if not self.done:\n            with self._surroundings",
        "save() writes nothing",
        (f"{TRAINER}test_a_checkpoint_is_written_when_it_is_asked_for",),
    ),
    Mutant(
        "trainer-publishes-the-active-adapter",
        "training/trainer.py",
        '"settings": self.settings.model_dump(mode="json")}\n        with self._prepared.training():\n',
        '"settings": self.settings.model_dump(mode="json")}\n        with nullcontext():\n',
        "engines get the weights of another role",
        (IN_TURN,),
    ),
    Mutant(
        "trainer-finishes-the-active-adapter",
        "training/trainer.py",
        "            with self._prepared.training():\n                self.report = ",
        "            with nullcontext():\n                self.report = ",
        "the final weights are those of another role",
        (IN_TURN,),
    ),
    Mutant(
        "trainer-others-adapters-are-its-start",
        "training/trainer.py",
        'if name in self._prepared.names or ".lora_" not in name:',
        "if name:",
        "a role can't be gone on with once another one has moved",
        (f"{TRAINER}test_one_of_two_adapters_is_gone_on_with_though_the_other_has_moved",),
    ),
    Mutant(
        "trainer-any-number-of-steps",
        "training/trainer.py",
        '            "steps": str(steps),\n',
        "",
        "a training is gone on with under another schedule",
        (ANOTHER,),
    ),
    Mutant(
        "trainer-callers-identity-ignored",
        "training/trainer.py",
        "            **identity,\n",
        "",
        "a training on other rows is gone on with",
        (ANOTHER,),
    ),
    Mutant(
        "trainer-objective-by-name-alone",
        "training/trainer.py",
        '"objective\'s settings": numbers,',
        '"objective\'s settings": "",',
        "a training is gone on with under another beta",
        (f"{TRAINER}test_another_number_of_the_objective_is_another_training",),
    ),
    Mutant(
        "trainer-left-out-items-uncounted",
        "training/trainer.py",
        "        counts.too_long += batch.too_long\n",
        "",
        "nobody learns that rows were too long",
        (f"{TRAINER}test_what_is_left_out_is_counted_over_restarts",),
    ),
    Mutant(
        "batches-targets-of-rows-that-are-left-out",
        "training/batches.py",
        "for row in groups[i]) for i in kept],\n        counts",
        "for row in groups[i]) for i in range(len(items))],\n        counts",
        "targets of rows that are not trained count as trained",
        (f"{TRAINER}test_what_is_left_out_is_counted_over_restarts",),
    ),
    Mutant(
        "batches-targets-of-one-side",
        "training/batches.py",
        "sum(row.target_count for row in groups[i])",
        "groups[i][0].target_count",
        "of a pair the chosen side alone counts as trained",
        (f"{TRAINER}test_the_targets_of_a_pair_are_those_of_both_sides",),
    ),
    Mutant(
        "record-older-counts-begin-at-none",
        "training/record.py",
        "    targets: int\n    computed_tokens: int\n\n    @classmethod",
        "    targets: int = 0\n    computed_tokens: int = 0\n\n    @classmethod",
        "a training of an older version goes on with targets that were never counted",
        (
            "tests/test_training_checkpoints.py::test_a_training_that_an_older_version_wrote_is_refused",
        ),
    ),
    Mutant(
        "loop-left-out-items-counted-again",
        "training/loop.py",
        "    if trainer.done == 0:\n",
        "    if True:\n",
        "each restart counts them once more",
        (f"{TRAINER}test_a_training_that_is_cut_counts_what_it_leaves_out_once",),
    ),
    Mutant(
        "record-counts-lost-at-a-restart",
        "training/record.py",
        "self.counts = state.counts",
        "self.counts = Counts.none()",
        "rows and tokens before a restart are not in the report",
        (f"{TRAINER}test_what_is_left_out_is_counted_over_restarts",),
    ),
    Mutant(
        "prepare-activations-stay-recomputed",
        "training/prepare.py",
        "                    base.gradient_checkpointing_disable()\n",
        "                    pass\n",
        "who samples between two steps computes activations twice",
        (BETWEEN,),
    ),
    Mutant(
        "prepare-weights-stay-trainable",
        "training/prepare.py",
        "                for weight, was in found.items():\n                    weight.requires_grad_(was)\n",
        "",
        "weights that the caller froze are not any more",
        (BETWEEN,),
    ),
    Mutant(
        "surroundings-threads-stay",
        "training/surroundings.py",
        "        torch.set_num_threads(threads)\n",
        "",
        "whoever works between two steps has the training's threads",
        (BETWEEN,),
    ),
    Mutant(
        "schedule-of-an-unknown-length",
        "training/optimizer.py",
        'settings.schedule != "constant" or settings.warmup_ratio',
        'settings.schedule != "constant"',
        "a climb that was asked for does not happen",
        (f"{TRAINER}test_a_schedule_needs_to_know_how_many_steps_there_are",),
    ),
    Mutant(
        "targets-first-token-shifts-the-rest",
        "training/targets.py",
        "values[row.unpredicted :]",
        "values[: len(values) - row.unpredicted]",
        "where a row begins with a target, values belong to other tokens",
        (FORMULA,),
    ),
    Mutant(
        "targets-too-few-values-pass",
        "training/targets.py",
        "if len(values) != row.target_count:",
        "if len(values) > row.target_count:",
        "values of too few targets are not noticed",
        (LACKING,),
    ),
)
