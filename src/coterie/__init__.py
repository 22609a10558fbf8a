"""coterie: post-train language-model agents that work in company.

One loop (rollout, reward, select, train, evaluate, again) over one record of trees of turns.
The floors, from the bottom: ``config``, ``trajectories``, ``models``, ``engines``, ``environments``,
``rollout``, ``rewards``, ``selection``, ``training``, ``evaluation``, ``runs``, ``recipes``,
``reports``, ``cli``. See ``docs/architecture.md``.
"""

import os

# Threads that spin while they wait starve each other where cores are shared: measured here, sampling is 10
# times slower beside another busy process, and no faster on an idle machine. Read when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.1.0"
