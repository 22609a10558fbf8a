"""Faults of reinforcement learning over servers: what they load, when, and what is refused before a run."""

from tests.mutation.mutant import Mutant

TESTS = "tests/test_reinforce_servers.py::"
FULL = f"{TESTS}test_a_run_over_servers_ends_with_the_weights_of_a_run_in_process"
KILLED = f"{TESTS}test_a_killed_run_over_servers_loads_where_it_stands"
SHARED = f"{TESTS}test_servers_that_share_devices_are_gone_while_weights_change"
NAMES = f"{TESTS}test_each_adapter_is_loaded_under_a_name_of_its_own"
ROOM = f"{TESTS}test_adapters_for_which_servers_have_no_room_are_refused_before_the_run"
ENGINE = f"{TESTS}test_what_a_step_samples_depends_on_the_engine"
TIED = "tests/test_vllm_backend.py::test_a_server_on_a_cpu_reads_new_weights_into_a_tied_output_layer_too"
LEARNER, VLLM = "runs/reinforce/learner.py", "engines/servers/vllm.py"


def _fault(name: str, file: str, find: str, replace: str, breaks: str, *tests: str) -> Mutant:
    return Mutant(f"reinforce-servers-{name}", file, find, replace, breaks, tests)


MUTANTS = (
    _fault("never-loaded", LEARNER, "        if not self.trainer.done:\n            return self._models.path(",
           "        if True:\n            return self._models.path(",
           "servers speak by the base, and turns name other versions", FULL),
    _fault("left-over", LEARNER, "    _forget_served(folder)  # a killed process may have left some\n", "",
           "servers load what a killed process published, which is not what this one has learned", KILLED),
    _fault("kept-on-disk", LEARNER, "trainer, fresh)\n    _forget_served(folder)\n", "trainer, fresh)\n",
           "a copy of the weights stays in the run folder", FULL),
    _fault("devices-shared", "runs/reinforce/loop.py", "        await self.models.engines.rest()\n", "",
           "keep_servers=false leaves servers on the devices of the trainer", SHARED),
    _fault("always-ended", "engines/run_engines.py", "        if not self.settings.keep_servers:\n            await",
           "        if True:\n            await", "servers are started anew for every step", FULL),
    _fault("adapter-name-again", "engines/servers/pool.py",
           "        self._adapters += 1\n        while (name", "        self._adapters = 1\n        while (name",
           "an adapter is loaded under the name of an earlier one, with its cached keys and values", NAMES),
    _fault("rank-unchecked", "recipes/plan.py", "if training.rank > engine.vllm.lora_rank:", "if False:",
           "a run ends at its first update for want of room on the servers", ROOM),
    _fault("layers-unchecked", "recipes/plan.py",
           "if others := sorted(set(training.lora_targets) - set(engine.vllm.lora_modules)):",
           "if others := list[str]():", "adapters change layers that the servers do not take", ROOM),
    _fault("engine-forgotten", "recipes/reinforcing.py", "        *engine.identity(),\n", "",
           "a fork keeps what another engine has sampled", ENGINE),
    _fault("tied-layer-stale", VLLM, "        whole = not self._devices and", "        whole = bool(self._devices) and",
           "on a CPU new layers speak under an old output layer", TIED),
)  # fmt: skip
