"""Faults of what goes out to and comes in from the released code's files."""

from tests.mutation.mutant import Mutant

FILES = "tests/test_original_files.py::"
NAMES = "tests/test_original_names.py::"
PAIRS = "tests/test_original_pairs.py::"
REWARDED = f"{FILES}test_rewarded_dialogues_become_finished_rollouts_and_rewards"
NAMES = f"{NAMES}test_names_in_front_are_taken_off_and_markers_understood"
HELD_OUT = f"{FILES}test_held_out_questions_are_left_out"
WHOLE = f"{FILES}test_rewards_must_be_whole_and_add_up"
EXPORT = f"{FILES}test_an_export_says_what_the_original_would"
PAIRS = f"{PAIRS}test_pairs_become_siblings_with_values_and_train"
ASKED = f"{FILES}test_tasks_are_the_same_whatever_the_words_around_their_options"
GOLDS = f"{FILES}test_all_right_answers_are_secrets_and_come_back"

MUTANTS = (
    Mutant(
        "optima-import-held-out-tasks",
        "recipes/optima/files/importing.py",
        "            if content(dataset, task) in held_out:\n                continue\n",
        "",
        "a run is trained on the tasks that it is judged by",
        (HELD_OUT,),
    ),
    Mutant(
        "optima-import-leaks-forgiven",
        "recipes/optima/files/importing.py",
        "return (task, tokens, loss, min(leaked, 0.0)) if leaked <= 0 else None",
        "return (task, tokens, loss, 0.0) if leaked <= 0 else None",
        "the penalties in a rewarded file are lost",
        (REWARDED,),
    ),
    Mutant(
        "optima-import-rewards-of-any-sum",
        "recipes/optima/files/importing.py",
        "return (task, tokens, loss, min(leaked, 0.0)) if leaked <= 0 else None",
        "return (task, tokens, loss, min(leaked, 0.0))",
        "rewards that are not the sum of their parts are taken",
        (WHOLE,),
    ),
    Mutant(
        "optima-import-loss-and-tokens-swapped",
        "recipes/optima/files/importing.py",
        "task, tokens, loss = result.correct_score, result.token_score, result.ppl_score",
        "task, tokens, loss = result.correct_score, result.ppl_score, result.token_score",
        "an imported token term is taken for the loss term",
        (REWARDED,),
    ),
    Mutant(
        "optima-import-truncated-agrees",
        "recipes/optima/files/importing.py",
        "end = LENGTH if conversation.cut else state.end or AGREED",
        "end = state.end or AGREED",
        "a conversation that was cut off counts as one that agreed",
        (REWARDED,),
    ),
    Mutant(
        "optima-import-names-stay",
        "recipes/optima/files/speech.py",
        "said.append((speaker, unnamed(utterance, speaker)))",
        "said.append((speaker, utterance))",
        "agents are trained to begin with their own name",
        (NAMES, REWARDED),
    ),
    Mutant(
        "optima-import-marker-is-said",
        "recipes/optima/files/speech.py",
        'return Conversation(tuple(said), "large")',
        "continue",
        "conversations that were cut off seem whole",
        (NAMES,),
    ),
    Mutant(
        "optima-import-speakers-swapped",
        "recipes/optima/files/speech.py",
        "speaker = AGENTS[(first + place) % 2]",
        "speaker = AGENTS[(first + place + 1) % 2]",
        "each agent is trained on what the other one said",
        (NAMES, REWARDED),
    ),
    Mutant(
        "optima-import-options-in-the-question",
        "recipes/optima/files/tasks.py",
        'question = question.rpartition("\\n")[0] or question',
        "pass",
        "held-out questions are not known by their files' other words for options",
        (ASKED,),
    ),
    Mutant(
        "optima-import-first-gold-only",
        "recipes/optima/files/tasks.py",
        "return Task(id_, public, _secrets([gold.strip() for gold in result.golds]))",
        "return Task(id_, public, _secrets([result.golds[0].strip()]))",
        "aliases of a file are lost",
        (GOLDS,),
    ),
    Mutant(
        "optima-import-pairs-rejected-is-better",
        "recipes/optima/files/pairs.py",
        "(rejected, pair.chosen_value - pair.distance),",
        "(rejected, pair.chosen_value + pair.distance),",
        "the rejected side of an imported pair has the higher value",
        (PAIRS,),
    ),
    Mutant(
        "optima-export-token-sign",
        "recipes/optima/files/exporting.py",
        '"token_score": reward.terms["tokens"],',
        '"token_score": -reward.terms["tokens"],',
        "token scores of an exported file have the wrong sign",
        (EXPORT,),
    ),
)
