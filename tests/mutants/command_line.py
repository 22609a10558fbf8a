"""Faults of the command line: times that are told too early, settings that win or are lost, exports."""

from tests.mutation.mutant import Mutant

PROGRESS = "tests/test_progress.py::"
FILE = "tests/test_config_file.py::"
FINDINGS = "tests/test_findings.py::"

MUTANTS = (
    Mutant(
        "progress-too-early",
        "terminal/progress.py",
        "if self.done < EVIDENCE * self.total or now",
        "if now",
        "the first of many dialogues tells a time that is far too long",
        (f"{PROGRESS}test_no_time_left_is_told_after_the_first_of_many",
         f"{PROGRESS}test_the_time_left_is_near_for_work_that_starts_at_once_and_ends_late"),
    ),
    Mutant(
        "progress-forgets-later-stages",
        "terminal/progress.py",
        "+ place.later\n",
        "\n",
        "the time left of the run is that of one stage",
        (f"{PROGRESS}test_the_time_of_the_run_is_told_once_all_kinds_of_stages_are_known",),
    ),
    Mutant(
        "config-file-loses-to-the-run",
        "cli/given.py",
        "overlaid(kept, overlaid(nested(values), names))",
        "overlaid(overlaid(nested(values), names), kept)",
        "what a person changes in a file is ignored where there is a run",
        (f"{FILE}test_a_file_lies_over_what_the_run_folder_has",),
    ),
    Mutant(
        "refused-settings-in-the-report",
        "cli/running.py",
        "    check_finished(recipe, run)\n    try:",
        "    try:",
        "a run that refuses other settings has a report under them, or a traceback",
        ("tests/test_first_hour.py::test_settings_that_a_run_refuses_leave_its_report_as_it_is",),
    ),
    Mutant(
        "config-file-key-twice",
        "config/file.py",
        "if key in found.lines:",
        "if False:",
        "of a key that is there twice the last one is taken",
        (f"{FILE}test_what_is_wrong_in_a_file_is_named_with_its_line",),
    ),
    Mutant(
        "dry-run-does-not-scale",
        "recipes/trial.py",
        "one.working * (ratio - 1)",
        "one.working * 0",
        "a whole run takes as long as its trial",
        ("tests/test_dry_run.py::test_what_was_tried_is_scaled_by_the_number_of_tasks",),
    ),
    Mutant(
        "export-pushes-with-a-token-to-read",
        "cli/exporting.py",
        'role == "read"',
        'role == "none"',
        "a model is exported, and then refused by the hub",
        ("tests/test_export_model.py::test_a_token_that_the_hub_would_refuse_is_refused",),
    ),
    Mutant(
        "findings-as-narrow-as-the-terminal",
        "cli/findings.py",
        "results(WIDTH).print(_means",
        "results().print(_means",
        "a narrow terminal cuts figures",
        (f"{FINDINGS}test_no_figure_is_cut_in_a_narrow_terminal",),
    ),
    Mutant(
        "findings-means-of-all-iterations",
        "cli/findings.py",
        "newest = {(r.method, r.seed): r for r in results}",
        "newest = {(r.method, (r.seed, r.iteration)): r for r in results}",
        "the means of a policy mix in those of the policies before it",
        (f"{FINDINGS}test_means_are_of_each_methods_newest_policies",),
    ),
    Mutant(
        "findings-columns-of-nothing",
        "cli/findings.py",
        "(r.method for r in newest.values() if r.means)",
        "(r.method for r in newest.values())",
        "columns of methods without means take the room of others",
        (f"{FINDINGS}test_what_was_not_measured_is_left_empty",),
    ),
)  # fmt: skip
