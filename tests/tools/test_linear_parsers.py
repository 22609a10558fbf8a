"""Parsers of what policies write: twice the text takes at most about twice the time, whatever the text."""

import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from coterie.datasets.problems import boxed_answer
from coterie.datasets.web_pages import elements, outline, page_in, text_of
from coterie.environments import acting, baselines, collaboration, grading, qa_metrics
from coterie.environments.code_blocks import code_of, python_blocks
from coterie.environments.coding import functions
from coterie.environments.plans.plan_ground import subgoals_in
from coterie.environments.user_simulator import cut_reply, quotes
from coterie.environments.workflow.agent import read_judgement
from coterie.environments.workflow.plan_graph import BrokenPlan, final_answer, parse_plan, scan
from coterie.models.call_syntaxes import SYNTAXES
from coterie.rewards.critics import read_correction
from coterie.tools.actions import executors, grammar
from coterie.tools.builtin import split_fences
from coterie.tools.calls import Tag, Tags
from coterie.tools.contest import same_output, same_value
from coterie.tools.render import inline_resources
from coterie.tools.web import plain_url

CHARACTERS = 10_000
NEGLIGIBLE = 0.01
"""Seconds of CPU that nobody notices. A quadratic parser takes 0.05 to 10 s for so many characters."""
TAGS = Tags({"search": Tag("query", "|"), "code": Tag("code")})


def plan(text: str) -> None:
    with suppress(BrokenPlan):
        parse_plan(text)


def read_calls(text: str) -> None:
    TAGS.parse(text, "length")


SIGNS = (
    "{",
    "[",
    "(",
    '"',
    "'",
    "\\",
    '\\"',
    "`",
    "```",
    "1",
    "a ",
    " ",
    "\n",
    "<",
    "{}",
    '{"a":',
    "1,",
    "= '",
)
"""Beginnings of what no parser finds the end of."""
PARSERS: dict[str, tuple[Callable[[str], object], tuple[str, ...]]] = {
    "pages": (page_in, ("<html ", "<html>", "<body>", "</html")),
    "text of pages": (text_of, ("<b>", "<div>x", "<b></p>", "<html ", "<!--", "<a b='", "&", "<p>", "<script>")),
    "elements": (elements, ("<b>", "<b></p>", " a=1", "<table><tr><td>")),
    "outlines": (lambda text: outline(text, 1500), ("<b>", "<div class=x>x")),
    "resources": (inline_resources, ("<link ", "<script ", "<script>", "https://picsum.photos/1/")),
    "tags": (read_calls, ("<search>", "<answer>", "</answer><answer>", "<code>")),
    "boxes": (boxed_answer, ("\\boxed{", "\\boxed ")),
    "numbers": (grading.number, ("1.", "one ", "1 1/2 ", "dollars ")),
    "mathematics": (grading.spelling, ("\\frac", "\\text{", "1.1", "0.\\overline{1}", "\\left(")),
    "exact match": (lambda text: qa_metrics.exact_match(text, ["a"]), ("a, ",)),
    "marked answers": (qa_metrics.marked_answer, ("<A>", "</A")),
    "messages": (collaboration.answer_in, ("OUTPUT:", collaboration.MARKER, '"""', "'''", "r'", "\\'", "#")),
    "code": (code_of, ("```python\n", '"""', "\\'")),
    "blocks": (python_blocks, ("```\n", "```python\n", '\\"""')),
    "functions": (functions, ("(", "def f():\n", "x = ")),
    "actions": (acting.read, ("Action:\n", "Answer:", "\nEnd Action")),
    "ReAct": (baselines.read_react, ("Action: Act[", "\nAction: Act[", "]")),
    "plans": (plan, ("T1: ", "\nT1: ", "dependency: ", "{T1}")),
    "traces": (scan, ("<think>", "<plan>", "</think>")),
    "last answers": (lambda text: final_answer(text, lenient=True), ("<answer>", "answer is ", "</answer>")),
    "subgoals": (subgoals_in, ("Subgoal 1: ",)),
    "judgements": (read_judgement, ('{"judgement": ', "correct ")),
    "corrections": (read_correction, ("Corrected subgoals: ", "corrected actions:\n", "\n- ", "ACCEPT ")),
    "action lines": (grammar.parse, ("R1 = Tool(", "R1 = Tool('", "; R1 = ")),
    "lists": (executors.members, ("1, ", '"a', "(1")),
    "fences": (split_fences, ("```python\n", "```\n")),
    "addresses": (plain_url, ("[a](", "[", "](")),
    "outputs": (lambda text: same_output("1 2", text), ("1 2\n",)),
    "values": (lambda text: same_value("[1]", text), ("[1, ",)),
    "replies": (lambda text: cut_reply(text, 400), (". ", "a.")),
    "quotes": (lambda text: quotes(text, "secret " * 20), ("secret", "secr et", "se.cret and ")),
    **{
        name: (
            lambda text, syntax=syntax: syntax.parse(text, "length"),  # type: ignore[misc]
            (
                syntax.mark.replace("\\", ""), f"{syntax.wrapper}\n", syntax.closing or "a", "</think><think>", "to=",
                "<|start|>to=a", "<function=f>", "<function=f><parameter=a>", "<|tool_call>call:f{", '<|"|>',
                "<|tool_call_start|>f(a='", "<tool_call>f<arg_key>a</arg_key>", "<|tool_call_end|>",
                "<tool_call>{}</tool_call>",
            ),
        )
        for name, syntax in SYNTAXES.items()
    },
}  # fmt: skip


def seconds(parse: Callable[[str], object], text: str) -> float:
    """The CPU time of one call."""
    began = time.process_time()
    parse(text)
    return time.process_time() - began


def growth(parse: Callable[[str], object], unit: str) -> float:
    """How much longer twice the text takes; 1 if that is negligible. Other work on the machine makes it larger."""
    short, long = (unit * (size // len(unit)) for size in (CHARACTERS // 2, CHARACTERS))
    if seconds(parse, long) < NEGLIGIBLE:
        return 1
    ratios = []
    for _ in range(4):
        first, second = (min(seconds(parse, text) for _ in range(2)) for text in (short, long))
        ratios.append(second / max(first, 1e-4))
        if ratios[-1] <= 2.5:
            break
    return min(ratios)


@pytest.mark.parametrize("name", PARSERS)
def test_twice_the_text_takes_at_most_twice_the_time(name: str) -> None:
    parse, units = PARSERS[name]
    slow = {
        unit: ratio for unit in (*SIGNS, *units) if unit if (ratio := growth(parse, unit)) > 2.5
    }
    assert not slow
