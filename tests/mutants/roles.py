"""Faults of roles and of stages."""

from tests.mutation.mutant import Mutant

TWO = "tests/test_two_roles.py::"
VERSIONS = f"{TWO}test_each_role_has_its_own_versions_and_says_its_own_turns[whole]"
GOES_ON = f"{TWO}test_an_adapter_goes_on_from_the_last_one_and_its_base_stays[adapters]"
HEAD = f"{TWO}test_a_value_head_goes_on_from_the_last_one"
SHARED = f"{TWO}test_roles_that_share_a_base_say_what_merged_ones_say"
REFUSED = f"{TWO}test_roles_that_cannot_be_are_refused"
STAGES = f"{TWO}test_stages_that_cannot_run_are_refused"
FORKED = f"{TWO}test_a_run_that_was_cut_goes_on_and_a_fork_keeps_what_is_the_same"

MUTANTS = (
    Mutant(
        "roles-one-for-all-agents",
        "recipes/base.py",
        "return {agent: by_role[role] for agent, role in players.items()}",
        "return dict.fromkeys(players, next(iter(by_role.values())))",
        "one role speaks for all agents",
        (VERSIONS,),
    ),
    Mutant(
        "roles-newest-of-all",
        "recipes/base.py",
        "if version <= iteration)",
        ")",
        "an iteration is played by what was trained after it",
        (VERSIONS,),
    ),
    Mutant(
        "roles-adapter-begins-anew",
        "runs/roles.py",
        "loaded = replace(loaded, model=model)",
        "loaded = load(role.model, device=device)",
        "each training of an adapter begins with a fresh one",
        (GOES_ON,),
    ),
    Mutant(
        "roles-head-begins-anew",
        "runs/roles.py",
        "        elif role.head:",
        "        if role.head:",
        "each training of a value head begins with a fresh one",
        (HEAD,),
    ),
    Mutant(
        "roles-shared-base-without-adapter",
        "runs/roles.py",
        "model = load_adapter(loaded.model, Path(path), name=role.name)",
        "model = _as_it_began(loaded.model, role.name)",
        "roles that share a base speak as if they were never trained",
        (SHARED,),
    ),
    Mutant(
        "roles-share-another-base",
        "runs/roles.py",
        "    if identity(role.model) != identity(other.model):\n",
        "    if False:\n",
        "adapters of different bases are put on one",
        (REFUSED,),
    ),
    Mutant(
        "stages-after-themselves",
        "runs/stage.py",
        "            if needed == stage.step:\n",
        "            if False:\n",
        "a stage after itself is called one out of order",
        (STAGES,),
    ),
    Mutant(
        "stages-in-any-order",
        "runs/stage.py",
        "            if needed not in before:\n",
        "            if False:\n",
        "a stage may come before what it needs",
        (STAGES,),
    ),
    Mutant(
        "stages-fork-without-trainings",
        "runs/loop.py",
        "                if (trained := old",
        '                if role == "policy" and (trained := old',
        "a fork forgets the trainings of all roles but one",
        (FORKED,),
    ),
    Mutant(
        "stages-without-what-they-need",
        "runs/loop.py",
        "        if not run.is_finished(needed):\n",
        "        if False:\n",
        "a stage runs without the results that it reads",
        (f"{TWO}test_a_stage_needs_those_before_it_of_every_role",),
    ),
)
