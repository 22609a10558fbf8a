# Every target makes and uses .venv by itself; needs only Python 3.11+, git and make.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
export TOKENIZERS_PARALLELISM := false
export OMP_WAIT_POLICY := PASSIVE
export GOMP_SPINCOUNT := 1000
# Tests start hundreds of commands, which must not each compile the package.
export PYTHONDONTWRITEBYTECODE :=

WITH_DOCS := .venv-docs
WITH_VLLM := .venv-vllm
WITH_TEXTWORLD := .venv-textworld
WITH_ALFWORLD := .venv-alfworld
WITH_EXPORTS := .venv-exports
WITH_BRIDGES := .venv-bridges
WITH_OPENENV := .venv-openenv
WITH_NEMO_GYM := .venv-nemo-gym
WITH_TRACKERS := .venv-trackers
WITH_COMLRL := .venv-comlrl
WITH_PROGRAMS := .venv-programs
PYTHON312 ?= python3.12

.PHONY: quickstart test test-ranks test-crash test-long test-outside docs docs-check test-faults test-mutants test-mutants-sample mutmut test-vllm test-textworld test-alfworld test-exports test-bridges test-trackers test-programs test-cluster golden lint viewer-vendor tiny tiny-check reproduce clean

quickstart: $(VENV)/.run
	$(VENV)/bin/coterie quickstart

OTHERS := $(addprefix --ignore tests/,alfworld bridges cluster docs_check faults outside programs project/test_tiny_rebuild.py textworld trackers training/test_trl_parity.py vllm)

# Three workers on two cores: some tests wait for servers and sandboxes.
test: $(VENV)/.dev
	$(PY) -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder -m "not slow and not vllm and not faults and not ranks and not cluster" $(OTHERS)

# Trainings on several ranks (DDP, FSDP2), and parity with TRL; test also runs one of them.
test-ranks: $(VENV)/.dev
	$(PY) -m pytest -m ranks --numprocesses 2 --dist loadfile $$(grep -rl "mark.ranks" tests --include "test_*.py")

test-crash: $(VENV)/.dev
	$(PY) -m pytest -m slow --numprocesses 2 tests/crash

# Tests that take long because whole commands run in them.
test-long: $(VENV)/.dev
	$(PY) -m pytest -m slow --numprocesses 2 --dist loadfile $$(grep -rl "mark.slow" tests --include "test_*.py" | grep -v "crash/\|outside/\|docs_check/\|test_tiny_rebuild")

# A plug-in package and coterie's own wheel, installed by pip into a fresh environment.
test-outside: $(VENV)/.dev
	$(PY) -m pytest -m slow --numprocesses 2 tests/outside

# The documents' site, build/docs/site/index.html.
docs: $(WITH_DOCS)/.ready
	$(WITH_DOCS)/bin/python -m scripts.docs

# Every command that stands in a code block of a page, made small (tests/docs_check).
docs-check: $(VENV)/.dev
	$(PY) -m pytest -m slow --numprocesses 2 tests/docs_check

# Servers that die, stall and lie, and what becomes of the dialogues on them.
test-faults: $(VENV)/.dev
	$(PY) -m pytest -m faults --numprocesses 3 tests/faults

# Behavioral faults (tests/mutation), each of which must turn a named test red.
test-mutants: $(VENV)/.dev
	$(PY) -m tests.mutation

# Some of them, drawn by the commit.
test-mutants-sample: $(VENV)/.dev
	$(PY) -m tests.mutation --sample 30 --seed "$$(git rev-parse HEAD)"

# mutmut's mutants of the core files: the share that tests kill. Takes an hour; not in CI.
mutmut: $(VENV)/.dev
	$(PY) -m tests.mutation.core

# Real vLLM servers on the CPU; on a GPU machine the same pool runs with the vLLM of settings.python.
test-vllm: $(WITH_VLLM)/.ready
	$(WITH_VLLM)/bin/python -m pytest -m vllm tests/vllm

# Games of TextWorld, whose package builds one of its parts from source.
test-textworld: $(WITH_TEXTWORLD)/.ready
	$(WITH_TEXTWORLD)/bin/python -m pytest tests/textworld

# Games of ALFWorld, whose planner takes minutes to build from source.
test-alfworld: $(WITH_ALFWORLD)/.ready
	$(WITH_ALFWORLD)/bin/python -m pytest tests/alfworld

# Exports, read by the loaders of TRL, verl, OpenRLHF and LLaMA-Factory and by Inspect.
test-exports: $(WITH_EXPORTS)/.ready
	$(WITH_EXPORTS)/bin/python -m pytest tests/bridges/test_exports.py tests/bridges/test_inspect.py

# Environments of other frameworks, and exports. The servers of OpenEnv and NeMo Gym (1.4 GB, Python 3.12) run in environments of
# their own, since their packages pin other versions than coterie.
test-bridges: test-exports $(WITH_BRIDGES)/.ready $(WITH_OPENENV)/.ready $(WITH_NEMO_GYM)/.ready
	$(WITH_BRIDGES)/bin/python -m pytest tests/bridges

# Runs under every tracker, offline. ONLY=rl runs the tests of that name alone.
test-trackers: $(WITH_TRACKERS)/.ready
	$(WITH_TRACKERS)/bin/python -m pytest tests/trackers $(if $(ONLY),-k "$(ONLY)")

# Agents of other frameworks (LangGraph, AutoGen, ...) through the gateway. ONLY=autogen runs the tests of that name alone.
test-programs: $(WITH_PROGRAMS)/.ready
	$(WITH_PROGRAMS)/bin/python -m pytest tests/programs $(if $(ONLY),-k "$(ONLY)")

# A Ray cluster of three nodes and a Slurm cluster of two, both on this machine, with the servers of test-vllm.
test-cluster: $(WITH_VLLM)/.ready
	$(WITH_VLLM)/bin/python -m pytest -m "cluster or vllm" tests/cluster tests/vllm

# Every method at a base commit and here, compared (CONTRIBUTING.md). METHODS=optima/isft,rl/grpo does only these,
# BASE=COMMIT takes another base, WRITE=1 writes tests/golden/expected.json anew.
golden: $(VENV)/.dev
	$(PY) -m tests.golden --methods "$(METHODS)" --base "$(BASE)" $(if $(WRITE),--write)

# The JavaScript libraries of coterie view, from npm, with licenses and checksums.
viewer-vendor: $(VENV)/.run
	$(PY) scripts/viewer_vendor.py

lint: $(VENV)/.dev
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(PY) -m tests.mutation --check
	$(PY) -m pytest tests/project/test_floors.py tests/project/test_docs.py
	@$(PY) -m pytest --collect-only -qq --disable-warnings --ignore tests/bridges tests >/dev/null || { echo "a test file that make test leaves out can't be imported: run pytest --collect-only"; exit 1; }

tiny: $(VENV)/.run $(WITH_TEXTWORLD)/.ready
	$(PY) -m scripts.tiny exchange --out src/coterie/assets/tiny-exchange
	$(PY) -m scripts.tiny persona --out src/coterie/assets/tiny-persona
	$(PY) -m scripts.tiny problems --out src/coterie/assets/tiny-problems
	$(PY) -m scripts.tiny acts --out src/coterie/assets/tiny-acts
	$(PY) -m scripts.tiny encyclopedia --out src/coterie/assets/tiny-encyclopedia
	$(PY) -m scripts.tiny pages --out src/coterie/assets/tiny-pages
	$(WITH_TEXTWORLD)/bin/python -m scripts.tiny textworld --out src/coterie/assets/tiny-textworld

# MICRO_WORLD=exchange, persona, problems, acts, encyclopedia or pages rebuilds one of them; textworld where it is installed.
tiny-check: $(VENV)/.dev
	$(PY) -m pytest -m slow tests/project/test_tiny_rebuild.py -k "$(MICRO_WORLD)"

reproduce: $(VENV)/.run
	$(VENV)/bin/coterie reproduce optima --scale tiny

# The virtual environment: .run has what the package needs, .dev also what its tests need.
$(VENV)/.run: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] <= (3, 13) else "coterie needs Python 3.11 to 3.13; set PYTHON=python3.12, for example")'
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "Installing coterie and PyTorch into $(VENV): about 3 GB are downloaded on Linux, which takes 2 to 10 minutes."
	$(PY) -m pip install --constraint constraints.txt --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.run
	$(PY) -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

# The site's tools alone: they read the package's source without importing it.
$(WITH_DOCS)/.ready: pyproject.toml constraints.txt
	test -x $(WITH_DOCS)/bin/python || $(PYTHON) -m venv $(WITH_DOCS)
	$(WITH_DOCS)/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' > $(WITH_DOCS)/requirements.txt
	$(WITH_DOCS)/bin/python -m pip install --quiet --constraint constraints.txt --requirement $(WITH_DOCS)/requirements.txt
	touch $@

# vLLM pins other versions of some packages than coterie, hence an environment of its own, which also has Ray.
$(WITH_VLLM)/.ready: constraints-vllm.txt pyproject.toml tests/vllm/alias/pyproject.toml
	test -x $(WITH_VLLM)/bin/python || $(PYTHON) -m venv $(WITH_VLLM)
	$(WITH_VLLM)/bin/python -m pip install --quiet --no-deps --requirement constraints-vllm.txt
	build=$$(mktemp -d) && cp tests/vllm/alias/pyproject.toml $$build && $(WITH_VLLM)/bin/python -m pip install --quiet --no-deps $$build && rm -r $$build
	$(WITH_VLLM)/bin/python -m pip install --quiet --no-deps --editable .
	touch $@

# The extra textworld or alfworld, those of the trackers, or the other side of bench/multi_agent.py, on top of .venv.
$(WITH_TEXTWORLD)/.ready: EXTRA = 'textworld>=1.7'
$(WITH_ALFWORLD)/.ready: EXTRA = 'alfworld>=0.4.2' pyyaml
$(WITH_TRACKERS)/.ready: EXTRA = swanlab trackio wandb
$(WITH_COMLRL)/.ready: EXTRA = comlrl==1.4.3 wandb
$(WITH_TEXTWORLD)/.ready $(WITH_ALFWORLD)/.ready $(WITH_TRACKERS)/.ready $(WITH_COMLRL)/.ready: $(VENV)/.dev
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/of-venv.pth
	$(@D)/bin/python -m pip install --quiet --constraint constraints.txt $(EXTRA)
	$(@D)/bin/python -m pip install --quiet --no-deps --editable .
	touch $@

# The loaders alone: their packages pin versions that contradict each other. verl needs Python 3.11 or 3.12.
$(WITH_EXPORTS)/.ready: $(VENV)/.dev
	test -x $(WITH_EXPORTS)/bin/python || $(PYTHON) -m venv $(WITH_EXPORTS)
	$(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $$($(WITH_EXPORTS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/of-venv.pth
	$(WITH_EXPORTS)/bin/python -m pip install --quiet --no-deps verl==0.9.1 openrlhf==0.11.2 llamafactory==0.9.5
	$(WITH_EXPORTS)/bin/python -m pip install --quiet --constraint constraints.txt codetiming hydra-core orjson pylatexenc pyvers ray tensordict torchdata
	$(WITH_EXPORTS)/bin/python -m pip install --quiet inspect_ai==0.3.285
	$(WITH_EXPORTS)/bin/python -m pip install --quiet --no-deps --editable .
	touch $@

# Some of the frameworks pin other versions than constraints.txt: theirs count here.
$(WITH_PROGRAMS)/.ready: $(VENV)/.dev
	test -x $(WITH_PROGRAMS)/bin/python || $(PYTHON) -m venv $(WITH_PROGRAMS)
	$(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $$($(WITH_PROGRAMS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/of-venv.pth
	$(WITH_PROGRAMS)/bin/python -m pip install --quiet autogen-agentchat==0.7.5 'autogen-ext[openai]==0.7.5' langchain-openai==1.7.4 langgraph==1.2.24 \
		litellm==1.110.2 mini-swe-agent==2.4.6 openai==3.57.0 openai-agents==0.24.0 'pydantic-ai-slim[openai]==2.68.0' 'smolagents[openai]==1.26.0'
	$(WITH_PROGRAMS)/bin/python -m pip install --quiet --no-deps --editable .
	touch $@

$(WITH_BRIDGES)/.ready: $(VENV)/.dev
	test -x $(WITH_BRIDGES)/bin/python || $(PYTHON) -m venv $(WITH_BRIDGES)
	$(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $$($(WITH_BRIDGES)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/of-venv.pth
	$(WITH_BRIDGES)/bin/python -m pip install --quiet 'reasoning-gym==0.1.25' 'verifiers==0.4.0' 'websockets>=14'
	$(WITH_BRIDGES)/bin/python -m pip install --quiet --no-deps --editable .
	touch $@

$(WITH_OPENENV)/.ready:
	test -x $(WITH_OPENENV)/bin/python || $(PYTHON) -m venv $(WITH_OPENENV)
	$(WITH_OPENENV)/bin/python -m pip install --quiet 'openenv==0.10.0'
	touch $@

$(WITH_NEMO_GYM)/.ready:
	if ! $(PYTHON312) -c ''; then echo "no $(PYTHON312): tests of NeMo Gym are skipped (set PYTHON312)"; exit 0; fi; \
	$(PYTHON312) -m venv $(WITH_NEMO_GYM) && $(WITH_NEMO_GYM)/bin/python -m pip install --quiet 'nemo-gym==0.4.0' && touch $@

clean:
	rm -rf $(VENV) $(WITH_DOCS) $(WITH_VLLM) $(WITH_TEXTWORLD) $(WITH_ALFWORLD) $(WITH_EXPORTS) $(WITH_BRIDGES) $(WITH_OPENENV) $(WITH_NEMO_GYM) $(WITH_TRACKERS) $(WITH_COMLRL) $(WITH_PROGRAMS) build dist *.egg-info src/*.egg-info
