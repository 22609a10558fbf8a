"""Faults of the control that learns answers without tools."""

from tests.mutation.mutant import Mutant

TESTS = "tests/test_gap.py::"
SAME = f"{TESTS}test_a_control_learns_the_answers_alone_of_the_same_questions_on_as_many_tokens"
EXPERT = f"{TESTS}test_an_expert_that_knows_answers_alone_says_them"
REFUSED = f"{TESTS}test_a_control_with_tools_or_in_another_prompt_is_refused"
DATA = "recipes/gap/data.py"

MUTANTS = (
    Mutant("gap-control-thinks", "recipes/gap/told.py", "read = answer_alone if closed else pieces", "read = pieces",
           "the control learns thoughts and calls", (SAME,)),
    Mutant("gap-control-epochs", DATA, "        if tokens is None:\n", "        if tokens is None or own.epochs:\n",
           "the control is trained for epochs, whatever tokens it is to see", (SAME,)),
    Mutant("gap-control-furthest", "training/amount.py", "steps = min(range(most)", "steps = max(range(most)",
           "the control is trained on far fewer tokens", (SAME,)),
    Mutant("gap-control-all-tokens", "recipes/trainings.py", '"trained_tokens": report.targets,',
           '"trained_tokens": report.tokens,', "tokens that are shown count as trained", (EXPERT,)),
    Mutant("gap-control-expert-thinks", "environments/workflow/trace.py",
           'return (tagged("answer", self.answer),)', 'return (think("So.") + tagged("answer", self.answer),)',
           "an expert without tools thinks", (EXPERT,)),
    Mutant("gap-control-with-tools", "environments/workflow/agent.py",
           '        if self.settings.prompt == "closed":\n            raise',
           "        if False:\n            raise", "a control has tools that its prompt hides", (REFUSED,)),
    Mutant("gap-control-other-prompt", DATA, "        if closed != self.closed:",
           "        if closed and not self.closed:", "answers are learned under a prompt of searches", (REFUSED,)),
    Mutant("gap-control-wrong-answers", DATA, 'return "the answer is not right" if task and not score else ""',
           'return "too few calls"', "the control learns nothing", (EXPERT,)),
)  # fmt: skip
