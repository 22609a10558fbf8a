"""A team of AutoGen with a task that needs both of its agents: ``left`` must write few words, ``right`` many."""

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient
from openai import DefaultAsyncHttpxClient

SHORT = 8
"""Maximum number of words of a short message."""
INFO = {
    "family": "unknown",
    "function_calling": False,
    "json_output": False,
    "structured_output": False,
    "vision": False,
}


HTTP = DefaultAsyncHttpxClient()
"""Connections of all episodes, which share an event loop: each new client would load certificates for 40 ms."""


async def run(task, session):
    """Return 1 if both agents write messages of the right length, else 0."""
    address = {"base_url": session.base_url, "api_key": session.api_key}
    agents = [
        AssistantAgent(
            name,
            OpenAIChatCompletionClient(model=name, model_info=INFO, http_client=HTTP, **address),
            system_message=task["question"],
        )
        for name in session.models
    ]
    result = await RoundRobinGroupChat(agents, max_turns=2).run()
    are_short = [len(message.content.split()) <= SHORT for message in result.messages]
    return float(are_short == [True, False])
