"""Faults of calls in the models' own syntaxes: how they are read, shown, sent to endpoints and served."""

from tests.mutation.mutant import Mutant

READ = "tests/test_native_calls.py::"
PLAYED = "tests/contract/test_11_native_calls.py::"
INLINE = "tests/contract/test_12_inline_results.py::"
SERVED = "tests/test_serving_tools.py::"
TEXT = "tests/test_text_sampler.py::"
FORGED = "tests/test_forged_turns.py::"

CUT = f"{READ}test_no_call_runs_that_the_end_of_a_cut_message_leaves_open"
OPEN = f"{READ}test_a_call_without_its_closing_tag_is_not_run_even_where_the_message_ended"
STOPPED = f"{READ}test_a_stop_string_that_is_not_of_the_syntax_leaves_a_call_open"
BROKEN = f"{READ}test_broken_calls_are_answered_and_never_run"
THOUGHT = f"{READ}test_what_stands_in_a_thought_is_no_call"
TYPED = f"{READ}test_values_of_tags_are_typed_by_the_tools_schema"
IN_TEXT = f"{READ}test_markup_in_an_argument_is_text"
REFUSED = f"{READ}test_a_way_to_write_calls_that_nothing_reads_is_refused"
CHOSEN = f"{READ}test_a_models_syntax_is_what_reads_back_the_calls_that_its_template_writes"
SAFE = f"{READ}test_what_spells_a_control_token_in_a_tool_is_broken_up"
AGAIN = f"{PLAYED}test_prompts_that_are_rendered_again_from_the_store_are_the_same"
AS_SAMPLED = f"{PLAYED}test_a_turn_stays_as_sampled_and_is_never_written_again_from_its_calls"
OFFERED = f"{PLAYED}test_tools_are_in_prompts_and_requests_where_the_template_shows_them"
ORDER = f"{PLAYED}test_the_prompt_shows_twelve_results_in_the_order_of_their_calls"
THOUGHTS = f"{PLAYED}test_only_dropped_thoughts_open_a_new_segment"
ANSWERED = f"{PLAYED}test_calls_are_answered_in_their_order_and_no_open_or_broken_one_runs"
WRITTEN = (
    f"{FORGED}test_calls_of_a_turn_without_tokens_are_written_by_the_template_and_forge_nothing"
)

MUTANTS = (
    Mutant(
        "native-unclosed-call-runs",
        "models/calls/as_json.py",
        "yield Span(start, end, (replace(found, error=found.error or why),))",
        "yield Span(start, end, (found,))",
        "a call whose tag is not closed is run, since its JSON happens to be whole",
        (OPEN, CUT),
    ),
    Mutant(
        "native-cut-json-message-runs",
        "models/calls/as_json.py",
        'cut = finish != "end" and after == len(text)',
        'cut = finish == "stop_string" and after == len(text)',
        "the last call of a message that was cut is run where nothing but its end closes it",
        (CUT,),
    ),
    Mutant(
        "native-foreign-stop-closes",
        "models/calls/as_json.py",
        'if finish != "end" and end == len(text) else ""',
        'if finish == "length" and end == len(text) else ""',
        "a stop string of somebody else closes a call",
        (STOPPED,),
    ),
    Mutant(
        "native-calls-of-thoughts",
        "models/calls/markup.py",
        "for one in (THOUGHT, *marks)",
        "for one in marks",
        "a call that a model only thinks of is run",
        (THOUGHT,),
    ),
    Mutant(
        "native-thought-of-the-prompt",
        "models/calls/markup.py",
        "at = past_thoughts(text, 0) if self.thinks else 0",
        "at = 0",
        "a thought that the prompt has opened is read as what the model says",
        (THOUGHT,),
    ),
    Mutant(
        "native-nameless-calls",
        "models/calls/markup.py",
        "if not isinstance(name, str) or not name:",
        "if not isinstance(name, str):",
        "a call without a name is not told what is wrong with it",
        (BROKEN,),
    ),
    Mutant(
        "native-calls-end-at-the-first-tag",
        "models/calls/as_json.py",
        "            value, end = read_value(text, at)\n"
        "        except ValueError as error:\n            yield self._broken(",
        "            value, end = read_value(text[: text.find(self.closing, at)], at)\n"
        "        except ValueError as error:\n            yield self._broken(",
        "a closing tag in an argument ends its call",
        (IN_TEXT,),
    ),
    Mutant(
        "native-values-are-guessed",
        "models/calls/as_xml.py",
        '    if kinds == ("string",):\n        return value\n',
        "",
        "a text that looks like a number becomes one",
        (TYPED,),
    ),
    Mutant(
        "native-syntax-without-its-arguments",
        "models/native.py",
        "[(one.name, json.loads(one.arguments)) for one in found] == list(CALLS[:count])",
        "[one.name for one in found] == [name for name, _ in CALLS[:count]]",
        "a syntax is chosen that reads other arguments than the template writes",
        (REFUSED,),
    ),
    Mutant(
        "native-ids-of-any-length",
        "models/native.py",
        'return f"call{place:05}" if long else call_id(place)',
        "return call_id(place)",
        "a template that wants ids of nine characters refuses the dialogue",
        (CHOSEN,),
    ),
    Mutant(
        "native-tools-not-in-the-request",
        "rollout/branches.py",
        "Prompt(self.tree, at.node, actor, shown, seed, draw, offered, stop, self.task)",
        "Prompt(self.tree, at.node, actor, shown, seed, draw, (), stop, self.task)",
        "agents are not told of their tools",
        (OFFERED,),
    ),
    Mutant(
        "tags-by-the-template-too",
        "tools/native.py",
        "return tools if isinstance(syntax, NativeCalls) else ()",
        "return tools",
        "a template teaches another way to call than the prompt",
        (OFFERED,),
    ),
    Mutant(
        "native-tools-not-rendered-again",
        "trajectories/view.py",
        "render(messages, tree, agent, tools=request.tools)",
        "render(messages, tree, agent)",
        "a prompt that is made again has no tools",
        (AGAIN,),
    ),
    Mutant(
        "native-turns-written-again",
        "models/chat.py",
        "        if turn.ids:\n",
        "        if False:\n",
        "what a model said is written anew from its calls",
        (AS_SAMPLED,),
    ),
    Mutant(
        "native-tools-not-defused",
        "models/chat.py",
        'return self._slot(text, "tool", "the description of a tool").text',
        "return text",
        "a tool's description spells control tokens",
        (SAFE,),
    ),
    Mutant(
        "native-markup-of-ones-own-broken-up",
        "models/chat.py",
        "self.control.keep(self.tools.markup.union(self.control.written(opened)))",
        "self.control.keep(self.control.written(opened))",
        "a call that a template shows anew has no tags",
        (THOUGHTS,),
    ),
    Mutant(
        "thought-of-the-prompt-not-shown-again",
        "models/chat.py",
        "self._opener = self._opened_thought()",
        "self._opener: tuple[Slot, ...] = ()",
        "a thought that the prompt opened is not open in later prompts",
        (THOUGHTS, AS_SAMPLED),
    ),
    Mutant(
        "native-words-after-results-lost",
        "models/chat.py",
        'replace(last, slots=(*last.slots, Slot("\\n\\n"), *one.slots))',
        "last",
        "what is said right after results is not shown",
        (f"{READ}test_words_of_a_user_right_after_results_are_shown_by_every_template",),
    ),
    Mutant(
        "native-results-by-name",
        "trajectories/calls.py",
        "return tuple(found[at] for at in sorted(found))",
        "return tuple(found[at] for at in sorted(found, key=str))",
        "results of twelve calls are in the order of their names as text",
        (ORDER, ANSWERED),
    ),
    Mutant(
        "native-calls-of-others-not-shown",
        "models/chat.py",
        "return replace(shown, calls=tuple(safe_call(one, safe) for one in turn.calls), call_ids=ids)",
        "return shown",
        "the calls of an endpoint are not in the prompts of who comes after it",
        (WRITTEN,),
    ),
    Mutant(
        "tags-split-inside-an-escape",
        "tools/tags.py",
        'rf"(?<!\\\\){re.escape(separator)}"',
        "re.escape(separator)",
        "a sign that is escaped divides a call in two",
        ("tests/test_tags.py::test_tags_are_calls",),
    ),
    Mutant(
        "inline-ends-the-turn",
        "models/chat.py",
        "begun = chat.pop().slots if generation and chat and _goes_on(chat[-1]) else ()",
        "begun = ()",
        "a turn that goes on after a result begins anew",
        (f"{INLINE}test_a_prompt_goes_on_after_the_call_with_the_result_alone",),
    ),
    Mutant(
        "inline-after-an-end",
        "models/chat.py",
        "(turn is not None and turn.ids[-1] not in self.end_ids)",
        "turn is not None",
        "a result is put behind an end of turn, as if the agent said it",
        (f"{INLINE}test_after_an_end_of_turn_a_result_is_a_users_message",),
    ),
    Mutant(
        "served-stream-leaks",
        "engines/serving/streams.py",
        "        text = engine.loaded.renderer.tools.required().settled(text)\n",
        "",
        "a client is streamed the markup of a call as text",
        (f"{SERVED}test_a_stream_leaks_nothing_of_a_call",),
    ),
    Mutant(
        "served-half-calls",
        "engines/serving/chats.py",
        "if calls and not any(call.error for call in calls):",
        "if calls:",
        "a client is given a call that is cut or broken",
        (f"{SERVED}test_what_is_no_whole_call_is_text",),
    ),
    Mutant(
        "endpoint-cut-call-runs",
        "rollout/samplers.py",
        'last = len(reply.calls) - 1 if reply.finish == "length" else -1',
        "last = -1",
        "a call that an endpoint cut off is run",
        (f"{TEXT}test_the_last_call_of_a_reply_that_was_cut_off_is_not_run",),
    ),
    Mutant(
        "endpoint-ids-of-one-message",
        "rollout/samplers.py",
        "            asked += 1\n",
        "            asked = 1\n",
        "calls of two messages have the same ids at an endpoint",
        (f"{TEXT}test_calls_that_an_endpoint_makes_are_run_and_sent_back_with_their_results",),
    ),
)
