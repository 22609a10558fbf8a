"""Faults of retrieval: indexes, the tool server, and the tool that asks it."""

from tests.mutation.mutant import Mutant

SEARCH = "tests/test_retrieval.py::"
RETRIEVE = "tests/test_retrieval_server.py::"
SERVER = "tests/test_tool_server.py::"
TOOL = "tests/test_retriever_tool.py::"
CODE = "tests/test_tool_code.py::"

SORTED = f"{SEARCH}test_the_best_are_those_of_a_whole_sort_and_equal_ones_are_in_order"
FORMS = f"{RETRIEVE}test_retrieve_answers_in_both_forms"
TOGETHER = (
    f"{RETRIEVE}test_requests_at_the_same_time_are_searched_together_and_trimmed_to_their_own_count"
)
BATCHES = f"{RETRIEVE}test_questions_that_wait_are_answered_together_and_each_gets_its_own_answer"
MEANING = f"{SEARCH}test_searches_by_meaning_compare_means_of_hidden_states_of_prefixed_texts"
FITS = f"{SEARCH}test_an_index_that_does_not_fit_is_refused"
ENCODER = f"{SEARCH}test_vectors_are_searched_by_the_encoder_that_made_them"
IDENTITY = f"{SEARCH}test_what_searches_depend_on_is_the_same_wherever_the_files_lie"
WHOLE = f"{SEARCH}test_passages_stay_whole_and_are_read_by_their_place"
FULL = f"{SERVER}test_requests_above_the_limit_are_refused_at_once_and_the_others_answered"
LATE = f"{SERVER}test_a_late_request_is_answered_with_408_and_its_work_is_stopped"
LONG = f"{SERVER}test_bodies_that_are_too_long_are_refused_whether_they_say_so_or_not"
IDS = f"{SERVER}test_ids_of_requests_are_taken_or_made_and_logged"
INSIDE = f"{SERVER}test_a_failure_inside_tells_clients_nothing_of_the_process"
FILES = f"{SERVER}test_a_file_that_cannot_be_served_says_why"
ONE_REQUEST = f"{TOOL}test_the_calls_of_a_message_go_out_in_one_request_and_equal_queries_once"
AGAIN = f"{TOOL}test_a_fault_that_may_pass_is_tried_again"
PICKY = f"{TOOL}test_one_query_that_is_refused_does_not_fail_the_others"
SHOWN = f"{TOOL}test_agents_are_shown_numbered_passages_with_their_titles"
SAME = f"{TOOL}test_a_server_a_folder_and_a_file_give_the_same"
OTHER = f"{TOOL}test_a_server_with_other_passages_is_refused_when_the_run_goes_on"
PROGRAMS = f"{CODE}test_programs_run_apart_from_each_other_and_are_shown_as_agents_know_it"

BM25 = "tools/retrieval/bm25.py"
PASSAGES = "tools/retrieval/passages.py"
VECTORS = "tools/retrieval/vectors.py"
READ = "tools/retrieval/encoder.py"
OPEN = "tools/retrieval/retriever.py"
BATCH = "tools/retrieval/batches.py"
BACKEND = "tools/retrieval/server.py"
CLIENT = "tools/retrieval/client.py"
SOURCE = "tools/retrieval/tool.py"
LIMITS = "tools/servers/limits.py"
APP = "tools/servers/app.py"
CONFIG = "tools/servers/config.py"

MUTANTS = (
    Mutant(
        "retrieval-equal-scores-are-lost",
        BM25,
        "places = places[found >= least]",
        "places = places[found > least]",
        "fewer passages than were asked for, where scores are equal",
        (SORTED,),
    ),
    Mutant(
        "retrieval-corpora-look-alike",
        PASSAGES,
        "self._hash.update(row)",
        "self._hash.update(b'')",
        "a run goes on with another corpus and nobody notices",
        (IDENTITY,),
    ),
    Mutant(
        "retrieval-titles-keep-their-quotes",
        PASSAGES,
        "return first[1:-1] if line_end",
        "return first if line_end",
        "agents see titles in two pairs of quotes",
        (WHOLE, SHOWN),
    ),
    Mutant(
        "retrieval-padding-is-read",
        READ,
        "means = (states * mask).sum(1) / mask.sum(1)",
        "means = states.mean(1)",
        "what a query finds depends on the queries beside it",
        (MEANING,),
    ),
    Mutant(
        "retrieval-queries-as-passages",
        READ,
        "self.settings.query_prefix + text",
        "self.settings.passage_prefix + text",
        "E5 is asked in a way that it was not trained for",
        (MEANING,),
    ),
    Mutant(
        "retrieval-index-of-another-corpus",
        VECTORS,
        "if self._index.ntotal != count:",
        "if self._index.ntotal < count:",
        "vectors find passages of another corpus",
        (FITS,),
    ),
    Mutant(
        "retrieval-distances-as-products",
        VECTORS,
        "if self._index.metric_type != faiss.METRIC_INNER_PRODUCT:",
        "if self._index.metric_type < 0:",
        "the farthest passages of an L2 index come first",
        (FITS,),
    ),
    Mutant(
        "retrieval-any-encoder",
        OPEN,
        "if encoder.identity() != made.identity:",
        "if encoder.max_tokens != made.encoder.max_tokens:",
        "vectors of one encoder are searched with those of another",
        (ENCODER,),
    ),
    Mutant(
        "retrieval-answers-of-a-batch-swapped",
        BATCH,
        "zip(batch, answers, strict=True)",
        "zip(batch, answers[::-1], strict=True)",
        "agents get each other's passages",
        (BATCHES, ONE_REQUEST),
    ),
    Mutant(
        "retrieval-asks-what-nobody-waits-for",
        BATCH,
        "            if not one[1].done():\n                batch",
        "            if one:\n                batch",
        "the server works for clients that are gone",
        (BATCHES,),
    ),
    Mutant(
        "retrieval-batch-of-one",
        BATCH,
        "        elif self._timer is None:\n",
        "        elif self._waiting:\n            self._begin()\n        elif self._timer is None:\n",
        "nothing is searched together",
        (TOGETHER, ONE_REQUEST),
    ),
    Mutant(
        "retrieval-count-of-the-batch",
        BACKEND,
        "return [hits[:count] for hits,",
        "return [hits for hits,",
        "a request gets as many passages as its neighbour asked for",
        (TOGETHER,),
    ),
    Mutant(
        "retrieval-topk-of-the-server-is-ignored",
        BACKEND,
        "count = self._settings.topk if",
        "count = 3 if",
        "`topk: null` gives another number than is configured",
        (FORMS,),
    ),
    Mutant(
        "retrieval-equal-queries-asked-again",
        SOURCE,
        "different = list(dict.fromkeys(queries))",
        "different = list(queries)",
        "samples of one prompt search the same things again and again",
        (ONE_REQUEST,),
    ),
    Mutant(
        "retrieval-too-many-requests-is-final",
        CLIENT,
        "AGAIN = (408, 425, 429)",
        "AGAIN = (408, 425)",
        "a moment of load fails an episode",
        (AGAIN,),
    ),
    Mutant(
        "retrieval-refused-together",
        CLIENT,
        "            if len(queries) == 1:\n",
        "            if queries:\n                return [ToolError(str(error))] * len(queries)\n"
        "            if len(queries) == 1:\n",
        "one bad query fails all calls of a message",
        (PICKY,),
    ),
    Mutant(
        "retrieval-topk-is-not-part-of-a-run",
        SOURCE,
        'digest("retriever", settings.name, str(settings.topk), self._content)',
        'digest("retriever", settings.name, self._content)',
        "a run goes on with another number of passages",
        (SAME,),
    ),
    Mutant(
        "retrieval-server-is-not-asked-again",
        SOURCE,
        "if await asyncio.to_thread(served_identity, s.url) != self._content:",
        "if not s.url:",
        "a run plays with a corpus that it was not made with",
        (OTHER,),
    ),
    Mutant(
        "tools-queue-without-bound",
        LIMITS,
        "self.waiting >= self.settings.queue",
        "self.waiting >= 10 * self.settings.queue",
        "under load everybody waits, and nobody is told",
        (FULL,),
    ),
    Mutant(
        "tools-place-is-kept",
        LIMITS,
        "        try:\n            yield\n        finally:\n            self.running -= 1\n"
        "            self._room.release()",
        "        yield\n        self.running -= 1\n        self._room.release()",
        "clients that go away use up all places",
        (LATE,),
    ),
    Mutant(
        "tools-late-work-goes-on",
        LIMITS,
        '                await exchange.refuse(408, f"there was',
        '                await exchange.refuse(504, f"there was',
        "a late request has the status of a broken server",
        (LATE,),
    ),
    Mutant(
        "tools-bodies-without-a-length",
        LIMITS,
        "    if max(size, len(found)) > most:\n",
        "    if size > most:\n",
        "a body that does not tell its length may be of any length",
        (LONG,),
    ),
    Mutant(
        "tools-forged-log-lines",
        LIMITS,
        "given if _PLAIN.fullmatch(given) else",
        "given if given else",
        "clients write into the log",
        (IDS,),
    ),
    Mutant(
        "tools-errors-tell-all",
        APP,
        'f"the server failed; its log has the reason, under {request.scope[ID]}"',
        'f"the server failed: {error!r}"',
        "clients read what failed inside",
        (INSIDE,),
    ),
    Mutant(
        "tools-two-of-one-name",
        CONFIG,
        "if names.count(name) > 1]",
        "if names.count(name) > 2]",
        "one of two tools is out of reach",
        (FILES,),
    ),
    Mutant(
        "tools-programs-without-input",
        "tools/servers/code.py",
        "body.code, body.stdin)",
        "body.code)",
        "programs read nothing",
        (PROGRAMS,),
    ),
)
