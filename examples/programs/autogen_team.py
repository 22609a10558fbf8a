"""A team of AutoGen, each of whose two agents is a role with weights of its own.
pip install autogen-agentchat 'autogen-ext[openai]'
coterie run rl/grpo environment=program environment.agent=examples/programs/autogen_team.py:run \
    'environment.roles=[planner,checker]' dataset=problems.jsonl environment.reward=math \
    policies.weights=each train.method=lora model=Qwen/Qwen3-0.6B"""

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination, TextMentionTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

INFO = {
    "family": "unknown",
    "function_calling": True,
    "json_output": False,
    "structured_output": False,
    "vision": False,
}
PLANNER = "Write the calculation that solves the problem, such as 3 * 14 - 5. Correct it if asked."
CHECKER = "Check the calculation with the tool. Then write DONE and the number, or the mistake."


def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers."""
    return a * b


async def run(task, session):
    clients = {
        name: OpenAIChatCompletionClient(
            model=name, base_url=session.base_url, api_key=session.api_key, model_info=INFO
        )
        for name in ("planner", "checker")
    }
    planner = AssistantAgent("planner", clients["planner"], system_message=PLANNER)
    checker = AssistantAgent(
        "checker",
        clients["checker"],
        tools=[multiply],
        system_message=CHECKER,
        reflect_on_tool_use=True,  # a second reply, which has seen the result
    )
    done = TextMentionTermination("DONE", sources=["checker"]) | MaxMessageTermination(7)
    team = RoundRobinGroupChat([planner, checker], termination_condition=done)
    result = await team.run(task=task["question"])
    for client in clients.values():
        await client.close()
    return result.messages[-1].to_text().partition("DONE")[2].strip()
