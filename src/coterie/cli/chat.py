"""``coterie chat``: talk with a model or with the policy of a run in the terminal."""

from typing import Annotated

import typer


def chat(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN|MODEL", help="Run folder; or packaged model, model folder or hub name."
        ),
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Engine settings, such as engine.device=cpu or 'engine.template_args={enable_thinking: false}'.",
        ),
    ] = None,
    system: Annotated[str, typer.Option(help="System prompt.")] = "",
    iteration: Annotated[
        int | None,
        typer.Option(
            help="With a run: the policy at the start of this iteration; default: the newest."
        ),
    ] = None,
    tools: Annotated[
        str,
        typer.Option(
            help="Tools for the model, such as python or path/file.py:NAME, separated by commas."
        ),
    ] = "",
    tool_word: Annotated[
        list[str] | None,
        typer.Option(
            "--tool", metavar="KEY=VALUE", help="Setting of the group tools, such as calls=tags."
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(min=0, max=2, help="0 is greedy.")] = 0.7,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Maximum number of tokens of a reply.")
    ] = 512,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed for reproducible replies.")] = None,
) -> None:
    """Talk with a model, or with the policy of a run. Ctrl-C or Ctrl-D ends the chat; `/new` clears it.

    Without a terminal, each line of standard input is a message.

    Examples:

        coterie chat smollm2

        coterie chat runs/optima-isft

        echo 'What is a tree?' | coterie chat smollm2 --temperature 0

        coterie chat Qwen/Qwen3-4B --tools python,examples/tool.py:multiply

        coterie chat smollm2 --tools python --tool calls=tags

        coterie chat Qwen/Qwen3-4B 'engine.template_args={enable_thinking: false}'
    """
    from coterie.cli.conversation import ChatOptions, parse_tools, talk

    options = ChatOptions(temperature, max_tokens, seed, system)
    talk(source, iteration, words or (), options, parse_tools(tools, tool_word or ()))
