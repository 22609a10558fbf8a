"""Two agents of the OpenAI Agents SDK: the first hands problems over to the second, which has tools.
pip install openai-agents
coterie run rl/grpo environment=program environment.agent=examples/programs/openai_agents.py:run \
    'environment.roles=[triage,solver]' dataset=problems.jsonl environment.reward=math \
    policies.weights=each train.method=lora model=Qwen/Qwen3-0.6B"""

from agents import Agent, OpenAIProvider, RunConfig, Runner, function_tool


@function_tool
def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


@function_tool
def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers."""
    return a * b


solver = Agent(
    name="Solver",
    handoff_description="Calculates with tools.",
    instructions="Solve the problem with the tools. Then write only the number.",
    tools=[add, multiply],
    model="solver",
)
triage = Agent(
    name="Triage",
    instructions="Hand problems that need a calculation over. Answer others with a number.",
    handoffs=[solver],
    model="triage",
)


async def run(task, session):
    provider = OpenAIProvider(base_url=session.base_url, api_key=session.api_key)
    config = RunConfig(model_provider=provider, tracing_disabled=True)
    result = await Runner.run(triage, task["question"], run_config=config, max_turns=8)
    return result.final_output
