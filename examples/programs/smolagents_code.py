"""A code agent of smolagents: its actions are Python programs that call the tools.
pip install 'smolagents[openai]'
coterie run rl/grpo environment=program environment.agent=examples/programs/smolagents_code.py:run \
    dataset=problems.jsonl environment.reward=math model=Qwen/Qwen3-0.6B"""

from smolagents import CodeAgent, LogLevel, OpenAIModel, tool


@tool
def multiply(a: int, b: int) -> int:
    """
    Multiply two whole numbers.

    Args:
        a: First number.
        b: Second number.
    """
    return a * b


def run(task, session):
    model = OpenAIModel(
        model_id=session.models[0], api_base=session.base_url, api_key=session.api_key
    )
    # smolagents interprets the model's programs in this process and allows few imports; this is
    # no sandbox (executor_type="docker" is one).
    agent = CodeAgent(tools=[multiply], model=model, max_steps=6, verbosity_level=LogLevel.OFF)
    return str(agent.run(f"{task['question']} Give the number as the final answer."))
