"""Faults of Python sessions, and of the environments in which an agent runs Python."""

from tests.mutation.mutant import Mutant

SESSION = "tests/test_python_session.py::"
JAILS = "tests/test_python_session_jails.py::"
MATHS = "tests/test_python_maths.py::"
MICRO = "tests/test_sums.py::"

SHOWN = f"{SESSION}test_a_cell_shows_what_it_prints_and_the_value_of_its_last_expression"
SYNTAX = f"{SESSION}test_a_syntax_error_is_the_result_and_nothing_runs"
TRACEBACK = f"{SESSION}test_a_traceback_has_the_lines_of_cells_and_no_others"
CUT = f"{SESSION}test_output_is_cut_in_its_middle"
CHARACTERS = f"{SESSION}test_cutting_leaves_no_broken_character"
REFUSED = f"{SESSION}test_ending_the_session_and_asking_are_refused_and_lose_nothing"
LOSING = f"{SESSION}test_a_cell_that_is_stopped_or_ends_its_process_loses_the_state"
SEED = f"{SESSION}test_what_a_session_says_follows_from_its_seed_and_its_cells"
STILL = f"{SESSION}test_nothing_of_a_session_runs_between_its_cells"
NOTHING_LEFT = f"{JAILS}test_the_next_session_of_a_jail_finds_nothing_of_the_one_before"
BACK = f"{JAILS}test_a_session_is_brought_back_when_its_worker_dies"
NOT_BACK = f"{JAILS}test_a_session_that_cannot_be_brought_back_fails_and_shows_nothing"
KILLED = f"{JAILS}test_a_process_that_is_killed_from_outside_is_no_result_of_its_cell"
CLOSED = f"{JAILS}test_a_session_that_is_closed_in_the_middle_of_a_cell_gives_its_place_back"
LEAK = f"{JAILS}test_forty_sessions_are_opened_and_closed_without_a_leaked_process"

AGAIN = f"{MATHS}test_an_agent_runs_cells_and_may_answer_again_until_it_is_right"
ONCE = f"{MATHS}test_a_first_answer_that_is_right_is_counted_once"
USED_UP = f"{MATHS}test_answers_are_used_up"
NEUTRAL = f"{MATHS}test_with_neutral_feedback_right_and_wrong_answers_are_told_the_same"
FINAL = f"{MATHS}test_without_feedback_the_first_answer_is_final_and_nothing_is_said_of_it"
SECRET = f"{MATHS}test_the_right_answer_is_never_shown"
SUBJECT = f"{MATHS}test_answers_of_math_are_compared_as_mathematics_and_others_as_numbers"
SHOTS = f"{MATHS}test_examples_are_shown_before_the_problem_and_can_be_dropped"
SPLITS = f"{MICRO}test_sums_of_the_splits_are_disjoint_by_construction"
TRAPS = f"{MICRO}test_half_of_the_sums_are_traps_in_which_the_habit_is_wrong"
SCRIPTS = f"{MICRO}test_scripted_dialogues_go_as_they_are_written"

INTERPRETER = "tools/sandbox/inside/interpreter.py"
INSIDE = "tools/sandbox/inside/session.py"
HOST = "tools/sandbox/session.py"
CELLS = "tools/sandbox/cells.py"
PLAYED = "environments/acting/python_maths.py"
SUMS = "environments/acting/sums.py"

MUTANTS = (
    Mutant(
        "session-state-is-not-kept",
        INTERPRETER,
        "                exec(body, self._space)\n",
        "                exec(body, dict(self._space))\n",
        "a cell does not see what earlier ones defined",
        (SHOWN,),
    ),
    Mutant(
        "session-runs-before-the-syntax-check",
        INTERPRETER,
        "    tree: Any = compile(",
        '    exec(text.partition("\\n")[0], vars(sys.modules[MODULE]))\n    tree: Any = compile(',
        "half of a broken cell runs",
        (SYNTAX,),
    ),
    Mutant(
        "session-shows-none",
        INTERPRETER,
        "        if value is None:\n            return",
        "        if last is None:\n            return",
        "None is shown as a value",
        (SHOWN,),
    ),
    Mutant(
        "session-traceback-with-other-lines",
        INTERPRETER,
        '            if frame.f_code.co_filename.startswith("<cell ")\n',
        "",
        "lines of ours and of libraries are in tracebacks",
        (TRACEBACK,),
    ),
    Mutant(
        "session-exit-is-an-error",
        INTERPRETER,
        "        except SystemExit:\n            return self._refused(EXIT)\n",
        "",
        "exit() is not refused",
        (REFUSED,),
    ),
    Mutant(
        "session-seed-is-ignored",
        INTERPRETER,
        "        random.seed(seed)\n",
        "",
        "a replayed branch draws other numbers",
        (SEED,),
    ),
    Mutant(
        "session-addresses-are-shown",
        CELLS,
        "return _ADDRESS.sub(ADDRESS, data",
        "return str(data",
        "a replayed branch shows other addresses",
        (SHOWN,),
    ),
    Mutant(
        "session-output-is-not-cut",
        CELLS,
        "        if len(text) <= most:",
        "        if text:",
        "a cell fills the context",
        (CUT,),
    ),
    Mutant(
        "session-beginning-is-lost",
        INSIDE,
        "        self.head += data[:room]\n",
        "        self.head = data[:room] or self.head\n",
        "of what is printed in parts the beginning is not shown",
        (SHOWN,),
    ),
    Mutant(
        "session-broken-characters",
        CELLS,
        "_text(tail.lstrip(CONTINUATION))",
        "_text(tail)",
        "a cut shows half characters, and counts them",
        (CHARACTERS,),
    ),
    Mutant(
        "session-keeps-what-was-lost",
        HOST,
        "self.cells = [] if found.lost else [*self.cells, (source, found)]",
        "self.cells = self.cells if found.lost else [*self.cells, (source, found)]",
        "the state before a stopped cell comes back",
        (LOSING,),
    ),
    Mutant(
        "session-loss-is-not-told",
        CELLS,
        "filter(None, (printed, reason, ANEW))",
        "filter(None, (printed, reason))",
        "an agent does not know that its variables are gone",
        (LOSING,),
    ),
    Mutant(
        "session-memory-is-not-looked-at",
        INSIDE,
        'return "memory" if use.resident',
        'return "memory" if 0 and use.resident',
        "the processes of a cell take all memory together",
        (LOSING,),
    ),
    Mutant(
        "session-runs-between-cells",
        INSIDE,
        "        os.kill(-1, signal.SIGSTOP)\n",
        "        os.kill(self.pid, 0)\n",
        "threads and children run on when nobody looks",
        (STILL,),
    ),
    Mutant(
        "session-folder-is-kept",
        INSIDE,
        "        confine.clean_folder(opening.file_mib, opening.uid, opening.gid)\n",
        "        if not confine._stamp:\n"
        "            confine.clean_folder(opening.file_mib, opening.uid, opening.gid)\n",
        "a session finds the files of the one before",
        (NOTHING_LEFT,),
    ),
    Mutant(
        "session-comes-back-without-its-state",
        HOST,
        "        for source, then in session.cells:",
        "        for source, then in session.cells[:0]:",
        "a lost worker shows as a NameError",
        (BACK,),
    ),
    Mutant(
        "session-comes-back-unchecked",
        HOST,
        "            if await self._cell(worker, source) != then:",
        "            if await self._cell(worker, source) is None:",
        "another state is taken for the one that was lost",
        (NOT_BACK,),
    ),
    Mutant(
        "session-killed-by-the-kernel-counts-as-a-cell",
        INSIDE,
        'return (GONE if status == signal.SIGKILL else "ended"), self.ended',
        'return "ended", self.ended',
        "an agent is told that its cell ended the session when the machine was full",
        (KILLED,),
    ),
    Mutant(
        "session-closed-keeps-its-place",
        HOST,
        "            if session.closed:\n                await self._leave(worker)\n            elif found",
        "            if found",
        "a session that was closed in a cell has its jail for ever",
        (CLOSED,),
    ),
    Mutant(
        "session-leaves-its-processes",
        HOST,
        "            await worker.run(Closing())\n",
        "            await asyncio.sleep(0)\n",
        "processes of closed sessions stay",
        (LEAK,),
    ),
    Mutant(
        "maths-answer-counted-twice",
        PLAYED,
        "answers=(*before.answers, given)",
        "answers=(*before.answers, given, given)",
        "success at t attempts is wrong",
        (ONCE, AGAIN),
    ),
    Mutant(
        "maths-failed-cells-are-not-counted",
        PLAYED,
        "failed = played.failed_cells + bool(found.failed)",
        "failed = played.failed_cells",
        "no cell ever fails in reports",
        (AGAIN,),
    ),
    Mutant(
        "maths-feedback-without-feedback",
        PLAYED,
        '        if self.feedback == "none":\n            return ANSWERED\n',
        "",
        "an agent may try again where its first answer is final",
        (FINAL,),
    ),
    Mutant(
        "maths-neutral-feedback-tells",
        PLAYED,
        '        if self.feedback == "oracle" and played.right[-1]:',
        "        if played.right[-1]:",
        "the end of the dialogue tells that the answer was right",
        (NEUTRAL,),
    ),
    Mutant(
        "maths-answers-have-no-end",
        PLAYED,
        "return USED_UP if len(played.answers) >= self.most_answers else None",
        "return None",
        "an agent guesses until it is right",
        (USED_UP,),
    ),
    Mutant(
        "maths-gold-is-leaked",
        PLAYED,
        "        seen = () if end else saying(self.wrong if",
        '        wrong = f"{self.wrong} It is {gold_answer(state.task)}."\n'
        "        seen = () if end else saying(wrong if",
        "the right answer is told",
        (SECRET, AGAIN),
    ),
    Mutant(
        "maths-any-right-answer-counts",
        PLAYED,
        "return Grade(float(played.right[-1:] == (True,)), metrics)",
        "return Grade(float(any(played.right)), metrics)",
        "a right answer that was taken back scores",
        (NEUTRAL,),
    ),
    Mutant(
        "maths-latex-as-numbers",
        PLAYED,
        '"mathematics" if issubclass(rows.row, MathRow)',
        '"mathematics" if issubclass(rows.row, str)',
        "right answers in LaTeX are wrong",
        (SUBJECT,),
    ),
    Mutant(
        "maths-examples-that-cannot-be-dropped",
        "environments/acting/shots.py",
        "(Part(text, source=SHOTS),)",
        '(Part(text, source="task"),)',
        "examples are trained on",
        (SHOTS,),
    ),
    Mutant(
        "sums-of-any-split",
        SUMS,
        "split_of_key(name) == split and name not in seen",
        "name not in seen",
        "held-out sums may be training sums",
        (SPLITS,),
    ),
    Mutant(
        "sums-without-traps",
        SUMS,
        "        return self._calculated(times=not self.trap)",
        "        return self._calculated(times=True)",
        "the habit is always right",
        (TRAPS,),
    ),
    Mutant(
        "sums-corrected-by-the-habit",
        SUMS,
        "    again = _counted(problem.program, problem.answer, rng)",
        "    again = _counted(problem.habit, problem.wrong_answer, rng)",
        "a model learns to repeat its mistake",
        (SCRIPTS,),
    ),
)
