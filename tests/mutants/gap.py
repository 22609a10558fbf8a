"""Faults of planning agents with tools, and of the recipe that trains them on traces."""

from tests.mutation.mutant import Mutant

PLAY, RECIPE = "tests/test_workflow_environment.py::", "tests/test_gap.py::"
WORLD = "environments/encyclopedia/environment.py"
TAGS = "tests/test_tags.py::"
TINY = "tests/test_gap_tiny.py::"
FOLDER, GAP = "environments/workflow/", "recipes/gap/"
GRAPH = f"{PLAY}test_a_graph_is_carried_out_with_results_in_the_place_of_placeholders"
TASKS = f"{PLAY}test_a_plan_of_tasks_is_measured_and_its_calls_are_made_as_tags"
BROKEN = f"{PLAY}test_a_graph_that_cannot_be_read_is_answered_and_the_agent_goes_on_by_tags"
ANSWERS = f"{PLAY}test_answers_are_read_alike_in_training_and_evaluation"
PROSE = f"{PLAY}test_a_judge_that_answers_prose_leaves_the_path_without_a_score"
EARLY = f"{PLAY}test_calls_before_their_tasks_can_have_been_done_are_counted"
ENDS = f"{PLAY}test_results_go_on_within_the_message_and_an_answer_ends_it"
NO_ANSWER = f"{PLAY}test_a_message_without_an_answer_ends_without_one"
WRONG = f"{RECIPE}test_wrong_answers_and_facts_that_were_not_found_are_not_learned"
WIDE = f"{PLAY}test_the_width_is_that_of_the_widest_message"
FORMS = f"{RECIPE}test_parallel_traces_take_fewer_rounds_than_sequential_ones"
FILE = f"{RECIPE}test_traces_of_a_file_are_learned_to_the_letter"
PIECES = f"{RECIPE}test_a_trace_in_pieces_is_the_trace"
LONG = f"{RECIPE}test_too_many_long_traces_are_refused_before_the_training"
ANYWHERE = f"{RECIPE}test_a_held_out_question_is_found_wherever_it_stands_in_a_prompt"
UNSAID = f"{RECIPE}test_a_trace_that_the_agent_could_not_have_said_is_named"
ASKED = f"{PLAY}test_what_a_graph_asks_is_asked_though_something_like_it_was_asked_before"
TOO_EARLY = f"{PLAY}test_only_the_calls_of_a_plan_can_be_too_early_for_it"
REFUSED = f"{RECIPE}test_what_cannot_work_is_refused_before_the_run"


def _play(name: str, file: str, find: str, replace: str, breaks: str, test: str) -> Mutant:
    return Mutant(f"gap-{name}", f"{FOLDER}{file}.py", find, replace, breaks, (test,))


def _recipe(name: str, file: str, find: str, replace: str, breaks: str, test: str) -> Mutant:
    return Mutant(f"gap-{name}", f"{GAP}{file}.py", find, replace, breaks, (test,))


MUTANTS = (
    _play("unbound", "with_plans", "arguments=syntax.written(call.name, text)",
          "arguments=call.arguments", "a placeholder stays in a query", GRAPH),
    _play("unknown-tool-runs", "with_plans", "if name not in self.calls:", "if not name:",
          "a node may call what is not a tool", GRAPH),
    _play("results-of-others", "with_plans", "_result(by_task[one.id].id, one, ran.get(one.id))",
          "_result(by_task[one.id].id, one, None)", "a result is what later tasks are given of it", GRAPH),
    _play("failure-is-done", "with_plans", "            raise ToolError(result.text)\n", "            pass\n",
          "tasks run on errors", GRAPH),
    _play("broken-graph-raises", "with_plans", "        except BrokenPlan as error:\n",
          "        except OSError as error:\n",
          "a graph that can't be read ends the dialogue", BROKEN),
    _play("answer-does-not-end", "agent", "                ANSWER,\n", "                None,\n",
          "sampling goes on after an answer", ENDS),
    _play("first-answer", "answers", "reversed(_TAG.findall(text))", "_TAG.findall(text)", "a draft counts", ANSWERS),
    _play("any-answer", "answers", "all(exact_match", "any(exact_match", "one right answer of many is enough", ANSWERS),
    _play("lenient-always", "answers", "if found is not None or not lenient:", "if found is not None:",
          "an answer needs no tag", ANSWERS),
    _play("f1-of-first", "answers", "for one in found) / len(found) if found", "for one in found[:1]) if found",
          "wrong answers besides do no harm", ANSWERS),
    _play("prose-is-wrong", "environment", 'return Grade(score, metrics)', 'return Grade(score or 0.0, metrics)',
          "a judge that can't be read makes the answer wrong", PROSE),
    _play("one-judgement", "judging", "TRIES = 2", "TRIES = 1", "a judge is not asked again", PROSE),
    _play("early-unseen", "measures", "return max(0, max(beyond, default=0))", "return 0",
          "calls before their turn are unseen", EARLY),
    _play("width-of-all", "measures", '"width": max((', '"width": min((',
          "the width is that of the narrowest message", WIDE),
    _play("broken-is-a-plan", "measures", "            broken += 1", "            broken += 0",
          "a plan is not missed", BROKEN),
    _play("cut-is-no-answer", "agent", "LENGTH if said.truncated else NO_ANSWER", "NO_ANSWER",
          "a message that was cut off is an end by choice", NO_ANSWER),
    _recipe("observation-apart", "told", 'Message(self.role if', 'Message("user" if',
            "what a file shows is a turn of its own, as no policy is shown it", FILE),
    _recipe("held-out-trained", "data", "if self.heldout_questions.asked_in(row.prompt):", "if not row.prompt:",
            "held-out questions are learned", FILE),
    _recipe("spaces-lost", "told", "before[len(own) :] + trace[start:after]", "trace[start:after]",
            "a trace is not what its file says", PIECES),
    _recipe("neighbours-apart", "told", "        if own or not said:", "        if True:",
          "an empty message is learned", PIECES),
    _recipe("wrong-answers-learned", "data", 'return "" if score else "the answer is not right"', 'return ""',
            "traces with wrong answers are learned", WRONG),
    _recipe("facts-unseen", "data", "if not self.environment.grounded(task, shown):", "if not shown:",
            "thoughts say what nobody found", WRONG),
    _recipe("lengths-unchecked", "data", "if too_long > allowed:", "if too_long > 1:",
          "most rows are dropped unseen", LONG),
    _recipe("context-unchecked", "data", 'check_length("train", s.train, context, found.longest_prompt)', "pass",
            "rows that the model can't take are found out late", REFUSED),
    _recipe("form-ignored", "data", ".messages(s.form)", '.messages("parallel")', "the baseline is no baseline", FORMS),
    Mutant("gap-splits-share", WORLD, "found = generate(split, start", 'found = generate("train", start',
           "held-out questions are training questions",
           (f"{TINY}test_tasks_of_a_later_draw_go_on_and_splits_share_nothing",)),
    Mutant("gap-grounded-by-one", WORLD, "for fact in self._questions[task.id].facts]",
           "for fact in self._questions[task.id].facts[:1]]", "one fact of many is enough",
           (f"{TINY}test_a_task_is_a_question_whose_entries_are_found_by_the_tool",)),
    Mutant("gap-no-delay", "environments/encyclopedia/tool.py", "max(0.0, self.delay -", "min(0.0, self.delay -",
           "a far search is near", (f"{TINY}test_a_call_takes_its_delay",)),
    _recipe("share-of-parallel", "claims", "HeldOut(share * one.score, 0)", "HeldOut(one.score, 0)",
            "any cut is enough", f"{TINY}test_a_cut_is_a_share_of_the_sequential_values"),
    _recipe("held-out-line-alone", "held_out", "for place in range(len(said))", "for place in range(1)",
            "a held-out question is learned where it does not begin the prompt", ANYWHERE),
    _recipe("unseen-signs", "held_out", 'unicodedata.category(sign) != "Cf"', "True",
            "a sign that nobody sees makes a held-out question another one", ANYWHERE),
    _recipe("unsayable-learned", "told", "if not text:", "if text is None:",
            "an empty message is learned", UNSAID),
    _recipe("other-tools-learned", "told", "is None or f\"</{ANSWER}>\" in text:", "is None and not text:",
            "calls of tools that are not there are learned", UNSAID),
    _recipe("answer-in-observation", "told", 'if last.endswith(f"</{ANSWER}>") and', "if not last or",
            "an observation's answer is the agent's", UNSAID),
    _recipe("failed-is-fast", "claims", 'float(one["rounds"]) if "rounds" in one else None',
            'float(one.get("rounds", 0))', "a dialogue that failed takes few rounds",
            f"{TINY}test_rounds_are_those_of_all_dialogues_that_did_not_fail"),
    _play("result-forges", "measures", "{inside(one.text, tag)}", "{one.text}",
          "what a result forges is the agent's", f"{PLAY}test_what_a_result_forges_is_no_violation_of_the_agent"),
    _play("graph-refused", "with_plans", "return self._graph(turn) is None and super()", "return super()",
          "a graph is not run since its texts are alike", ASKED),
    _play("graph-is-a-fault", "segments", '"wiki_search": ("wiki_search", "graph", ', '"wiki_search": ("wiki_search", ',
          "the form that the prompt asks for is against the rules", ASKED),
    _play("graph-together", "with_plans", "width = 1 if alone else", "width = 2 if alone else",
          "calls that change something run side by side",
          f"{PLAY}test_calls_that_change_something_run_one_after_the_other_in_a_graph_too"),
    _play("early-for-ever", "measures", "if (plan := one.plan) is not None:", "if not followed and (plan := one.plan):",
          "calls of a second plan are too early for the first", TOO_EARLY),
    _play("early-not-run", "measures", "not one.error or one.seconds > 0", "one is not None",
          "calls that were refused are too early", TOO_EARLY),
    _play("backslash-escapes", "trace", 'if found.endswith("\\\\") else', 'if found.endswith("|") else',
          "two queries become one", f"{PLAY}test_queries_are_read_as_they_were_written"),
    Mutant("gap-result-closes-its-tag", "tools/tags.py", "{inside(result.text, tag)}", "{result.text}",
           "what a passage forges is exported as what the agent said",
           (f"{TAGS}test_a_result_can_neither_close_its_tag_nor_open_another",)),
    Mutant("gap-calls-spent-unmade", "environments/with_tools.py",
           "held.calls + min(len(ran), self.settings.max_calls)", "held.calls + len(ran)",
           "calls that were not run are spent",
           (f"{PLAY}test_a_graph_spends_only_the_calls_that_it_makes",)),
)  # fmt: skip
