"""Faults of how tool turns are shown, and of how a message that calls ends."""

from tests.mutation.mutant import Mutant

PLAYED = "tests/contract/test_09_templates_with_tools.py::"
ORDER = "tests/contract/test_04_parallel_tool_results.py::"
FORGED = "tests/test_forged_turns.py::"
TEXT = "tests/test_text_sampler.py::"

ENDS = f"{PLAYED}test_a_call_is_trained_with_the_stop_string_that_ends_it_and_its_text_has_it"
IN_ORDER = f"{PLAYED}test_two_results_are_shown_in_the_order_of_their_calls"
ONE_EACH = f"{PLAYED}test_a_template_with_tool_messages_has_one_for_each_result"
AS_USERS = f"{PLAYED}test_a_template_without_tool_messages_shows_all_results_as_one_of_the_users"
NAME = f"{FORGED}test_no_result_and_no_name_of_a_tool_can_forge_a_turn"
RUN = f"{TEXT}test_calls_of_an_endpoint_are_run_and_their_results_shown"
OWN_STOP = f"{TEXT}test_a_stop_string_of_the_samplers_own_ends_no_call"
OPEN = f"{TEXT}test_a_reply_ended_with_the_tag_that_is_open"
SHOWN = f"{TEXT}test_an_endpoint_is_shown_results_without_text_and_nothing_that_is_for_others"

MUTANTS = (
    Mutant(
        "turn-text-without-its-stop",
        "rollout/samplers.py",
        "[Part(completion.text + stop, ",
        "[Part(completion.text, ",
        "a call that a template shows anew has no closing tag",
        (ENDS,),
    ),
    Mutant(
        "results-not-shown",
        "rollout/transitions.py",
        'parts = (Part(text, source="results"),)',
        "pass",
        "results are not shown as the syntax shows them",
        (RUN,),
    ),
    Mutant(
        "results-without-names",
        "models/chat.py",
        "if one.calls)",
        "if not one.calls)",
        "a result does not say which tool gave it",
        (ONE_EACH,),
    ),
    Mutant(
        "results-in-a-role-that-is-not-shown",
        "models/native.py",
        "if isinstance(one, Slot) and one.text in words] == words",
        "if isinstance(one, Slot)] != []",
        "a template that leaves tool messages out hides all results",
        (AS_USERS,),
    ),
    Mutant(
        "results-as-one-message",
        "models/chat.py",
        'if message.role == "tool" and self.tools.results != "user":',
        'if message.role == "none":',
        "a template's tool messages do not say which call they answer",
        (ONE_EACH,),
    ),
    Mutant(
        "results-backwards",
        "models/chat.py",
        "for one in turn.results)\n        )",
        "for one in turn.results[::-1])\n        )",
        "results are not in the order of their calls",
        (IN_ORDER, f"{ORDER}test_a_prompt_shows_eleven_results_in_the_order_of_their_calls"),
    ),
    Mutant(
        "tool-name-as-the-templates-own",
        "models/layout.py",
        'name = {"name": show(self.name)}',
        'name = {"name": self.name.text}',
        "the name of a tool that a model made up forges a turn",
        (NAME,),
    ),
    Mutant(
        "endpoint-without-stops",
        "rollout/samplers.py",
        "stop=(*self.sampling.stop, *prompt.stop),\n            seed",
        "stop=self.sampling.stop,\n            seed",
        "an endpoint goes on after a call, and makes up its result",
        (RUN,),
    ),
    Mutant(
        "endpoint-calls-not-closed",
        "rollout/samplers.py",
        'if not stop and reply.finish == "stop":',
        "if False:",
        "no call of an endpoint that does not name its stop string is run",
        (RUN,),
    ),
    Mutant(
        "endpoint-any-stop-closes",
        "rollout/samplers.py",
        'text += stop if stop in prompt.stop else ""',
        "text += closing(text, prompt.stop)",
        "a call that another stop string broke off is run",
        (OWN_STOP,),
    ),
    Mutant(
        "endpoint-sees-all-parts",
        "rollout/samplers.py",
        "for part in turn.parts if part.visible_to(reader)",
        "for part in turn.parts",
        "an endpoint is shown what is for another",
        (SHOWN,),
    ),
    Mutant(
        "closing-of-the-first-tag",
        "tools/tags.py",
        "    last = max(opened, default=-1)\n",
        "    last = min((at for at in opened if at >= 0), default=-1)\n",
        "a call ends with the closing tag of another",
        (OPEN,),
    ),
    Mutant(
        "row-trains-the-end-of-a-prompt",
        "trajectories/row.py",
        "targets.append(_target(position, stop,",
        "targets.append(_target(position - 1, stop,",
        "the last token of what the agent is shown is trained",
        ("tests/contract/test_03_observations.py::test_no_observation_is_a_target",),
    ),
)
