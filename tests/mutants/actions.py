"""Faults of action lines: how they are read and checked, and what running them gives."""

from tests.mutation.mutant import Mutant

GRAMMAR = "tests/test_actions_grammar.py::"
CHECKING = "tests/test_actions_checking.py::"
MATHS = "tests/test_actions_maths.py::"
QUESTIONS = "tests/test_actions_questions.py::"
WEB = "tests/test_actions_web.py::"
SHOP = "tests/test_actions_shop.py::"

COMMAS = f"{GRAMMAR}test_commas_in_brackets_and_quotes_and_after_a_label_split_nothing"
INCHES = f"{GRAMMAR}test_apostrophes_and_inches_are_text"
UNCLOSED = f"{GRAMMAR}test_a_bracket_that_is_not_closed_loses_its_own_action_only"
LONG = f"{GRAMMAR}test_a_text_that_is_too_long_is_one_problem"
BEFORE = f"{CHECKING}test_a_variable_is_set_before_it_is_used"
ONCE = f"{CHECKING}test_a_result_is_set_once_and_is_called_as_results_are"
CALCULATED = f"{MATHS}test_calculations_are_worked_out"
SOLVED = f"{MATHS}test_equations_and_inequalities_are_solved"
ANSWER = f"{MATHS}test_the_answer_is_output_or_the_highest_result"
KEPT = f"{MATHS}test_what_comes_before_an_error_is_kept_and_nothing_after_it_is_run"
FAILS = f"{MATHS}test_why_an_action_fails_is_told"
USED = f"{MATHS}test_results_are_used_by_later_actions_and_earlier_steps_are_known"
PAGES = f"{QUESTIONS}test_a_search_gives_the_best_paragraphs_first"
READ = f"{QUESTIONS}test_the_reader_of_rules_reads_plain_sentences"
TAG = f"{WEB}test_the_tag_decides_between_equal_texts_and_else_the_rank"
STEP = f"{WEB}test_a_step_is_right_with_element_kind_and_value"
FIRST = f"{WEB}test_only_the_first_candidates_are_looked_at"
SHARE = f"{SHOP}test_what_is_missing_is_taken_off_by_its_share"
CHOICE = f"{SHOP}test_a_choice_replaces_the_one_before"

MUTANTS = (
    Mutant(
        "actions-commas-split-questions",
        "tools/actions/grammar.py",
        "if labelled and not has_label:",
        "if labelled and has_label:",
        "a question ends at its first comma",
        (COMMAS,),
    ),
    Mutant(
        "actions-inches-hide-the-next-action",
        "tools/actions/grammar.py",
        "at = found.start() + 1",
        "at = found.end()",
        "a quote that runs over two actions hides the bracket between them",
        (INCHES,),
    ),
    Mutant(
        "actions-an-open-bracket-takes-all",
        "tools/actions/grammar.py",
        "stop = self.begins[place] if place < len(self.begins) else len(self.text)",
        "stop = len(self.text)",
        "a bracket that is not closed loses all actions after it",
        (UNCLOSED,),
    ),
    Mutant(
        "actions-no-limit-of-length",
        "tools/actions/grammar.py",
        "if len(text) > MAX_CHARACTERS:",
        "if not text:",
        "texts of any length are read",
        (LONG,),
    ),
    Mutant(
        "actions-a-result-made-of-itself",
        "tools/actions/checking.py",
        "if name not in there:",
        "if name not in {*there, action.result}:",
        "R1 = Calculator(R1 + 1) passes",
        (BEFORE,),
    ),
    Mutant(
        "actions-a-result-set-twice",
        "tools/actions/checking.py",
        "there = {*known, *tools.given}",
        "there = {*tools.given}",
        "results of earlier steps are unknown, and can be set again",
        (ONCE, BEFORE),
    ),
    Mutant(
        "actions-powers-from-the-left",
        "tools/actions/expressions.py",
        '_RIGHT = ("negative", "^")',
        '_RIGHT = ("negative",)',
        "2^3^2 is 64",
        (CALCULATED,),
    ),
    Mutant(
        "actions-negative-before-power",
        "tools/actions/expressions.py",
        '"negative": 3, "^": 4',
        '"negative": 4, "^": 3',
        "-2^2 is 4",
        (CALCULATED,),
    ),
    Mutant(
        "actions-percent-of-is-a-remainder",
        "tools/actions/expressions.py",
        r"\s*(?!of\b)[\w.(]",
        r"\s*[\w.(]",
        "20% of 50 can't be read",
        (CALCULATED,),
    ),
    Mutant(
        "actions-thirds-are-cut",
        "tools/actions/arithmetic.py",
        "return str(value)\n        places",
        "return str(float(value))\n        places",
        "a third is 0.333..., and three of them are not 1",
        (CALCULATED, USED),
    ),
    Mutant(
        "actions-the-lowest-result-answers",
        "tools/actions/executor.py",
        "values[ranks[max(ranks)]]",
        "values[ranks[min(ranks)]]",
        "the answer is the first result",
        (ANSWER,),
    ),
    Mutant(
        "actions-an-answer-after-an-error",
        "tools/actions/executor.py",
        'return Executed(new, None, f"{action.result} = {action.tool}: {error}")',
        'return Executed(new, answer_of(new), f"{action.result} = {action.tool}: {error}")',
        "actions that failed have an answer",
        (KEPT,),
    ),
    Mutant(
        "actions-complex-solutions",
        "tools/actions/solver_worker.py",
        "Symbol(name, real=True)",
        "Symbol(name)",
        "solutions that are not real are looked for",
        (FAILS,),
    ),
    Mutant(
        "actions-ends-of-intervals",
        "tools/actions/solver.py",
        "{'(' if left else '['}",
        "{'['}",
        "an open end of an interval is shown as closed",
        (SOLVED,),
    ),
    Mutant(
        "actions-pages-that-were-not-found",
        "tools/actions/corpus.py",
        "self._of_pages(pages) if pages else None",
        "None",
        "paragraphs are retrieved of pages that were not found",
        (PAGES,),
    ),
    Mutant(
        "actions-negation-unread",
        "tools/actions/readers.py",
        "and not denied else",
        "else",
        "a sentence with `not` says yes",
        (READ,),
    ),
    Mutant(
        "actions-tags-unread",
        "tools/actions/web.py",
        "+ _FITTING * (",
        "+ 0 * (",
        "a label is typed into",
        (TAG,),
    ),
    Mutant(
        "actions-values-unread",
        "tools/actions/web.py",
        'and (same or gold.kind == "CLICK")',
        "and True",
        "a step is right whatever was typed",
        (STEP,),
    ),
    Mutant(
        "actions-all-candidates",
        "tools/actions/web.py",
        "tuple(candidates[:CANDIDATES])",
        "tuple(candidates)",
        "elements beyond the candidates are taken",
        (FIRST,),
    ),
    Mutant(
        "actions-a-visit-without-buying",
        "tools/actions/shop.py",
        "if not session.bought:",
        "if not session.opened:",
        "an item that was only looked at is rewarded",
        (SHARE,),
    ),
    Mutant(
        "actions-any-price",
        "tools/actions/shop.py",
        "has += item.cents <= wanted.cents",
        "has += 1",
        "an item that is too dear is rewarded as a cheap one",
        (SHARE,),
    ),
    Mutant(
        "actions-all-colours",
        "tools/actions/shop.py",
        "if one[0] != name)",
        "if one[0])",
        "clicking all options of a choice gives the wanted one",
        (CHOICE,),
    ),
)
