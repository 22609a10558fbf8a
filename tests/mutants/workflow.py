"""Faults of plans as graphs: how they are read, how they are run, and how the order of tags is checked."""

from tests.mutation.mutant import Mutant

PLAN, RUN, TAGS = (
    "tests/test_workflow_plan.py::",
    "tests/test_workflow_schedule.py::",
    "tests/test_workflow_segments.py::",
)
FOLDER = "environments/workflow/"
BROKEN = f"{PLAN}test_what_is_no_plan_says_what_and_where"
ODD = f"{PLAN}test_odd_spellings_are_read"
XML = f"{PLAN}test_the_xml_form_is_read_with_tools_and_placeholders"
ENTITY = f"{PLAN}test_an_entity_is_text_and_is_never_expanded"
GOES_ON = f"{PLAN}test_a_description_goes_on_in_the_next_line_and_ends_at_its_dependencies"
BARRIER = f"{RUN}test_levels_wait_for_each_other_and_tasks_as_soon_as_possible_do_not"
WIDTH = f"{RUN}test_so_many_tasks_run_at_the_same_time_and_no_more"
FAILED = f"{RUN}test_what_waits_for_a_failed_task_is_not_run_and_the_rest_is"
BUDGET = f"{RUN}test_tasks_beyond_the_budget_are_answered_as_not_run"
AWAY = f"{RUN}test_a_tool_that_is_away_ends_the_plan_and_leaves_nothing_running"
TIMES = f"{RUN}test_serial_time_is_the_sum_and_critical_time_the_longest_chain"
FOUND = f"{TAGS}test_segments_are_found"
RIGHT = f"{TAGS}test_what_follows_the_rules_has_no_violations"
WRONG = f"{TAGS}test_each_violation_is_counted_once"


def _plan(name: str, find: str, replace: str, breaks: str, test: str) -> Mutant:
    return Mutant(f"workflow-{name}", f"{FOLDER}plan.py", find, replace, breaks, (test,))


def _written(name: str, find: str, replace: str, breaks: str, test: str) -> Mutant:
    return Mutant(f"workflow-{name}", f"{FOLDER}written.py", find, replace, breaks, (test,))


def _schedule(name: str, find: str, replace: str, breaks: str, test: str) -> Mutant:
    return Mutant(f"workflow-{name}", f"{FOLDER}schedule.py", find, replace, breaks, (test,))


def _segments(name: str, find: str, replace: str, breaks: str, test: str) -> Mutant:
    return Mutant(f"workflow-{name}", f"{FOLDER}segments.py", find, replace, breaks, (test,))


MUTANTS = (
    _plan("cycle-accepted", "self.sorter().prepare()", "self.sorter()", "a plan may have a cycle", BROKEN),
    _plan("ids-twice", "if task.id in seen:", "if not task.id:", "two tasks may have one id", BROKEN),
    _plan("unknown-dependency", "if other not in known:", "if not other:", "a plan waits for no task", BROKEN),
    _plan("unbound-placeholder", "if unbound is not None:", 'if unbound == "":', "a placeholder stays unbound", BROKEN),
    _written("dependencies-of-one", "found[f\"T{int(name[1])}\"] = None", "found = {f\"T{int(name[1])}\": None}",
             "only the last dependency counts", f"{PLAN}test_the_trained_form_is_read_as_a_graph"),
    _written("case-matters", 'r"T([0-9]{1,6})", re.IGNORECASE', 'r"T([0-9]{1,6})"', "t1 is no id", ODD),
    _written("prose-in-task", "ids and after[-1] is None and said", "ids and said", "prose becomes a task", GOES_ON),
    _written("lone-ampersand", '_LONE.sub("&amp;", ', '_LONE.sub("&", ', "a query can't have an &", XML),
    _written("entity-left-out", '_LONE.sub("&amp;", ', '_LONE.sub("", ', "an entity disappears", ENTITY),
    _written("quotes-kept", "argument = argument[1:-1]", "argument = argument[0:]", "a query has its quotes", XML),
    _schedule("level-too-early", "not barrier or not (waiting or running)", "not barrier or not waiting",
              "a level begins before the one before it has ended", BARRIER),
    _schedule("always-barrier", "if not barrier or not (", "if not (", "fast tasks wait for slow ones", BARRIER),
    _schedule("width-over", "len(running) < limits.width", "len(running) <= limits.width", "one too many", WIDTH),
    _schedule("runs-after-failure", 'if found[other].state != "done":', 'if found[other].state == "not run":',
              "a task runs with an error as its input", FAILED),
    _schedule("budget-one-more", "plan.order[: limits.calls]", "plan.order[: limits.calls + 1]",
              "one call more than allowed", BUDGET),
    _schedule("left-running", "await asyncio.gather(*running, return_exceptions=True)", "running.clear()",
              "tasks go on after the plan has ended", AWAY),
    _schedule("critical-is-serial", "begin + took[id_]", "sum(ends.values()) + took[id_]",
              "chains are added up", TIMES),
    _segments("tag-in-observation", 'opened[2] == "observation" and', 'opened[2] == "plan" and',
              "a tag in a result counts as the model's", FOUND),
    _segments("unclosed-dropped", "end(len(text), len(text), False)", "pass", "the last open tag is lost", FOUND),
    _segments("thinks-for-each-call", "and not beside and", "and", "side-by-side calls each need a thought", RIGHT),
    _segments("answers-early", '"suggested_answer": ("double_check",)',
              '"suggested_answer": ("double_check", *_SEARCH)',
              "a suggested answer need not be checked", WRONG),
)  # fmt: skip
