"""``coterie chat``: a person talks with a model, or with what a run has trained, in the terminal."""

from typing import Annotated

import typer

Source = Annotated[
    str,
    typer.Argument(
        metavar="RUN|MODEL", help="A run folder; or a packaged model, a folder, a hub name."
    ),
]
Task = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Of a run: begin as its agent does with this held-out task (0, 1, ...), under the "
        "prompt of the environment.",
    ),
]
Iteration = Annotated[
    int | None,
    typer.Option(help="Of a run: the policy that this iteration began with; default: the newest."),
]
Tools = Annotated[
    str,
    typer.Option(
        help="What the model may call, such as python, or path/file.py:NAME; several with commas."
    ),
]
ToolWords = Annotated[
    list[str] | None,
    typer.Option(
        "--tool", metavar="KEY=VALUE", help="A key of the group tools, such as calls=tags."
    ),
]
Device = Annotated[
    str | None, typer.Option(help="auto, cpu, cuda, cuda:1; default: the run's, or auto.")
]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Settings of the engine, such as 'engine.template_args={enable_thinking: false}'.",
    ),
]


def chat(
    source: Source,
    words: Words = None,
    task: Task = None,
    system: Annotated[str, typer.Option(help="What the model is told beforehand.")] = "",
    iteration: Iteration = None,
    tools: Tools = "",
    tool_word: ToolWords = None,
    temperature: Annotated[float, typer.Option(min=0, max=2, help="0 is greedy.")] = 0.7,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a reply.")] = 512,
    seed: Annotated[int | None, typer.Option(min=0, help="For the same replies again.")] = None,
    device: Device = None,
) -> None:
    """Talk with a model, or with the policy of a run. Ctrl-C or Ctrl-D ends it; `/new` begins anew.

    Without a terminal each line of standard input is a message, and each reply is printed.

    Examples:

        coterie chat smollm2

        coterie chat runs/optima-isft --task 3

        echo 'What is a tree?' | coterie chat smollm2 --temperature 0

        coterie chat Qwen/Qwen3-4B --tools python,examples/tool.py:multiply

        coterie chat smollm2 --tools python --tool calls=tags

        coterie chat Qwen/Qwen3-4B 'engine.template_args={enable_thinking: false}'
    """
    from coterie.cli.chatting import Manner, talk, tools_of

    manner = Manner(temperature, max_tokens, seed, system, task)
    own = [*(words or ()), *([] if device is None else [f"engine.device={device}"])]
    talk(source, iteration, own, manner, tools_of(tools, tool_word or ()))
