"""coterie: post-train language-model agents that work with others.

One loop (rollout, reward, select, train, evaluate, again) over one record of trees of turns.
The floors, from the bottom: ``config``, ``datasets``, ``trajectories``, ``models``, ``engines``, ``environments``,
``rollout``, ``rewards``, ``selection``, ``training``, ``evaluation``, ``runs``, ``recipes``,
``reports``, ``cli``. See ``docs/architecture.md``.
"""

import os

# Threads that spin long while they wait starve each other where cores are shared (sampling was measured
# 4 to 10 times slower beside another process), and threads that sleep at once lose a third of the speed
# where they are not. A thousand turns are a few microseconds. Read when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

__version__ = "0.1.0"
