"""Faults of the dialogues of the coding environments: what is said and shown, and how answers are read."""

from tests.mutation.mutant import Mutant

CODING = "tests/test_coding.py::"
TEXT = "tests/test_code_text.py::"

ENVIRONMENT = "environments/coding.py"
MARKS = "environments/code_text.py"
PERSON = "environments/user_simulator.py"

SIGHT = f"{CODING}test_thoughts_stay_out_of_the_history_and_of_the_persons_sight"
ENDS = f"{CODING}test_a_dialogue_ends_with_an_answer_or_with_the_last_turn"
SECRETS = f"{CODING}test_secrets_are_for_those_who_may_read_them"
LEAKS = f"{CODING}test_what_a_reply_quotes_of_the_reference_is_counted"
CUT = f"{CODING}test_replies_are_cut_at_a_sentence"
MARKER = f"{TEXT}test_marker_and_thoughts"
CODE = f"{TEXT}test_code_of_an_answer"
PROMPTED = "tests/sweet/test_candidates.py::test_only_a_critic_may_read_the_reference_in_its_prompt"

MUTANTS = (
    Mutant(
        "colbench-one-turn-more",
        ENVIRONMENT,
        'return {f"turns:{AGENT}": self.max_turns}',
        'return {f"turns:{AGENT}": self.max_turns + 1}',
        "the agent has a turn more than it is told",
        (ENDS,),
    ),
    Mutant(
        "colbench-last-turn-is-no-answer",
        ENVIRONMENT,
        "answer, end = self.visible(said.text).strip(), TURNS",
        "answer, end = None, TURNS",
        "a last turn without the marker always fails",
        (ENDS,),
    ),
    Mutant(
        "colbench-transcript-with-thoughts",
        ENVIRONMENT,
        "environment.visible(turn.text) if turn.speaker.name == AGENT else turn.text,",
        "turn.text,",
        "a judge reads what the agent thinks",
        (SIGHT,),
    ),
    Mutant(
        "colbench-person-reads-thoughts",
        ENVIRONMENT,
        "if turn.speaker.name == AGENT and (seen",
        "if actor == turn.speaker.name == AGENT and (seen",
        "the person reads what the agent thinks",
        (SIGHT,),
    ),
    Mutant(
        "colbench-thoughts-stay-in-the-history",
        ENVIRONMENT,
        "if turn.speaker.name == AGENT and (seen",
        "if actor == PERSON and turn.speaker.name == AGENT and (seen",
        "the agent reads its earlier thoughts again",
        (SIGHT,),
    ),
    Mutant(
        "colbench-one-seed-for-all-replies",
        "rollout/driver.py",
        "len(at.state.turns) + place)",
        "place)",
        "a person's random numbers are the same in every turn",
        (f"{CODING}test_what_a_person_draws_is_of_the_sample_and_of_the_place_of_its_turn",),
    ),
    Mutant(
        "colbench-agent-reads-the-reference",
        ENVIRONMENT,
        "readers=frozenset({PERSON, CRITIC, GRADER})",
        "readers=frozenset({AGENT, PERSON, CRITIC, GRADER})",
        "nothing keeps the reference out of the agent's prompts",
        (SECRETS,),
    ),
    Mutant(
        "colbench-critic-reads-the-tests",
        ENVIRONMENT,
        "name=TESTS, readers=frozenset({GRADER})",
        "name=TESTS, readers=frozenset({GRADER, CRITIC})",
        "the critic knows the hidden calls",
        (SECRETS,),
    ),
    Mutant(
        "colbench-reference-shown-to-anyone",
        ENVIRONMENT,
        "task.secrets[REFERENCE].part(CRITIC))",
        'Part(task.secrets[REFERENCE].reveal(CRITIC), source="task"))',
        "the critic's context renders for the policy too",
        (PROMPTED,),
    ),
    Mutant(
        "colbench-marker-at-the-second",
        MARKS,
        "return seen[markers[0].end : end].strip()",
        "return seen[markers[-1].end :].strip()",
        "what follows a repeated marker is taken for the answer",
        (MARKER,),
    ),
    Mutant(
        "colbench-marker-among-thoughts-lost",
        MARKS,
        'return f"{MARKER} {seen}" if lost and not kept else seen',
        "return seen",
        "an answer whose marker stands before OUTPUT: is not an answer",
        (MARKER,),
    ),
    Mutant(
        "colbench-marker-twice",
        MARKS,
        "if lost and not kept else seen",
        "if lost or kept else seen",
        "a marker is added to what has one",
        (MARKER,),
    ),
    Mutant(
        "colbench-first-fence-of-any-language",
        MARKS,
        "next((one for one in fences if one.language in _PYTHON), fences[0])",
        "fences[0]",
        "an example of input is taken for the code",
        (CODE,),
    ),
    Mutant(
        "colbench-open-fence-is-no-code",
        MARKS,
        "ends[0] if ends else len(answer)]",
        "ends[0] if ends else fence.end]",
        "code whose fence is not closed is lost",
        (CODE,),
    ),
    Mutant(
        "colbench-leaks-of-the-agent",
        ENVIRONMENT,
        "for turn in state.turns[1:] if turn.speaker.name == PERSON]",
        "for turn in state.turns[1:]]",
        "right answers count as leaks",
        (ENDS, LEAKS),
    ),
    Mutant(
        "colbench-leaks-not-counted",
        PERSON,
        "LEAKED = 30\n",
        "LEAKED = 300\n",
        "a person who reads the code out is not noticed",
        (LEAKS,),
    ),
    Mutant(
        "colbench-roles-swapped",
        PERSON,
        "'You' if who == PERSON else 'Assistant'",
        "'Assistant' if who == PERSON else 'You'",
        "a model that plays the person takes itself for the assistant",
        (SECRETS,),
    ),
    Mutant(
        "colbench-unfinished-sentence-stays",
        PERSON,
        "if len(text) <= max_characters and not unfinished:",
        "if len(text) <= max_characters:",
        "the agent reads half a sentence",
        (CUT,),
    ),
    Mutant(
        "colbench-reply-cut-at-the-first-sentence",
        PERSON,
        "return text[: ends[-1]]",
        "return text[: ends[0]]",
        "whole sentences that fit are cut off",
        (CUT,),
    ),
)
