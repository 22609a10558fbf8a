"""Faults of the filter by pass rates."""

from tests.mutation.mutant import Mutant

TESTS = "tests/test_data_filter.py::"
ENDS = f"{TESTS}test_both_ends_are_kept_and_a_row_that_was_not_played_is_nowhere"
RATE = f"{TESTS}test_a_rate_is_the_share_of_graded_dialogues_that_pass"
FILES = f"{TESTS}test_rows_are_divided_and_can_be_played_again"
PLAYED = f"{TESTS}test_a_policy_is_played_on_training_rows_and_what_was_played_is_read"
FILTERING, BENCHMARK = "datasets/filtering.py", "runs/benchmark.py"

MUTANTS = (
    Mutant("filter-least-excluded", FILTERING, "if rate < self.least", "if rate <= self.least",
           "the lowest rate that is allowed is not kept", (ENDS,)),
    Mutant("filter-most-excluded", FILTERING, "if rate > self.most", "if rate >= self.most",
           "the highest rate that is allowed is not kept", (ENDS,)),
    Mutant("filter-unplayed-is-hard", FILTERING, "return self.unplayed", 'return "too_hard"',
           "a row that nobody played counts as one that nobody solves", (ENDS,)),
    Mutant("filter-passing-above", "runs/pass_rates.py", "score >= passing", "score > passing",
           "the score that passes does not pass", (RATE,)),
    Mutant("filter-by-id-alone", "runs/pass_rates.py", " or self.by_question.get(row.key)", "",
           "tasks with ids of their own are not found", (RATE,)),
    Mutant("filter-other-split", "cli/data_filter.py", "for one in SPLITS if one != split",
           "for one in SPLITS if one == split", "the filter keeps all rows, and held-out rows are lost", (FILES,)),
    Mutant("filter-one-store", BENCHMARK, 'beside = "" if split == "heldout"', 'beside = "" if split',
           "training dialogues count in evaluations", (PLAYED,)),
    Mutant("filter-plays-heldout", BENCHMARK, "environment.tasks(split, settings.tasks, settings.seed)",
           'environment.tasks("heldout", settings.tasks, settings.seed)', "held-out rows are filtered", (PLAYED,)),
)  # fmt: skip
