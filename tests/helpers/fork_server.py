"""Processes forked from one in which coterie and torch are imported: that saves five seconds each."""

import multiprocessing

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["coterie.cli.app", "coterie.cli.execution", "coterie.cli.evaluate", "coterie.engines.inprocess",
     "coterie.training.trainer", "coterie.recipes.optima", "coterie.recipes.sweet_rl"]
)  # fmt: skip
