"""System prompts of GAP's search agents. The syntax of calls appends the description of the tools."""

from collections.abc import Mapping
from typing import Literal

from coterie.environments.workflow.plan import Plan, Task
from coterie.environments.workflow.segments import AgentKind
from coterie.environments.workflow.trace import Query, Trace

PlanForm = Literal["tasks", "graph", "none"]

_BEGINNING: Mapping[AgentKind, str] = {
    "mhqa": "You answer questions by searching an encyclopedia. Search even where you think that you know the answer.",
    "web": "You answer questions by searching the web and reading pages.",
}
SHORT: Mapping[AgentKind, str] = {
    "mhqa": "Plan, search the encyclopedia, and answer the question.",
    "web": "Plan, search the web, read pages, and answer the question.",
}
CLOSED = (
    "Answer the question from what you know, in as few words as possible, and write nothing else: "
    "<answer>your answer</answer>"
)
"""Prompt of agents without tools, which neither plan nor think."""
_TAGS = (
    "Write your work in these tags, and nothing outside of them:\n"
    "- <think>...</think>: your thoughts. Think before each of the other tags.\n"
    "{plan}"
    "{reflection}"
    "After a call you are shown its results in <observation>...</observation>. Never write an observation yourself.\n"
)
_PLANS: Mapping[PlanForm, str] = {
    "tasks": (
        "- <plan>...</plan>: before your first call, the tasks of the question. Two lines for each: its id and what "
        "it is to find, then the tasks that it has to wait for.\n"
        "T1: first fact\n- Dependencies: none\nT2: second fact\n- Dependencies: none\n"
        "T3: what follows from both\n- Dependencies: T1, T2\n"
        "Make the calls of tasks that wait for nothing at the same time, in one message. When you have their results, "
        "go on with the tasks that waited for them. Plan only what you have to look up.\n"
    ),
    "graph": (
        "- <graph>...</graph>: a plan that is carried out for you. A node is a call of a tool. It waits for the nodes "
        "in `depends`, and {id} in its text stands for the result of one of them. Nodes that wait for nothing run at "
        "the same time.\n"
        '<graph><node id="s1">wiki_search("first thing to find")</node> '
        '<node id="s2" depends="s1">wiki_search("a fact about {s1}")</node></graph>\n'
    ),
    "none": "",
}
_REFLECTIONS: Mapping[AgentKind, str] = {
    "mhqa": "- <reflection>...</reflection>: only when the results show that your plan is wrong. Then plan anew.\n",
    "web": (
        "- <reflection>...</reflection>: whether the results agree with each other, whether the tools help, and "
        "whether you are getting closer, each good, fair or poor. If one is poor, plan anew.\n"
        "- <suggested_answer>...</suggested_answer>: an answer that you have yet to check.\n"
        "- <double_check>...</double_check>: how sure the suggested answer is, from 1 to 4. From 3 on give it as your "
        "answer; below 3 plan anew.\n"
    ),
}


_EXAMPLE = Trace(
    Plan(
        (
            Task("T1", "where the band Low Tide was founded"),
            Task("T2", "where the band Glass Harbour was founded"),
            Task("T3", "whether that is the same town", ("T1", "T2")),
        )
    ),
    (
        (
            Query("T1", "Low Tide band founded in", "Low Tide was founded in Bergen."),
            Query("T2", "Glass Harbour band founded in", "Glass Harbour was founded in Leeds."),
        ),
    ),
    "no",
)
_FOUND = (
    "Low Tide is a folk band that was founded in Bergen in 1998.",
    "Glass Harbour is a rock band from England, founded in Leeds in 2004.",
)
_ASKED = "Were the bands Low Tide and Glass Harbour founded in the same town?"


def _example() -> str:
    """Return an example question with its trajectory."""
    said, answered = _EXAMPLE.messages("parallel")
    found = "\n".join(f"<observation>\n{one}\n</observation>" for one in _FOUND)
    return f"Question: {_ASKED}\n{said}\n{found}\n{answered}"


def instructions(agent: AgentKind, plans: PlanForm, *, example: bool = False) -> str:
    """Return the system prompt, without the tools; ``example`` adds a trajectory with a list of tasks."""
    work = _TAGS.format(plan=_PLANS[plans], reflection=_REFLECTIONS[agent])
    rule = "Answer with as few words as possible; several answers are divided by |."
    shown = f"\nThis is an example.\n{_example()}" if example else ""
    return f"{_BEGINNING[agent]}\n{work}{rule}{shown}"
