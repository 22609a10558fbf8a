"""Faults of the store, of its JSONL form, and of what it does with secrets."""

from tests.mutation.mutant import Mutant

STORE = "tests/test_store.py::"
DISK = "tests/test_store_disk.py::"
JSONL = "tests/test_jsonl.py::"

ANY_ORDER = f"{STORE}test_a_tree_comes_back_equal_whatever_order_its_samples_finish_in"
STREAM = f"{STORE}test_trees_stream_in_order_of_task_and_see_a_stage_only"
ITEMS = f"{STORE}test_items_metrics_and_failures"
CREDIT = f"{STORE}test_credit_adds_under_new_settings_and_never_overwrites"
REFUSED = f"{STORE}test_a_record_that_contradicts_the_store_is_refused_whole"
HANGS_NOWHERE = f"{STORE}test_a_turn_that_hangs_nowhere_or_answers_nothing_is_refused"
PART = f"{JSONL}test_part_of_a_record_comes_with_what_it_needs_only"
SECRETS = f"{JSONL}test_secrets_stay_home_unless_asked_for"

MUTANTS = (
    Mutant(
        "secret-shows-itself",
        "trajectories/task.py",
        "    __repr__ = __str__\n",
        '\n    def __repr__(self) -> str:\n        return f"<secret {self.name} {self._text}>"\n',
        "secrets stand in logs and tracebacks",
        ("tests/contract/test_07_secrets.py::test_a_secret_redacts_itself",),
    ),
    Mutant(
        "secret-part-for-everybody",
        "trajectories/task.py",
        "Part(self.reveal(role), audience=self.readers, source",
        "Part(self.reveal(role), source",
        "a secret may be rendered for anybody",
        (
            "tests/contract/test_07_secrets.py::"
            "test_rendering_a_secret_for_another_reader_is_refused",
        ),
    ),
    Mutant(
        "codec-logprobs-of-16-bits",
        "trajectories/codec.py",
        'np.array(logprobs, dtype="<f4").tobytes()',
        'np.array(logprobs, dtype="<f2").astype("<f4").tobytes()',
        "log-probs are stored with three digits",
        (ANY_ORDER,),
    ),
    Mutant(
        "store-items-of-all-samples",
        "trajectories/table.py",
        'WHERE (iteration, stage, task, sample) = (?, ?, ?, ?)",\n'
        "        (key.iteration, key.stage, key.task, key.sample),",
        'WHERE (iteration, stage, task) = (?, ?, ?)",\n'
        "        (key.iteration, key.stage, key.task),",
        "a task counts as done when one of its samples is, and a resumed run skips the rest",
        (ITEMS,),
    ),
    Mutant(
        "store-turns-as-they-came",
        "trajectories/table.py",
        "elif (sample, position) < old[1:]:",
        "elif False:",
        "the order of turns depends on which sample finished first",
        (f"{STORE}test_a_turn_is_filed_under_the_first_sample_that_has_it",),
    ),
    Mutant(
        "store-credit-of-any-value",
        "trajectories/table.py",
        "elif old != (credit.value,):",
        "elif old == ():",
        "another value under the same settings is dropped silently",
        (CREDIT,),
    ),
    Mutant(
        "store-credit-of-all-settings",
        "trajectories/table.py",
        '"SELECT key FROM credit_kind WHERE (settings, name) = (?, ?)"\n'
        "    key: int = db.execute(find, (settings, name))",
        '"SELECT key FROM credit_kind WHERE name = ?"\n    key: int = db.execute(find, (name,))',
        "credit computed under new settings meets that of the old ones",
        (f"{STORE}test_credit_of_other_settings_stands_beside_it",),
    ),
    Mutant(
        "store-turn-of-another-tree",
        "trajectories/table.py",
        '"SELECT 1 FROM turn WHERE id = ? AND tree = ?", (node, tree.key)',
        '"SELECT 1 FROM turn WHERE id = ?", (node,)',
        "a turn may hang on another task's tree",
        (f"{STORE}test_a_turn_cannot_hang_on_another_tree",),
    ),
    Mutant(
        "store-logprobs-too-few",
        "trajectories/table.py",
        "if turn.sample.ids != turn.ids or len(turn.sample.logprobs) != len(turn.ids):",
        "if turn.sample.ids != turn.ids:",
        "a sample with a log-prob too few is stored",
        (f"{STORE}test_a_sample_whose_logprobs_are_not_its_tokens_is_refused",),
    ),
    Mutant(
        "store-request-not-asked-for",
        "trajectories/table.py",
        "if turn.prompt is not None and not _has_request(db, tree, turn.prompt):",
        "if turn.prompt is None and not _has_request(db, tree, str(turn.prompt)) and turn.sample:",
        "a sampled turn without its prompt is stored, and cannot be trained",
        (HANGS_NOWHERE,),
    ),
    Mutant(
        "store-half-an-item",
        "trajectories/store.py",
        'self._db.execute("ROLLBACK")',
        'self._db.execute("COMMIT")',
        "half of an item that was refused stays in the store",
        (REFUSED,),
    ),
    Mutant(
        "store-reader-writes",
        "trajectories/store.py",
        "if self._lock is None:",
        "if False:",
        "a store opened to be read is written to, or fails with a riddle",
        (f"{DISK}test_a_store_opened_to_be_read_cannot_be_written",),
    ),
    Mutant(
        "store-failures-forgotten",
        "trajectories/store.py",
        "table.write_item(db, Item(key, failure, metrics or {}), tree, credit, ())",
        "table.write_item(db, Item(key, None, metrics or {}), tree, credit, ())",
        "why an item failed is not recorded, and it counts as done",
        (ITEMS,),
    ),
    Mutant(
        "store-together-one-by-one",
        "trajectories/store.py",
        "        with self.transaction():\n            self._joined = True\n",
        "        if self._lock is not None:\n            self._joined = True\n",
        "items that belong together are there by halves after a kill",
        (f"{STORE}test_items_that_are_finished_together_are_all_there_or_none",),
    ),
    Mutant(
        "reader-trees-as-they-came",
        "trajectories/reader.py",
        "FROM tree {where} ORDER BY iteration, stage, task",
        "FROM tree {where} ORDER BY key",
        "the order of trees depends on timing, and so do rows and batches",
        (STREAM,),
    ),
    Mutant(
        "reader-trees-of-any-stage",
        "trajectories/reader.py",
        'tests = " AND ".join(',
        'tests = " OR ".join(',
        "trees of other stages and iterations are trained on",
        (STREAM,),
    ),
    Mutant(
        "reader-draws-lost",
        "trajectories/reader.py",
        "        author,\n        draw,\n        None if sample else request,",
        "        author,\n        0,\n        None if sample else request,",
        "draws are lost, and candidates that say the same become one",
        (ANY_ORDER,),
    ),
    Mutant(
        "reader-selections-unordered",
        "trajectories/reader.py",
        "ORDER BY s.item, s.position",
        "ORDER BY s.item, s.leaf",
        "selections come in another order than they were made",
        (f"{STORE}test_selections_are_references_in_stored_order",),
    ),
    Mutant(
        "disk-first-mount-counts",
        "trajectories/disk.py",
        "and len(mount.mountpoint) >= len(found[0])",
        "and len(mount.mountpoint) > len(found[0])",
        "a disk mounted over another is not seen",
        (f"{DISK}test_the_file_system_of_the_longest_mount_point_counts",),
    ),
    Mutant(
        "disk-any-fuse-is-local",
        "trajectories/disk.py",
        "return kind if kind in UNSAFE or foreign_fuse else None",
        "return kind if kind in UNSAFE else None",
        "a run on sshfs loses committed work",
        (f"{DISK}test_the_file_system_of_the_longest_mount_point_counts",),
    ),
    Mutant(
        "disk-two-writers",
        "trajectories/disk.py",
        "fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)",
        "two processes write one run",
        (f"{DISK}test_a_second_writer_is_refused_and_told_who_writes_but_readers_are_not",),
    ),
    Mutant(
        "jsonl-secrets-leave",
        "trajectories/jsonl.py",
        "tree = reader.tree(db, row) if secrets else redact(reader.tree(db, row))",
        "tree = reader.tree(db, row)",
        "prompts that show a secret are exported",
        (SECRETS,),
    ),
    Mutant(
        "jsonl-secret-fields-leave",
        "trajectories/jsonl.py",
        "        for name, secret in task.secrets.items()\n        if secrets\n",
        "        for name, secret in task.secrets.items()\n",
        "gold answers are exported",
        (SECRETS,),
    ),
    Mutant(
        "redaction-of-the-first-prompt-only",
        "trajectories/redaction.py",
        "        link = tree.requests[before] if before else None\n",
        "        link = None\n",
        "later prompts, stored as deltas on a secret one, are exported as if they were whole",
        (SECRETS,),
    ),
    Mutant(
        "redaction-keeps-the-ids",
        "trajectories/redaction.py",
        "if id_ not in hidden}",
        "}",
        "token ids that spell a secret are exported",
        (f"{JSONL}test_ids_that_spell_a_secret_stay_home",),
    ),
    Mutant(
        "jsonl-selections-of-all",
        "trajectories/jsonl.py",
        "if number in kept and tree in keys:",
        "if number in kept:",
        "a part of a record comes with selections from trees that it does not hold",
        (PART,),
    ),
    Mutant(
        "jsonl-sample-forgotten",
        "trajectories/jsonl.py",
        "TurnLine(replace(item, sample=samples[record.id]), record)",
        "TurnLine(item, record)",
        "turns lose which sample they are of",
        (PART,),
    ),
    Mutant(
        "jsonl-tokenises-everything",
        "trajectories/jsonl.py",
        'foreign = turn.speaker.kind == "agent" and turn.sample is None and not turn.ids',
        "foreign = turn.sample is None and not turn.ids",
        "what the environment said is given ids, as if it were to be trained",
        (f"{JSONL}test_text_that_nobody_sampled_is_tokenised_once",),
    ),
)
