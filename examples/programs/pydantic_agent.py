"""An agent of Pydantic AI with tools.
pip install 'pydantic-ai-slim[openai]'
coterie run rl/grpo environment=program environment.agent=examples/programs/pydantic_agent.py:run \
    dataset=problems.jsonl environment.reward=math model=Qwen/Qwen3-0.6B"""

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits

SYSTEM = "Solve the problem with the tools. Then write only the number."
agent = Agent(instructions=SYSTEM, retries=2)


@agent.tool_plain
def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


@agent.tool_plain
def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers."""
    return a * b


async def run(task, session):
    provider = OpenAIProvider(base_url=session.base_url, api_key=session.api_key)
    model = OpenAIChatModel(session.models[0], provider=provider)
    limits = UsageLimits(request_limit=8)
    result = await agent.run(task["question"], model=model, usage_limits=limits)
    return result.output
