"""``coterie gateway``: answer the model calls of programs that are started elsewhere, and record their episodes."""

import json
from pathlib import Path
from typing import Annotated

import typer

from coterie.terminal import ConsoleProgress, Overrides, notes


def gateway(
    overrides: Overrides = None,
    roles: Annotated[
        str | None,
        typer.Option(
            help="Names of the models, such as planner,checker. Each is a role. NAME=MODEL has a model of its own."
        ),
    ] = None,
    folder: Annotated[
        Path, typer.Option(help="Run folder of the record. An existing one is continued.")
    ] = Path("runs/gateway"),
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free port.")
    ] = 0,
) -> None:
    """Answer the model calls of programs that you start yourself, and record their episodes, until Ctrl-C.

    A program opens a session by POST /sessions, gives its client the session's URL and key, and ends it by POST
    /sessions/ID/result with a reward. docs/howto/own-agent.md has an example, and how to train on the record.

    Example:

        coterie gateway model=tiny-acts --roles planner,checker --folder runs/recorded
    """
    from coterie.cli.arguments import check_sources, stored_settings
    from coterie.cli.report import write_report
    from coterie.cli.serve import listener_on
    from coterie.environments.gateway import Gateway
    from coterie.recipes.gateway_record import ROLLOUT, GatewayRecord
    from coterie.recipes.registry import policy_of, settings
    from coterie.runs.loop import run_stages
    from coterie.runs.run import open_run

    console, recipe_name = notes(), "gateway_record"
    changes = list(overrides or [])
    if roles:
        pairs = [role.strip().partition("=") for role in roles.split(",")]
        names = [name for name, _, _ in pairs]
        models = {name: policy_of(model) for name, _, model in pairs if model}
        changes += [f"environment.roles=[{','.join(names)}]", f"models={json.dumps(models)}"]
    recipe = GatewayRecord(settings(recipe_name, changes, stored_settings(recipe_name, folder)))
    check_sources(recipe.settings)

    def tell(opened: Gateway, key: str) -> None:
        print(f"export OPENAI_BASE_URL={opened.url}/v1\nexport OPENAI_API_KEY={key}", flush=True)
        actors = ", ".join(recipe.environment.actors)
        console.print(f"recording {actors} in {folder} (Ctrl-C ends it); open a session with:")
        console.print(
            '  curl -X POST $OPENAI_BASE_URL/sessions -H "Authorization: Bearer $OPENAI_API_KEY"'
        )

    recipe.listener, recipe.on_open = listener_on(port), tell
    with recipe.listener, open_run(folder, recipe_name, recipe.settings) as run:
        # The stage has ended before if the gateway is started again.
        if run.is_finished(ROLLOUT):
            run.store.remove(ROLLOUT.finished_key)
        run_stages(recipe, run, ConsoleProgress(console))
        count = run.metrics(ROLLOUT)["n"]
    write_report(folder)
    console.print(f"{count} episodes are recorded in {folder}; the same command adds more")
