"""Faults of the question and evaluation sets, their corpus, and GAP's files."""

from tests.mutation.mutant import Mutant

SETS = "tests/test_gap_sets.py::"
EVALUATION = "tests/test_evaluation_sets.py::"
FILES = "tests/test_gap_files.py::"
PROMPTS = "recipes/gap/files/prompts.py"
TRACES = "recipes/gap/files/traces.py"

MUTANTS = (
    Mutant(
        "gap-index-missing-is-one-group",
        PROMPTS,
        "if index is None or isinstance(index, bool) or not str(index).strip():",
        "if isinstance(index, bool):",
        "prompts without an index are one group of rollouts",
        (f"{FILES}test_a_missing_index_is_an_error_that_names_the_row",),
    ),
    Mutant(
        "gap-index-twice",
        PROMPTS,
        "if row.index in seen:",
        "if row.index in seen and not rows:",
        "two prompts share a group",
        (f"{FILES}test_an_index_of_two_rows_names_both",),
    ),
    Mutant(
        "gap-first-answer-alone",
        PROMPTS,
        "answers = row.answers if isinstance(row, AnswerRow) else (row.answer,)",
        "answers = (row.answer,)",
        "other right answers are wrong in training",
        (f"{FILES}test_a_data_sets_row_becomes_a_prompt_and_comes_back",),
    ),
    Mutant(
        "gap-observation-end-is-trained",
        TRACES,
        "spans.append((begun, tag.end()))",
        "spans.append((begun, tag.start()))",
        "the end of an observation is trained",
        (f"{FILES}test_observations_are_places_of_characters_with_their_tags",),
    ),
    Mutant(
        "gap-open-observation-is-taken",
        TRACES,
        '    if begun is not None:\n        raise ValueError(f"has an observation that is never',
        '    if begun is None and spans is None:\n        raise ValueError(f"has an observation that is never',
        "an observation that is never closed is trained",
        (f"{FILES}test_traces_that_can_not_be_trained_on_are_told_with_their_numbers",),
    ),
    Mutant(
        "gap-wrong-row-number",
        TRACES,
        "enumerate(read_rows(path, TraceRow, progress or Silent()), 1)",
        "enumerate(read_rows(path, TraceRow, progress or Silent()), 0)",
        "broken traces are named by another number",
        (f"{FILES}test_traces_that_can_not_be_trained_on_are_told_with_their_numbers",),
    ),
    Mutant(
        "gap-distractors-are-gold",
        "datasets/rows.py",
        "one.title in gold)",
        "bool(gold))",
        "distractors count as gold passages",
        (f"{SETS}test_passages_are_all_paragraphs_and_the_facts_titles_are_gold",),
    ),
    Mutant(
        "gap-passages-repeated",
        "datasets/corpus.py",
        "if not text or (title, text) in seen:",
        "if not text:",
        "a passage of several questions is in the corpus several times",
        (f"{SETS}test_a_passage_of_several_questions_is_in_the_corpus_once",),
    ),
    Mutant(
        "gap-musique-unanswerable",
        "datasets/musique.py",
        'return "" if self.answerable else',
        'return "" if self.hops else',
        "questions that the paragraphs don't answer are asked",
        (f"{SETS}test_what_musiques_paragraphs_do_not_answer_is_left_out",),
    ),
    Mutant(
        "gap-evaluation-set-trains",
        "datasets/data_set.py",
        'return SPLITS if self.train is not None else ("heldout",)',
        "return SPLITS",
        "rows of an evaluation set are trained on",
        (f"{SETS}test_a_set_for_evaluation_alone_takes_one_file_and_trains_on_nothing",),
    ),
    Mutant(
        "gap-hidden-answer-is-gold",
        "datasets/web_rows.py",
        "if self.answer.strip() == HIDDEN else",
        "if self.answer.strip() == HIDDEN * 2 else",
        "GAIA's hidden answers are graded against",
        (f"{EVALUATION}test_what_can_not_be_asked_or_graded_is_left_out_with_its_reason",),
    ),
    Mutant(
        "gap-sealed-tests-are-silent",
        "datasets/contest_rows.py",
        'return SEALED if self.sealed else ""',
        'return ""',
        "nobody is told that private tests are lacking",
        (f"{EVALUATION}test_a_pickle_is_never_read_and_it_is_said_what_is_lacking",),
    ),
)
