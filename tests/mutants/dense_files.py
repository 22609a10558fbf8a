"""Faults of DensePolicy's files, and of the outside preferences that are trained on beside its pairs."""

from tests.mutation.mutant import Mutant

FILES = "tests/test_dense_files.py::"
SETS = "tests/test_preference_sets.py::"
RECORDS = "recipes/dense_tree/files/records.py"
OF_CSV = f"{FILES}test_selected_pairs_of_a_csv_are_what_a_run_trains_on"
OF_JSON = f"{FILES}test_a_training_json_is_read_with_its_history"
ROUND = f"{FILES}test_what_is_exported_is_what_was_imported"
SYSTEM = f"{FILES}test_a_system_prompt_goes_into_a_column_of_its_own"
MIXED = f"{FILES}test_training_takes_so_many_outside_pairs_and_says_how_many"
TARGETS = f"{SETS}test_the_reply_is_the_target_with_its_end_and_the_dialogue_is_not"
SCORES = f"{SETS}test_replies_are_compared_two_by_two_by_their_overall_scores"
DRAWN = f"{SETS}test_a_draw_is_without_replacement_and_by_the_seed"

MUTANTS = (
    Mutant(
        "dense-files-imported-sides-swapped",
        "recipes/dense_tree/files/importing.py",
        'self._next(node, "assistant", text) for text in (pair.row.chosen, pair.row.rejected)',
        'self._next(node, "assistant", text) for text in (pair.row.rejected, pair.row.chosen)',
        "the policy learns what the file rejects",
        (OF_CSV, OF_JSON),
    ),
    Mutant(
        "dense-files-history-dropped",
        RECORDS,
        "for user, assistant in self.history:",
        "for user, assistant in self.history[:0]:",
        "later steps are learnt without what came before them",
        (OF_JSON,),
    ),
    Mutant(
        "dense-files-unselected-rows-imported",
        "recipes/dense_tree/files/importing.py",
        "if not found.selected:",
        "if not found.selected and done.not_selected:",
        "a pair that the file's own rule refused is trained on",
        (OF_CSV,),
    ),
    Mutant(
        "dense-files-another-message-compared",
        RECORDS,
        "one[at : at + 1])",
        "one[at:][-1:])",
        "the last message of each history is compared, whatever the step",
        (OF_CSV,),
    ),
    Mutant(
        "dense-files-held-out-tasks-trained",
        "recipes/dense_tree/files/importing.py",
        'elif recipe.held_out.is_asked([("user", found.asked), *found.row.messages]):',
        'elif recipe.held_out.is_asked([("user", found.asked)]):',
        "held-out questions that only the messages show are trained on",
        (f"{FILES}test_a_training_json_of_held_out_tasks_is_refused",),
    ),
    Mutant(
        "dense-files-pairs-of-a-task-apart",
        "recipes/dense_tree/files/importing.py",
        "by_task.setdefault((found.task, _system(found.row)), [])",
        "by_task.setdefault((found.where, _system(found.row)), [])",
        "pairs of one task are not trained in one step, and share nothing",
        (OF_CSV,),
    ),
    Mutant(
        "dense-files-exported-sides-swapped",
        "recipes/dense_tree/files/exporting.py",
        "for leaf in (one.leaf, one.rejected))",
        "for leaf in (one.rejected, one.leaf))",
        "others learn from our file what the run rejects",
        (ROUND,),
    ),
    Mutant(
        "dense-files-system-column-not-named",
        "recipes/dense_tree/files/exporting.py",
        'columns |= {"system": "system"} if has_system else {}',
        'columns |= {"system": "system"} if not has_system else {}',
        "LLaMA-Factory trains without the instructions that the agent had",
        (SYSTEM,),
    ),
    Mutant(
        "dense-files-cells-run-as-code",
        RECORDS,
        "return ast.literal_eval(value) if isinstance(value, str) else value",
        "return eval(value) if isinstance(value, str) else value",
        "a file from elsewhere runs commands here",
        (f"{FILES}test_a_broken_line_of_a_csv_is_named_and_nothing_is_made",),
    ),
    Mutant(
        "dense-files-counts-ignored",
        "recipes/dense_tree/data.py",
        'drawn = own.draw(most, f"mix',
        'drawn = own.draw(10**9, f"mix',
        "whole sets are trained on, and drown the trees' pairs",
        (MIXED,),
    ),
    Mutant(
        "dense-files-one-draw-for-all-iterations",
        "recipes/dense_tree/data.py",
        'f"mix/{self.settings.seed}/{iteration}/{own.name}"',
        'f"mix/{self.settings.seed}/{own.name}"',
        "each iteration trains on the same outside pairs",
        (f"{FILES}test_outside_pairs_that_ask_held_out_questions_are_left_out",),
    ),
    Mutant(
        "dense-files-outside-pairs-not-trained",
        "recipes/dense_tree/recipe.py",
        "policy, pairs + mixed, self",
        "policy, pairs, self",
        "outside pairs are counted and not trained on",
        (MIXED,),
    ),
    Mutant(
        "dense-files-training-ignores-what-is-mixed-in",
        "recipes/dense_tree/data.py",
        "return sorted((one.name, count, one.content()) for one, count in sets)",
        'return sorted((one.name, count, "") for one, count in sets)',
        "a finished training stays although its pairs have changed",
        (f"{FILES}test_training_depends_on_the_sets_and_their_content",),
    ),
    Mutant(
        "preference-sets-prompt-tokens-as-targets",
        "recipes/dense_tree/mixing.py",
        "target = Target(len(prompt), len(ids)",
        "target = Target(0, len(ids)",
        "the policy learns to write the question",
        (TARGETS,),
    ),
    Mutant(
        "preference-sets-end-of-turn-not-learnt",
        "recipes/dense_tree/mixing.py",
        "target = Target(len(prompt), len(ids)",
        "target = Target(len(prompt), len(ids) - 1",
        "the policy doesn't learn where replies end",
        (TARGETS,),
    ),
    Mutant(
        "preference-sets-lower-score-chosen",
        "datasets/preferences.py",
        "yield _pair(id_, said, chosen.response, rejected.response)",
        "yield _pair(id_, said, rejected.response, chosen.response)",
        "the policy learns the replies that were judged worse",
        (SCORES,),
    ),
    Mutant(
        "preference-sets-equal-scores-compared",
        "datasets/preferences.py",
        "if high > low:",
        "if high >= low:",
        "replies that were judged alike are preferred by their order",
        (SCORES,),
    ),
    Mutant(
        "preference-sets-first-rows-drawn",
        "datasets/preference_files.py",
        "places = random.Random(seed).sample(range(total), min(most, total))",
        "places = list(range(min(most, total)))",
        "only the beginning of a set is ever trained on",
        (DRAWN,),
    ),
    Mutant(
        "preference-sets-repeats-kept",
        "datasets/preference_files.py",
        "elif pair.key in seen:",
        "elif pair.id in seen:",
        "pairs that upstream has twice are trained on twice",
        (f"{SETS}test_parquet_is_read_and_what_makes_no_pair_is_counted",),
    ),
    Mutant(
        "preference-sets-long-questions-not-found-inside",
        "recipes/dense_tree/held_out.py",
        'starts = [0, *(place + 1 for place, letter in enumerate(text) if letter == " ")]',
        "starts = [0]",
        "held-out questions after an instruction are trained on",
        (f"{SETS}test_held_out_questions_are_found_anywhere_in_a_message_of_the_user",),
    ),
)
