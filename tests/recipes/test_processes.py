"""Processes that ``--dry-run`` lists."""

from coterie.recipes.processes import process_table
from coterie.recipes.registry import recipe, settings


def rows(*overrides: str) -> list[tuple[str, ...]]:
    made = recipe(settings("rl/grpo", ["environment=exchange", "gpu=H100", *overrides]))
    table = process_table(made, made.plan())
    return list(zip(*(column._cells for column in table.columns), strict=True))


def test_every_process_has_its_gpus_ports_and_memory() -> None:
    (driver,) = rows()
    assert driver[0] == "driver (store, environments, rewards, sampling, train)"
    assert driver[1:5] == ("1", "this machine", "0", "none")
    overrides = ("engine.kind=vllm", "engine.vllm.servers=2", 'engine.vllm.devices=["1,2","3,4"]')
    driver, servers = rows(*overrides, "engine.vllm.tensor_parallel_size=2")
    assert driver[0] == "driver (store, environments, rewards, train)"
    assert servers[:5] == ("vLLM server of policy", "2", "this machine", "1,2 and 3,4", "1 each")
    assert servers[5].startswith("67.1 GiB of each GPU"), "0.9 of 80 GB"
    urls = ("http://one:8000", "http://two:8000")
    _, *external = rows("engine.kind=vllm", f"engine.vllm.urls=[{','.join(urls)}]")
    assert [(row[2], row[4]) for row in external] == [("external", url) for url in urls]


def test_ranks_of_a_training_are_processes_of_their_own() -> None:
    made = recipe(settings("optima/isft", ["gpu=H100", "train.processes=4"]))
    table = process_table(made, made.plan())
    names = dict(zip(table.columns[0]._cells, table.columns[1]._cells, strict=True))
    assert names == {"driver (store, environments, rewards, sampling)": "1", "rank of train": "4"}
