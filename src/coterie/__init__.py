"""coterie: post-train language-model agents that work in company.

One loop (rollout, reward, select, train, evaluate, again) over one record of trees of turns.
The floors, from the bottom: ``config``, ``trajectories``, ``models``, ``engines``, ``environments``,
``rollout``, ``rewards``, ``selection``, ``training``, ``evaluation``, ``runs``, ``recipes``,
``reports``, ``cli``. See ``docs/architecture.md``.
"""

__version__ = "0.1.0"
