"""``coterie export model``: the weights that a run has trained, with tokenizer and model card, for others to load."""

from pathlib import Path
from typing import Annotated

import typer


def export_model(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    out: Annotated[Path, typer.Option(help="Folder to make.")],
    merge: Annotated[
        bool, typer.Option("--merge", help="Merge a LoRA adapter into its base: a whole model.")
    ] = False,
    push: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Also upload it to the Hugging Face hub, as OWNER/NAME."),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Make the repository of --push private.")
    ] = False,
    role: Annotated[
        str | None, typer.Option(help="Which of the run's models; default: the policy.")
    ] = None,
    iteration: Annotated[
        int | None,
        typer.Option(help="The version that this iteration began with; default: the newest."),
    ] = None,
) -> None:
    """Write the weights and the tokenizer of a run's last policy, with a model card.

    The folder can be given as `model=` to coterie, and to Transformers (an adapter to PEFT). --push needs a
    token: `hf auth login`, or the variable HF_TOKEN.

    Examples:

        coterie export model runs/optima-isft --out mine

        coterie export model runs/lora --out mine --merge

        coterie export model runs/optima-isft --out mine --push me/mine --private
    """
    from coterie.cli.exporting import Export, export

    export(Export(folder, out, merge, role, iteration), push, private=private)
    print(out)
