"""A random sample of faults that nobody thought up: mutmut's operators on the modules named here.

mutmut makes the edits; they are run as those of ``tests/mutants`` are, against the test files that
concern the changed module. What only changes words for a person is left out (texts with a space in them,
what is raised), and so is what stands outside functions and classes, as with mutmut itself.

Each folder gives equally many. Which ones depends on a hash of each, so that a change of the code
elsewhere draws no others.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import libcst as cst
from libcst import matchers
from mutmut.mutation.file_mutation import Mutation, create_mutations

from tests.mutation.mutant import PACKAGE

LOSSES = (
    "tests/test_step_critic_losses.py",
    "tests/test_value_head.py::test_losses_of_given_values_are_those_worked_out_by_hand",
    "tests/test_value_head.py::test_loss_and_gradients_are_the_naive_ones_for_any_micro_batch",
    "tests/test_value_head.py::test_what_cannot_be_trained_with_a_head_is_refused",
    "tests/contract/test_05_preferences.py::test_the_loss_is_that_of_the_own_tokens_of_every_turn",
    "tests/contract/test_05_preferences.py::"
    "test_pairs_that_cannot_be_trained_are_dropped_and_counted_or_refused",
    "tests/test_training.py::test_loss_is_one_weighted_mean_over_the_step",
    "tests/test_training.py::test_a_weight_that_is_negative_or_not_a_number_is_refused",
    "tests/test_training.py::test_items_of_one_group_are_drawn_into_one_step",
    "tests/test_training.py::"
    "test_every_row_is_seen_once_per_epoch_and_the_order_is_that_of_the_seed",
    "tests/test_value_head.py::test_a_bias_that_cancels_is_left_alone",
)
OPTIMA = (
    "tests/test_presets.py",
    "tests/test_optima_algorithm.py",
    "tests/test_optima.py",
    "tests/test_optima_dpo.py",
)
SWEET = (
    "tests/test_presets.py",
    "tests/sweet/test_steps.py",
    "tests/sweet/test_candidates.py",
    "tests/test_step_critic.py",
    "tests/test_sweet_rl.py",
)
SWEET_FILES = ("test_sweet_files.py", "test_sweet_import.py", "test_sweet_preferences.py")
SERVED = "tests/test_reinforce_servers.py::"
CONCERNED = {
    "training/sft.py": LOSSES,
    "training/dpo.py": LOSSES,
    "training/classifier.py": LOSSES,
    "training/regression.py": LOSSES,
    "training/sides.py": LOSSES,
    "rewards/judge.py": ("tests/test_rewards.py", "tests/test_step_critic.py"),
    "rewards/step_critic.py": ("tests/test_rewards.py", "tests/test_step_critic.py"),
    "rewards/": ("tests/test_rewards.py", "tests/test_optima.py"),
    "selection/demonstrations.py": ("tests/test_selection.py",),
    "selection/pairs.py": ("tests/test_pairs.py",),
    "selection/ranked.py": ("tests/test_ranked.py",),
    "recipes/optima/files/": tuple(
        f"tests/test_original_{name}.py" for name in ("names", "files", "pairs")
    ),
    "recipes/sweet_rl/files/": tuple(f"tests/{name}" for name in SWEET_FILES),
    "recipes/optima/": OPTIMA,
    "recipes/sweet_rl/": SWEET,
    "recipes/base.py": (*OPTIMA, *SWEET[1:]),
    "recipes/trainings.py": (*OPTIMA, *SWEET[1:]),
    "recipes/plan.py": (
        f"{SERVED}test_adapters_for_which_servers_have_no_room_are_refused_before_the_run",
        *OPTIMA,
        *SWEET[1:],
    ),
    "recipes/registry.py": ("tests/test_bad_input.py", *OPTIMA, *SWEET[1:]),
    "recipes/presets.py": ("tests/test_presets.py",),
}
"""By the beginning of a module's path: the tests that concern it, the fast ones first."""
LEFT_OUT = ("claims", "commands", "description", "report", "run_critic")
"""By the beginning of a module's name: what runs and shows recipes and belongs to no algorithm."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """One edit of mutmut's."""

    by_hand: ClassVar[bool] = False
    name: str
    """A hash of what it is, the same as long as its function stays."""
    file: str
    where: str
    """Function or class."""
    module: cst.Module
    mutation: Mutation
    tests: tuple[str, ...]

    def text(self) -> str:
        """The file with the fault in it."""
        changed = self.module.deep_replace(self.mutation.original_node, self.mutation.mutated_node)
        return cst.ensure_type(changed, cst.Module).code

    @property
    def breaks(self) -> str:
        """The edit, in one line."""
        before, after = (
            " ".join(_code(node).split())
            for node in (self.mutation.original_node, self.mutation.mutated_node)
        )
        return f"{self.where}: {before} -> {after}"


def draw(count: int, seed: str) -> list[Drawn]:
    """So many edits, equally many of each folder."""
    found: dict[str, list[Drawn]] = defaultdict(list)
    for file, tests in _modules():
        found[file.partition("/")[0]] += _edits(file, tests)
    drawn: list[Drawn] = []
    for edits in found.values():
        edits.sort(key=lambda one: hashlib.sha256(f"{seed}/{one.name}".encode()).digest())
        drawn += edits[: count // len(found)]
    return drawn


def _modules() -> Iterator[tuple[str, tuple[str, ...]]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        tests = [tests for beginning, tests in CONCERNED.items() if file.startswith(beginning)]
        if tests and not path.name.startswith(LEFT_OUT):
            yield file, tests[0]


def _edits(file: str, tests: tuple[str, ...]) -> Iterator[Drawn]:
    path = PACKAGE / file
    module, mutations, *_ = create_mutations(str(path), path.read_text(encoding="utf-8"))
    raised = {
        id(node)
        for statement in matchers.findall(module, matchers.Raise())
        for node in matchers.findall(statement, matchers.MatchIfTrue(lambda _: True))
    }
    seen: Counter[tuple[str, str, str]] = Counter()
    for one in mutations:
        outer: cst.CSTNode | None = one.contained_by_top_level_function
        if outer is None or id(one.original_node) in raised or _changes_words(one):
            continue
        name = getattr(getattr(outer, "name", None), "value", "class")
        before, after = (_code(node) for node in (one.original_node, one.mutated_node))
        seen[name, before, after] += 1
        what = f"{file} {name} {before} {after} {seen[name, before, after]}"
        id_ = hashlib.sha256(what.encode()).hexdigest()[:10]
        yield Drawn(id_, file, name, module, one, tests)


def _changes_words(one: Mutation) -> bool:
    return _words(one.original_node) != _words(one.mutated_node)


def _words(node: cst.CSTNode) -> list[str]:
    """Texts below a node that are for a person."""
    texts = matchers.findall(node, matchers.SimpleString() | matchers.FormattedString())
    return sorted(code for code in map(_code, texts) if " " in code)


def _code(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)
