"""Faults of the division of tasks by what reinforcement learning found too easy or too hard."""

from tests.mutation.mutant import Mutant

TESTS = "tests/test_reinforce_filter.py::"
NEXT = f"{TESTS}test_a_next_run_leaves_out_what_this_one_found_too_easy_or_too_hard"
REFUSED = f"{TESTS}test_what_cannot_be_read_is_refused"
RATES, FILTER = "runs/pass_rates.py", "cli/data_filter.py"

MUTANTS = (
    Mutant("reinforce-filter-first-step", RATES, "steps = sorted(step_records(store, iteration, stage))",
           "steps = sorted(step_records(store, iteration, stage), reverse=True)",
           "what a policy has learned since counts as too hard", (NEXT,)),
    Mutant("reinforce-filter-half-steps", RATES, "steps = sorted(step_records(store, iteration, stage))",
           "steps = range(9)", "a group of which a kill left a part counts as whole", (NEXT,)),
    Mutant("reinforce-filter-unplayed-lost", FILTER, 'replace(rule, unplayed="kept")', "rule",
           "a next run is not given the rows that this one did not come to", (NEXT,)),
    Mutant("reinforce-filter-other-words", "cli/data_tasks.py",
           '        if benchmark or store or (stage, split) != ("evaluate", Divided.train):',
           "        if store:", "what is given beside a run is passed over in silence", (REFUSED,)),
)  # fmt: skip
