"""GAP (arXiv 2510.25320): an agent that plans a question as a graph and runs independent tool calls in parallel.

Notation of the paper: question q, trace tau, plan G = (V, E), where sub-task j depends on sub-task i if (i, j) in E.

    evaluate  the initial policy on held-out questions
    -- SFT (section 4.1)
    rollout   traces: an expert that knows the gold facts answers the training questions with the real tools, or a file
    select    traces with the right answer, the gold facts in their observations, and enough calls
    train     L = -sum_{t not in observations} log pi(tau_t | tau_<t, q)                                   (equation 4)
              (masked, so without a loss: the prompt with q, and all observations with their tags)
    evaluate  the policy on the same held-out questions
    -- RL (section 4.2)
    reinforce DAPO by default (its settings select GRPO or PPO, see :mod:`coterie.recipes.rl`): a group of rollouts
              per question with answer reward R, advantage A from the group, and the token mean of
              max(-rho A, -clip(rho, 1 - eps_low, 1 + eps_high) A) on the agent's tokens, rho = pi / pi_old
    evaluate  the policy on the same held-out questions

Algorithm 1 (parse the graph, sort it into levels) is in ``coterie.environments.workflow.plan_graph``. The agent calls
the tools of a level in one message, and they run in parallel.

Deliberate deviations from the released code:

* The plan is parsed. In the code it is only text.
* Sampled calls are never rewritten, so training uses exactly the sampled tokens.
* Observations have one format in training and rollout, and are masked by token spans instead of a search for tags.
* Answers are extracted by the same rule in training and evaluation.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from coterie.config.folders import sha256
from coterie.datasets.files import trajectory_file
from coterie.engines.protocol import POLICY
from coterie.environments.protocol import Shared
from coterie.environments.qa_metrics import question_of
from coterie.environments.workflow.agent import AgentSettings
from coterie.environments.workflow.expert import Demonstrates, NoTrace
from coterie.environments.workflow.plan_graph import SEARCH
from coterie.errors import UserError
from coterie.progress import Progress
from coterie.recipes.base import Recipe
from coterie.recipes.gap_settings import EXPERT, GapSettings
from coterie.recipes.gap_traces import (
    TraceEnvironment,
    TraceRow,
    format_error,
    read_traces,
    task_of,
)
from coterie.recipes.plan import HeldOutQuestions, Plan
from coterie.recipes.rl import reinforce, reinforce_uses
from coterie.recipes.rl_plan import plan_reinforcement
from coterie.recipes.trainings import TrainingJob
from coterie.record.rows import Row
from coterie.record.tree import LeftOut, Metrics, Selection, Task, Tree
from coterie.rollout.episodes import Driver, Episode
from coterie.rollout.script_player import ScriptedSampler
from coterie.runs.loop import REINFORCE, Role, Stage, stage
from coterie.runs.reinforce_settings import CRITIC
from coterie.runs.run import Run
from coterie.runs.work_items import play, summary
from coterie.tools.calls import Tags

QUANTILES = (0.5, 0.9, 0.99, 1.0)
WITHOUT, LEFT_OUT = "no trace: ", "left out: "
"""Prefixes of metric names that count traces by reason."""
MAX_LISTED = 10
"""Maximum number of broken rows listed in a message."""


class Gap(Recipe):
    """The GAP recipe."""

    settings: GapSettings

    def __init__(self, settings: GapSettings) -> None:
        super().__init__(settings)
        self.agent = self.only_agent("use environment=mhqa, web, all_tools, code or code_maths")
        expert = settings.imitates and self.from_expert
        # Only an environment with gold facts can write traces by an expert.
        if expert and not isinstance(self.environment, Demonstrates):
            raise UserError(
                f"traces=expert: {settings.benchmark} has no expert",
                "use environment=mhqa, or traces=FILE with trajectories of another agent",
            )
        self._check_form()
        if settings.imitates and not self.closed:
            self._check_calls()

    def stages(self) -> list[Stage]:
        s, stages, trained = self.settings, [self.evaluation(0)], list[Stage]()
        if s.imitates:
            stages += self.make_stages(0, self.sample, self.select, self.imitate)
            trained = stages[-1:]
            stages.append(self.evaluation(1, trained))
        if s.reinforces:
            # With both methods, RL is iteration 1 and starts from the policy of the traces.
            i = int(s.imitates)
            stages += self.make_stages(i, self.reinforce, after=trained)
            stages.append(self.evaluation(i + 1, stages[-1:]))
        return stages

    @stage("rollout", uses=("traces", "tools"), depends=lambda recipe, i: [recipe.file_content])
    async def sample(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Play the traces of the expert, or write the traces of a file to the store."""
        if self.from_expert:
            left_out = await self._play_expert(run, progress)
            return {**summary(run.store, i, "rollout"), **left_out}
        left_out = await self._play_file(run, progress)
        metrics = {k: v for k, v in summary(run.store, i, "rollout").items() if k != "score"}
        failed = len(run.store.failures(i, "rollout"))
        return {**metrics, "failed": failed, **left_out}  # traces of a file are not graded

    @stage("select", after="rollout", uses="traces.min_calls")
    def select(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Select traces with the right answer, grounded facts and at least ``traces.min_calls`` calls."""
        selections, left_out, s = list[Selection](), list[LeftOut](), self.settings
        # Tasks with gold facts exist only for the expert's traces.
        expert_tasks = (
            self.environment.tasks("train", s.traces.tasks, s.seed) if self.from_expert else []
        )
        tasks = {task.id: task for task in expert_tasks}
        for tree in run.store.trees(i, "rollout"):
            for outcome, _ in tree.trajectories():
                reason = self._flaw(tree, outcome.leaf, outcome.score, tasks.get(tree.task))
                if reason:
                    name = f"{LEFT_OUT}{reason}"
                    left_out.append(LeftOut(tree.task, outcome.leaf, name, self.agent))
                else:
                    selections.append(Selection(outcome.leaf, self.agent))
        run.select(i, selections, left_out)
        counts = Counter(entry.reason for entry in left_out)
        return {"selected": len(selections), **counts}

    @stage("train", after="select", uses=("train", "traces.max_truncated"), trains=POLICY)
    def imitate(self, run: Run, iteration: int, progress: Progress) -> Metrics:
        """Train by SFT on the selected traces, with observations masked (equation 4).

        ``L = -sum_{t not in observations} log pi(tau_t | tau_<t, q)``

        Targets of a row are the tokens of the agent's messages: thoughts, plan, calls and answer, and the ends of
        messages. Prompt and observations are turns of others and only context (:func:`coterie.record.rows.rows`), so
        no mask is made from the text. All targets count the same in the mean (:class:`~coterie.training.losses.SFT`).
        """
        from coterie.training.batches import max_row_length, steps_for_targets

        training_rows = self.rows(run, iteration)
        if not training_rows:
            raise UserError(
                "no trace is left to learn from",
                "see the reasons in `coterie view`; lower traces.min_calls, or use tools that find more facts",
            )
        lengths = self.check_lengths(training_rows)
        job = TrainingJob.of(self, run, iteration, self.settings.train.plain, progress)
        model, settings = job.model.model, job.settings
        progress.say(f"lengths of {len(training_rows)} rows: {lengths}")
        # A fixed number of target tokens gives controls the same training budget, whatever their lengths.
        if (tokens := self.settings.train.target_tokens) is not None:
            steps, epochs = steps_for_targets(model, training_rows, settings, tokens)
            settings = settings.model_copy(update={"max_steps": steps, "epochs": epochs})
        # The training drops longer rows by the same limit; the count is only shown.
        max_length = max_row_length(model, settings)
        fitting = [row for row in training_rows if len(row.ids) <= max_length]
        targets = sum(row.target_count for row in fitting)
        progress.say(f"targets: {targets:,} tokens an epoch, in {len(fitting)} rows that fit")
        return replace(job, settings=settings).train(training_rows)

    def check_lengths(self, rows: Sequence[Row]) -> str:
        """Return quantiles of the row lengths. Raises ``UserError`` if too many rows exceed train.max_length."""
        lengths = sorted(len(row.ids) for row in rows)
        max_length, allowed = self.settings.train.max_length, self.settings.traces.max_truncated
        too_long = sum(length > max_length for length in lengths) / len(lengths)
        at_quantile = {q: lengths[min(len(lengths) - 1, int(q * len(lengths)))] for q in QUANTILES}
        quantiles = ", ".join(f"{100 * q:g}% within {n:,} tokens" for q, n in at_quantile.items())
        if too_long > allowed:
            raise UserError(
                f"{100 * too_long:.0f}% of the traces are longer than train.max_length={max_length:,} ({quantiles}), "
                f"and traces.max_truncated allows {100 * allowed:g}%",
                f"raise train.max_length, lower tools' topk, or set traces.max_truncated={too_long:.2f}",
            )
        return quantiles

    @stage(
        REINFORCE, uses=lambda recipe, i: [*reinforce_uses(recipe.settings), "tools"], trains=POLICY
    )
    async def reinforce(self, run: Run, i: int, progress: Progress) -> Metrics:
        return await reinforce(self, self.settings, run, i, progress, roles=[self.main_role])

    def _check_calls(self) -> None:
        syntax = self.environment.syntax
        if not isinstance(syntax, Tags):
            raise UserError(
                "traces are written in tags, and tools.calls=native uses the model's own call syntax",
                "use tools.calls=inline, or tags",
            )
        if self.from_expert and SEARCH not in syntax.calls:
            raise UserError(
                f"traces=expert: the expert calls {SEARCH}, which is not a tool of this run",
                f"add it to tools.use; the run has {', '.join(syntax.calls)}",
            )

    def _check_form(self) -> None:
        agent_settings = self.settings.environment
        closed = isinstance(agent_settings, AgentSettings) and agent_settings.prompt == "closed"
        # The control without tools changes the prompt and the traces together; one alone would mislead.
        if closed != self.closed:
            raise UserError(
                f"traces.form={self.settings.traces.form} with "
                f"environment.prompt={getattr(agent_settings, 'prompt', None)}",
                "for the control without tools use traces.form=closed environment.prompt=closed tools=[]; otherwise "
                "remove all three",
            )

    @property
    def closed(self) -> bool:
        return self.settings.traces.form == "closed"

    @property
    def from_expert(self) -> bool:
        """True if an expert writes the traces, False if a file has them."""
        return self.settings.traces.source == EXPERT

    def roles(self) -> tuple[Role, ...]:
        critic = self.settings.reinforces and self.settings.has_critic
        base_roles = super().roles()
        return (*base_roles, Role(CRITIC, self.settings.model, head=True)) if critic else base_roles

    def plan(self) -> Plan:
        s = self.settings
        if s.imitates and not self.from_expert and not self.file.is_file():
            raise UserError(
                f"traces.source={self.file} is not a file", "correct the path, or use traces=expert"
            )
        if s.reinforces:
            return plan_reinforcement(s, super().plan, {})
        return super().plan()

    def training_tasks(self) -> int:
        s = self.settings
        traces = s.traces.tasks if s.imitates and self.from_expert else 0
        # Both stages draw from the same training tasks, so the larger number counts.
        return max(traces, s.rollout.tasks_per_round * s.steps.count if s.reinforces else 0)

    def dialogues(self) -> int:
        s = self.settings
        return s.traces.tasks * s.imitates + s.rollouts(self.environment) * s.reinforces

    # -- traces ---------------------------------------------------------------------------------

    @cached_property
    def file_content(self) -> str:
        """Hash of the file of traces; empty without a file.

        A missing file is only an error where it is read (:meth:`plan`), so a finished run stays valid without it.
        """
        return sha256(self.file) if not self.from_expert and self.file.is_file() else ""

    @property
    def file(self) -> Path:
        return trajectory_file(self.settings.traces.source)

    @cached_property
    def heldout_questions(self) -> HeldOutQuestions:
        return HeldOutQuestions(map(question_of, self.heldout_tasks()))

    async def _play_expert(self, run: Run, progress: Progress) -> Metrics:
        """Play the expert's traces and return the number of tasks without one, by reason."""
        assert isinstance(self.environment, Demonstrates), "checked above"
        s, scripts = self.settings.traces, dict[str, Sequence[str]]()
        tasks = self.environment.tasks("train", s.tasks, self.settings.seed)
        missing = Counter[str]()
        for task in tasks:
            try:
                scripts[task.id] = self.environment.trace(task).messages(s.form)
            except NoTrace as error:
                missing[str(error)] += 1
        episodes = [Episode(task, 0, 0, "rollout") for task in tasks if task.id in scripts]
        if not episodes:
            reasons = "; ".join(f"{reason} ({count})" for reason, count in missing.items())
            raise UserError(
                f"the expert has no trace for any of {len(tasks)} training tasks: {reasons}",
                "use a data set with supporting facts (2wiki, hotpot_qa, musique), or traces=FILE",
            )
        renderer = self.renderer(self.agent)
        # Scripted messages are recorded like sampled ones, so that training has their exact tokens.
        sampler = ScriptedSampler(renderer, lambda task: scripts[task.id], EXPERT)
        async with self.actors(run) as actors:
            driver = actors.driver({self.agent: sampler}, self.settings.seed)
            # An expert's messages are not sampled, so there are no tokens to count.
            await play(run.store, driver, episodes, progress, lambda: 0)
        return {f"{WITHOUT}{reason}": count for reason, count in missing.items()}

    async def _play_file(self, run: Run, progress: Progress) -> Metrics:
        """Replay the traces of the file and return the number of others, by reason."""
        (traces, broken), left_out = read_traces(self.file, progress), Counter[str]()
        rows = list[TraceRow]()
        for number, row in traces.items():
            # The question may be anywhere in the prompt of a trace.
            if self.heldout_questions.occurs_in(row.prompt):
                left_out["ask held-out questions"] += 1
            elif reason := self._format_error(row):
                broken[number] = reason
            else:
                rows.append(row)
        # Of traces that ask the same question, the last one counts.
        unique = {task_of(row).id: row for row in rows}
        left_out["ask the same as another one"] += len(rows) - len(unique)
        left_out["can't be read"] += len(broken)
        reasons = [f"row {number} {broken[number]}" for number in sorted(broken)]
        if broken:
            ellipsis = f"; and {len(broken) - MAX_LISTED} more" if len(broken) > MAX_LISTED else ""
            listed = "; ".join(reasons[:MAX_LISTED])
            progress.say(f"{self.file}: {len(broken)} left out: {listed}{ellipsis}")
        if not unique and broken:
            raise UserError(
                f"no trace of {self.file} can be trained on: {reasons[0]}",
                "correct the traces, or give the tools that they call (tools.use, tools.config)",
            )
        if not unique:
            raise UserError(
                f"every trace of {self.file} asks a held-out question",
                "give traces of other questions; held-out questions are not trained on",
            )
        first_rows = list(unique.values())[: self.settings.traces.tasks]
        environment = TraceEnvironment(self.environment, first_rows, closed=self.closed)
        sampler = ScriptedSampler(self.renderer(self.agent), environment.script, self.file.name)
        # Observations come from the file, so no tool and no other resource is opened.
        driver = Driver(
            environment, {self.agent: sampler}, seed=self.settings.seed, shared=Shared()
        )
        episodes = [Episode(task, 0, 0, "rollout") for task in environment.own_tasks]
        await play(run.store, driver, episodes, progress, lambda: 0)
        return {f"{LEFT_OUT}{reason}": count for reason, count in left_out.items() if count}

    def _format_error(self, row: TraceRow) -> str:
        """Return why the agent's call format cannot express a trace, or an empty string."""
        if self.closed:
            return ""
        assert isinstance(self.environment.syntax, Tags), "checked above"
        return format_error(row.output, self.environment.syntax)

    def _flaw(self, tree: Tree, leaf: str, score: float | None, task: Task | None) -> str:
        """Return why a trace is not trained on, or an empty string; ``task`` is ``None`` for traces of a file."""
        # Answers without tools have neither calls nor observations to check.
        if self.closed:
            return "the answer is not right" if task and not score else ""
        path = tree.path(leaf)
        calls = sum(len(turn.calls) for turn in path)
        if calls < self.settings.traces.min_calls:
            return "too few calls"
        if task is None:
            return ""
        assert isinstance(self.environment, Demonstrates), "checked above"
        results = [result.text for turn in path for result in turn.results]
        # A right answer without its facts in the observations would teach the agent to guess.
        if not self.environment.grounded(task, results):
            return "the facts were not found"
        return "" if score else "the answer is not right"
