"""GAP (arXiv 2510.25320; Parallel Agent Workflow Planning): plans as graphs of calls that run in parallel."""
