"""A program that opens its own sessions at `coterie gateway` and sends a reward for each (docs/howto/own-agent.md).

python examples/recorded.py
"""

import os

import httpx2
from openai import OpenAI

url = os.environ["OPENAI_BASE_URL"]
head = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
for number in range(32):
    a, b = number % 8 + 1, 3
    question = f"What is {a} + {b}?"
    session = httpx2.post(f"{url}/sessions", headers=head, json={"task": question}).json()
    client = OpenAI(base_url=session["base_url"], api_key=session["api_key"])
    reply = client.chat.completions.create(
        model=session["models"][0], messages=[{"role": "user", "content": question}]
    )
    text = reply.choices[0].message.content or ""
    result = {"reward": float(str(a + b) in text), "result": text}
    ended = f"{url}/sessions/{session['id']}/result"
    httpx2.post(ended, headers=head, json=result, timeout=60).raise_for_status()
