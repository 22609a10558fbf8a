"""Faults of the micro-world of an invented encyclopedia: its splits, its questions, what an expert says of them."""

from tests.mutation.mutant import Mutant

WORLD = "tests/test_encyclopedia.py::"
ROWS = "tests/test_encyclopedia_rows.py::"
ONE_SPLIT = f"{WORLD}test_what_an_answer_depends_on_is_of_its_split_alone"
RELATED = f"{WORLD}test_facts_relate_entities_of_one_split_alone"
HALVES = f"{WORLD}test_half_of_the_questions_compare_two_to_four_entities_and_half_are_chains"
ANSWERED = f"{WORLD}test_questions_are_asked_and_answered"
FOLLOW = f"{WORLD}test_answers_follow_from_the_texts_of_entries"
FORMS = f"{WORLD}test_the_parallel_form_searches_a_level_at_once_and_the_sequential_one_query_after_query"
LEVELS = f"{WORLD}test_plans_of_comparisons_have_one_level_and_those_of_chains_one_task_in_each"
FOUND = f"{WORLD}test_the_first_passage_that_bm25_finds_is_the_entry"
DRAWN = f"{WORLD}test_questions_depend_on_the_seed_only_and_a_larger_count_extends_a_smaller_one"
ENTRIES = f"{WORLD}test_an_entry_says_all_its_facts_in_short_sentences"
FOLDER = "environments/encyclopedia/"


def _entries(name: str, find: str, replace: str, breaks: str, test: str) -> Mutant:
    return Mutant(f"encyclopedia-{name}", f"{FOLDER}entries.py", find, replace, breaks, (test,))


def _questions(name: str, find: str, replace: str, breaks: str, test: str) -> Mutant:
    return Mutant(f"encyclopedia-{name}", f"{FOLDER}questions.py", find, replace, breaks, (test,))


def _expert(name: str, find: str, replace: str, breaks: str, test: str) -> Mutant:
    return Mutant(f"encyclopedia-{name}", f"{FOLDER}expert.py", find, replace, breaks, (test,))


def _rows(name: str, find: str, replace: str, breaks: str, test: str) -> Mutant:
    path = "microworlds/encyclopedia.py"
    return Mutant(f"encyclopedia-{name}", path, find, replace, breaks, (test,))


MUTANTS = (
    _entries(
        "splits-by-kind",
        "return split_of_key(self.name)",
        "return split_of_key(self.kind)",
        "all entities of a kind are of one split",
        RELATED,
    ),
    _entries(
        "facts-lead-to-any-split",
        "names[split, one.to]))",
        'names["train", one.to]))',
        "chains of held-out questions go through entries of the training split",
        RELATED,
    ),
    _entries(
        "names-of-any-split",
        "for name in every if split_of_key(name) in splits]",
        "for name in every if splits]",
        "the model is pre-trained on entities that questions ask for",
        RELATED,
    ),
    _entries(
        "short-entries",
        'return " ".join(fact.text for fact in self.facts)',
        "return self.facts[0].text",
        "an entry leaves out what chains need",
        ENTRIES,
    ),
    _entries(
        "query-without-the-name",
        "return BY_NAME[self.relation].query.format(s=self.subject)",
        "return BY_NAME[self.relation].query.format(s=self.value)",
        "the search finds other entries",
        FOUND,
    ),
    _questions(
        "of-any-split",
        "rng.sample(encyclopedia.names[split, relation.of], count)",
        'rng.sample(encyclopedia.names["train", relation.of], count)',
        "held-out comparisons are of training entities",
        ONE_SPLIT,
    ),
    _questions(
        "chains-of-any-split",
        "rng.choice(encyclopedia.names[split, path[0].of])",
        'rng.choice(encyclopedia.names["train", path[0].of])',
        "held-out chains begin at training entities",
        ONE_SPLIT,
    ),
    _questions(
        "come-twice",
        "if key in seen or not _fair(question):",
        "if not _fair(question):",
        "a question is asked twice",
        ONE_SPLIT,
    ),
    _questions(
        "order-makes-another",
        "        facts.sort()\n",
        "        pass\n",
        "the same comparison in another order counts as new",
        f"{WORLD}test_a_comparison_in_another_order_is_the_same",
    ),
    _questions(
        "chain-answered-by-the-first-hop",
        "return self.facts[-1].value",
        "return self.facts[0].value",
        "the first search answers a chain",
        ANSWERED,
    ),
    _questions(
        "chain-asks-for-the-first-hop",
        "*links, last_fact = self.facts",
        "links, last_fact = (), self.facts[0]",
        "chains are single lookups",
        ANSWERED,
    ),
    _questions(
        "compare-reversed",
        "choose = max if self.greatest else min",
        "choose = min if self.greatest else max",
        "the other end of a comparison is right",
        FOLLOW,
    ),
    _questions(
        "compare-always-for-the-least",
        "greatest=rng.random() < 0.5)",
        "greatest=False)",
        "nobody asks for the last or the largest",
        HALVES,
    ),
    _questions(
        "ties",
        "return len(set(passed)) == len(passed)",
        "return bool(passed)",
        "two of those compared are equal, and chains go back",
        FOLLOW,
    ),
    _questions(
        "parallel-question-as-chain",
        'if kind == "compare":\n            question = _comparison(',
        'if kind != "chain" and len(found) % 4:\n            question = _comparison(',
        "three quarters of the questions are chains",
        HALVES,
    ),
    _questions(
        "split-is-forgotten-in-the-draw",
        'f"encyclopedia/questions/{split}/{seed}/',
        'f"encyclopedia/questions/{split}/',
        "every seed gives the same questions",
        DRAWN,
    ),
    _expert(
        "comparison-planned-as-chain",
        "levels: tuple[tuple[Query, ...], ...] = (tuple(queries),)",
        "levels: tuple[tuple[Query, ...], ...] = tuple((one,) for one in queries)",
        "nothing is ever searched in parallel",
        FORMS,
    ),
    _expert(
        "chain-planned-as-comparison",
        'Task(id_, f"{fact.relation} of {{{before}}}", (before,))',
        "Task(id_, fact.query)",
        "the plan of a chain says that nothing waits",
        LEVELS,
    ),
    _expert(
        "chain-searched-at-once",
        "levels = tuple((query,) for query in queries)",
        "levels = (tuple(queries),)",
        "the second search is made before the first is answered",
        FORMS,
    ),
    _expert(
        "always-says-what-decides",
        "crc32(question.text.encode()) % TERSE == 0",
        "question.kind == 'compare'",
        "nothing is left for reinforcement learning to find",
        f"{WORLD}test_in_few_comparisons_the_expert_says_what_decides",
    ),
    _questions(
        "least-called-greatest",
        "{'greatest' if greatest else 'least'}",
        "{'least' if greatest else 'greatest'}",
        "the expert draws the wrong conclusion",
        f"{WORLD}test_in_few_comparisons_the_expert_says_what_decides",
    ),
    _rows(
        "rows-learn-observations",
        "if place % 2 == 0 and",
        "if",
        "the model learns to write observations",
        f"{ROWS}test_targets_are_the_messages_of_the_agent_alone",
    ),
    _rows(
        "rows-with-one-passage",
        "self._retriever.search(queries, TOPK)",
        "self._retriever.search(queries, 1)",
        "play shows more passages than the model has ever seen",
        f"{ROWS}test_rows_are_what_play_shows",
    ),
    _rows(
        "whole-trajectories-everywhere",
        "elif drawn < stage.lookups + stage.given + stage.drilled:",
        "elif drawn < stage.lookups + stage.given:",
        "the model is taught workflows before it is to learn them",
        f"{ROWS}test_few_rows_of_the_corpus_are_whole_trajectories",
    ),
    _rows(
        "habits-tell-everything",
        'question.conclusion if stage.told else ""',
        "question.conclusion",
        "the model compares well before any post-training",
        f"{ROWS}test_the_corpus_teaches_to_put_values_beside_each_other_and_then_the_habit_of_mostly_not_doing_it",
    ),
    _rows(
        "skills-are-seldom-told",
        'question.conclusion if stage.told else ""',
        '""',
        "the model never learns to compare",
        f"{ROWS}test_the_corpus_teaches_to_put_values_beside_each_other_and_then_the_habit_of_mostly_not_doing_it",
    ),
)
