"""``coterie serve model`` with a real vLLM."""

import signal

import psutil
from openai import OpenAI

from tests.serving import started
from tests.vllm.conftest import MODEL


def test_a_packaged_model_is_served_by_vllm_until_ctrl_c() -> None:
    words = ("--dtype", "float32", "--enforce-eager", "--max-num-seqs", "16")
    with started("model", MODEL, "--port", "0", "--", *words, logs=True) as (child, url):
        client = OpenAI(base_url=f"{url}/v1", api_key="none")
        asked = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}
        reply = client.chat.completions.create(**asked, n=2, max_tokens=8, logprobs=True)  # type: ignore[call-overload]
        assert len(reply.choices) == 2 and reply.choices[0].logprobs.content
        processes = psutil.Process(child.pid).children(recursive=True)
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 0
    assert len(processes) >= 3 and not any(process.is_running() for process in processes)
