"""An agent written with plain openai, which calls tools until it knows the answer.
pip install openai
coterie run rl/grpo environment=program environment.agent=examples/programs/openai_tools.py:run \
    dataset=problems.jsonl environment.reward=math model=Qwen/Qwen3-0.6B"""

import json

from openai import OpenAI

SYSTEM = "Solve the problem with the tools. Then write only the number."
NUMBERS = {"a": {"type": "integer"}, "b": {"type": "integer"}}
FUNCTIONS = {"add": lambda a, b: a + b, "multiply": lambda a, b: a * b}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name.capitalize()} two whole numbers.",
            "parameters": {"type": "object", "properties": NUMBERS, "required": ["a", "b"]},
        },
    }
    for name in FUNCTIONS
]


def result_of(call):
    try:
        return str(FUNCTIONS[call.function.name](**json.loads(call.function.arguments)))
    except (KeyError, TypeError, ValueError) as error:
        return f"Error: {error}"


def run(task, session):
    client = OpenAI(base_url=session.base_url, api_key=session.api_key)
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": task["question"]},
    ]
    for _ in range(6):
        completion = client.chat.completions.create(
            model=session.models[0], messages=messages, tools=TOOLS
        )
        message = completion.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result_of(call)})
    return ""  # no answer in six steps: the reward is 0
