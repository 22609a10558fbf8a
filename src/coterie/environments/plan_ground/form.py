"""Forms of plans: all at once, or subgoal by subgoal."""

from typing import Literal

Form = Literal["onetime", "iterative"]
