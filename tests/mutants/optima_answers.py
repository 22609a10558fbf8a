"""Faults of the environments of Optima: answers, their comparison, ends of talks, draws of tasks."""

from tests.mutation.mutant import Mutant

ANSWERS = "tests/test_answers.py::"
F1 = f"{ANSWERS}test_f1_of_word_multisets_is_the_best_over_golds"
NORMAL = f"{ANSWERS}test_normalisation_drops_case_punctuation_articles_and_spare_spaces"
MARKS = "tests/test_extraction.py::test_the_last_mark_counts"
PROSE = (
    "tests/test_extraction.py::test_a_mark_that_is_opened_in_prose_and_never_closed_hides_no_answer"
)
CHEATS = (
    "tests/test_numbers.py::"
    "test_a_number_with_something_left_over_scores_agrees_and_votes_for_nothing"
)
SPELLINGS = "tests/test_numbers.py::test_a_number_has_one_spelling"
CASES = "tests/test_question_sets.py::test_options_that_differ_in_their_case_are_different_answers"
AGAIN = "tests/test_question_sets.py::test_the_same_answer_again_ends_a_talk"
SCORES = "tests/test_question_sets.py::test_scores"
ENVIRONMENTS = "tests/test_question_environments.py::"
DEBATE = f"{ENVIRONMENTS}test_a_debate_ends_when_the_solver_stays_with_its_answer"
NOTES = f"{ENVIRONMENTS}test_no_agent_is_shown_the_others_notes_or_the_answer"
DIFFERENT = "tests/test_mathematics.py::test_answers_that_are_not"
SOLVER = f"{ENVIRONMENTS}test_only_the_solver_of_a_debate_is_asked_for_a_format"
CUT_OFF = "tests/test_prompts.py::test_a_message_that_is_cut_off_is_not_well_formed"
ALONE = "tests/test_baselines.py::test_in_a_debate_the_first_answers_are_given_alone"
VOTE = "tests/test_baselines.py::test_a_debate_ends_after_two_rounds_with_a_vote"
VOTES = "tests/test_self_consistency.py::"
DRAWS = "tests/test_draws.py::"
SIZES = f"{DRAWS}test_draws_of_any_sizes_go_through_all_rows_before_one_comes_again"
OVER = f"{DRAWS}test_a_draw_over_the_end_takes_no_row_twice_and_leaves_none_out"
ENVIRONMENT = f"{DRAWS}test_an_environment_goes_on_where_the_draws_before_ended"

MUTANTS = (
    Mutant(
        "optima-f1-is-recall",
        "environments/answers.py",
        "return 2 * common / (len(predicted) + len(gold))",
        "return common / len(gold)",
        "an answer that says everything is right",
        (F1,),
    ),
    Mutant(
        "optima-f1-of-word-sets",
        "environments/answers.py",
        "common = (Counter(predicted) & Counter(gold)).total()",
        "common = len(set(predicted) & set(gold))",
        "words that are said twice count once",
        (F1,),
    ),
    Mutant(
        "optima-f1-of-the-first-gold",
        "environments/answers.py",
        "return max(_word_f1(words, normalize_answer(gold).split()) for gold in golds)",
        "return _word_f1(words, normalize_answer(golds[0]).split())",
        "aliases do not count",
        (F1,),
    ),
    Mutant(
        "optima-normal-form-keeps-articles",
        "environments/answers.py",
        'return " ".join(_ARTICLES.sub(" ", text).split())',
        'return " ".join(text.split())',
        "articles count as words",
        (NORMAL, F1),
    ),
    Mutant(
        "optima-normal-form-in-any-word",
        "environments/answers.py",
        r'r"\b(a|an|the)\b"',
        r'r"\b(a|an|the)"',
        "words lose their beginnings: a theatre is an atre",
        (NORMAL,),
    ),
    Mutant(
        "optima-marked-first",
        "environments/extraction.py",
        "for one in reversed(_MARKED.findall(text))",
        "for one in _MARKED.findall(text)",
        "an answer that is taken back in the same message stands",
        (MARKS,),
    ),
    Mutant(
        "optima-marked-over-an-open-mark",
        "environments/extraction.py",
        'r"<A>((?:(?!<A>).)*?)</A"',
        'r"<A>(.*?)</A"',
        "a mark that is opened in prose swallows the answer",
        (PROSE,),
    ),
    Mutant(
        "optima-boxed-text-is-none",
        "environments/extraction.py",
        "return None if box is None else (number(box) or box)",
        "return None if box is None else number(box)",
        "an answer that is not a number is not an answer, so a debate never agrees on it",
        ("tests/test_extraction.py::test_a_box_without_a_number_is_still_an_answer",),
    ),
    Mutant(
        "optima-numbers-rest-is-not-read",
        "environments/numbers.py",
        'if not is_unit(found["rest"], singular=0 < value <= 1)',
        "if False",
        "`18 or 99` is 18: a guess at everything scores",
        (CHEATS,),
    ),
    Mutant(
        "optima-numbers-hedges-are-units",
        "environments/units.py",
        "return not any(tells(word) or word in _ASIDES for word in words) and _is_count(",
        "return _is_count(",
        "`18 million apples` is 18",
        (CHEATS,),
    ),
    Mutant(
        "optima-numbers-any-word-is-a-noun",
        "environments/units.py",
        "return singular or _PLURAL.fullmatch(word) is not None",
        "return True",
        "`18 gross` and `18 final` are 18",
        (CHEATS,),
    ),
    Mutant(
        "optima-numbers-equations-are-believed",
        "environments/numbers.py",
        "if value is None or not all(is_name(one) or _sum(one) == value for one in called):",
        "if value is None:",
        "`99 = 18` is 18",
        (CHEATS, SPELLINGS),
    ),
    Mutant(
        "optima-numbers-sign-lost",
        "environments/numbers.py",
        "return -value if",
        "return value if",
        "-5 is 5",
        (SPELLINGS,),
    ),
    Mutant(
        "optima-options-in-any-case",
        "environments/equality.py",
        "return next(iter(named.values())) if len(named) == 1 else answer",
        "return next(iter(named.values())) if named else answer",
        "options that differ in case only are one option",
        (CASES,),
    ),
    Mutant(
        "optima-options-by-letter-only",
        "environments/equality.py",
        "folded = answer.casefold().split()",
        "folded = words",
        "an option in other case is none",
        (CASES, SCORES),
    ),
    Mutant(
        "optima-mathematics-tuples-are-sets",
        "environments/mathematics.py",
        "return _matched(members, others, in_place=bool(brackets))",
        "return _matched(members, others, in_place=False)",
        "(1,2) is (2,1)",
        (DIFFERENT,),
    ),
    Mutant(
        "optima-mathematics-brackets-are-dress",
        "environments/mathematics.py",
        "if not members or brackets != others_brackets or len(members) != len(others):",
        "if not members or len(members) != len(others):",
        "an open interval is a closed one",
        (DIFFERENT,),
    ),
    Mutant(
        "optima-debate-critic-is-a-solver",
        "environments/debate.py",
        "self._solver() if agent == self.agents[0] else self._critic(agent)",
        "self._solver()",
        "critics are told to solve the problem",
        (f"{ENVIRONMENTS}test_the_critic_of_a_debate_is_told_to_give_no_answer",),
    ),
    Mutant(
        "optima-debate-format-for-all",
        "environments/debate.py",
        "self.format_agents: tuple[str, ...] = self.agents[:1]",
        "self.format_agents: tuple[str, ...] = self.agents",
        "critics are asked for a format, too",
        (f"{ENVIRONMENTS}test_only_the_solver_of_a_debate_is_asked_for_a_format",),
    ),
    Mutant(
        "optima-debate-vote-by-letter",
        "environments/debate.py",
        "return float(self.subject.same(other, answer))",
        "return float(other == answer)",
        "1,000 and 1000.0 are two votes",
        (f"{VOTES}test_each_benchmark_says_when_answers_are_alike",),
    ),
    Mutant(
        "optima-exchange-all-notes-for-all",
        "environments/information_exchange.py",
        "for note in notes[agent]),\n",
        "for held in notes.values() for note in held),\n",
        "each agent has all notes, and need not talk",
        (NOTES,),
    ),
    Mutant(
        "optima-exchange-aliases-lost",
        "environments/information_exchange.py",
        "return f1(answer, gold_answers(task))",
        "return f1(answer, gold_answers(task)[:1])",
        "only TriviaQA's first right answer counts",
        (SCORES,),
    ),
    Mutant(
        "optima-talk-ends-with-the-first-answer",
        "environments/talk.py",
        "return answer is not None and before == answer",
        "return answer is not None",
        "a dialogue ends as soon as anybody gives an answer",
        (AGAIN,),
    ),
    Mutant(
        "optima-talk-forgets-its-answer",
        "rollout/transitions.py",
        "answer = now.answer if found.answer is None else found.answer",
        "answer = found.answer",
        "a critic's message takes back the solver's answer",
        (AGAIN, DEBATE),
    ),
    Mutant(
        "optima-talk-truncated-goes-on",
        "environments/talk.py",
        "        if said.truncated:\n            return Transition(answer=answer, end=LENGTH)\n",
        "",
        "a turn without end does not end the dialogue",
        (DEBATE,),
    ),
    Mutant(
        "optima-talk-truncated-scores",
        "environments/talk.py",
        "if state.end == LENGTH or answer is None:",
        "if answer is None:",
        "an answer in a message that was cut off scores",
        (CUT_OFF,),
    ),
    Mutant(
        "optima-talk-limit-of-one-agent",
        "environments/talk.py",
        'return {"turns": self.max_turns}',
        'return {f"turns:{self.agents[0]}": self.max_turns}',
        "a talk has as many turns of each agent as it should have of all",
        (DEBATE,),
    ),
    Mutant(
        "optima-talk-formats-for-all",
        "environments/talk.py",
        "if state.variant is not None and actor in self.format_agents:",
        "if state.variant is not None:",
        "a debate's critics are asked for a format too",
        (SOLVER,),
    ),
    Mutant(
        "optima-mad-one-after-the-other",
        "environments/baselines.py",
        "        return self.agents\n",
        "        return (self.agents[len(state.turns) % len(self.agents)],)\n",
        "in a multi-agent debate the second agent answers with the first one's answer before it",
        (ALONE,),
    ),
    Mutant(
        "optima-mad-own-message-not-first",
        "environments/baselines.py",
        "[sorted(one, key=lambda turn: turn.speaker.name != agent) for one in rounds]",
        "rounds",
        "agents of a multi-agent debate hear others before themselves",
        (ALONE,),
    ),
    Mutant(
        "optima-mad-last-round-only",
        "environments/baselines.py",
        "            for turn in state.turns\n",
        "            for turn in taken\n",
        "an agent that does not repeat its answer has no vote",
        (VOTE,),
    ),
    Mutant(
        "optima-draws-from-the-first-row",
        "environments/rows.py",
        "draws(found, (*drawn, count), seed)[-1]",
        "draws(found, (count,), seed)[-1]",
        "every iteration has the same rows of a data set",
        (ENVIRONMENT,),
    ),
    Mutant(
        "optima-draws-always-afresh",
        "environments/rows.py",
        "        left = left[len(taken) :]\n",
        "        left = []\n",
        "what is left of an order is dropped, and rows are repeated",
        (SIZES, OVER),
    ),
    Mutant(
        "optima-draws-one-order",
        "environments/rows.py",
        'random.Random(f"order/{seed}/{epochs}")',
        'random.Random(f"order/{seed}")',
        "all passes over the data set are in one order",
        (SIZES,),
    ),
    Mutant(
        "optima-draws-twice-over-the-end",
        "environments/rows.py",
        "left = sorted(fresh, key=had.__contains__)",
        "left = fresh",
        "a draw over the end of the data set takes rows twice",
        (OVER,),
    ),
    Mutant(
        "optima-draws-in-the-files-order",
        "environments/rows.py",
        '            random.Random(f"order/{seed}/{epochs}").shuffle(fresh)\n',
        "",
        "rows are drawn in the order of the file, whatever the seed",
        (SIZES,),
    ),
)
