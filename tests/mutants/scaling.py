"""Faults of what is done with several dialogues of a task: a judge's choice, spread, cost; and of dumps."""

from tests.mutation.mutant import Mutant

TESTS = "tests/test_test_time_scaling.py::"
READ = f"{TESTS}test_a_choice_is_read_from_json_or_a_number_alone"
PICKS = f"{TESTS}test_a_judge_picks_one_of_several_dialogues"
KEPT = f"{TESTS}test_a_choice_is_remembered"
UNREADABLE = f"{TESTS}test_a_judge_that_says_nothing_of_use_is_asked_twice_and_counted"
FEWER = f"{TESTS}test_only_so_many_dialogues_are_picked_from"
SPREAD = f"{TESTS}test_the_spread_is_that_of_the_rounds"
COST = f"{TESTS}test_the_cost_of_a_right_answer_and_the_dialogues_as_rows"
PICKING, FIGURES = "evaluation/picking.py", "cli/figures.py"

MUTANTS = (
    Mutant("picking-no-such-student", PICKING, "1 <= int(str(one)) <= count", "1 <= int(str(one))",
           "a judge names a student that there is not", (READ,)),
    Mutant("picking-first-object", PICKING, "for one in reversed(found):", "for one in found:",
           "a judge that corrects itself is not heard", (READ,)),
    Mutant("picking-next-one", PICKING, "return max(best, 1) - 1", "return max(best, 1) % len(shown)",
           "the one after the best is taken", (PICKS,)),
    Mutant("picking-asks-of-equals", PICKING, "if len({one.answer for one in shown}) < 2:", "if len(shown) < 2:",
           "a judge is paid for no choice", (PICKS,)),
    Mutant("picking-forgets", PICKING, "        if hashed not in self.known:\n", "        if hashed:\n",
           "the same command pays again", (KEPT,)),
    Mutant("picking-any-judge", PICKING, "digest(self.identity, _RULES, asked)", "digest(_RULES, asked)",
           "what one judge said is taken for what another says", (KEPT,)),
    Mutant("picking-silent", PICKING, "self.unreadable += best == 0", "self.unreadable += 0",
           "nobody learns that the judge says nothing of use", (UNREADABLE,)),
    Mutant("picking-of-all", "runs/best_picked.py", "if outcome.sample < samples and outcome.score",
           "if outcome.score", "best of 2 is best of all", (FEWER,)),
    Mutant("spread-of-population", "evaluation/self_consistency.py", "np.std(rounds[:k], ddof=1)",
           "np.std(rounds[:k])", "the spread of few rounds is told too small", (SPREAD,)),
    Mutant("cost-of-tries", FIGURES, "each = round(cost / passes, 6)", "each = round(cost, 6)",
           "a right answer costs as much as all answers", (COST,)),
    Mutant("cost-of-some", "runs/benchmark.py", "fresh = not store.finished_keys(attempt, STAGE)", "fresh = True",
           "the cost of half an evaluation is told as the whole", (PICKS,)),
    Mutant("dump-without-step", "runs/dumped.py", '"step": step,', '"step": iteration + 1,',
           "rows of a dump are of another step", (COST,)),
)  # fmt: skip
