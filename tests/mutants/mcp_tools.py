"""Faults of tools of MCP servers, and of our own server."""

from tests.mutation.mutant import Mutant

MCP = "tests/test_mcp.py::"
OFFER = "tests/test_mcp_offer.py::"

MUTANTS = (
    Mutant(
        "mcp-changed-tools-are-used",
        "tools/mcp/session.py",
        "if now.identity != self._known.identity:",
        "if now.tools == ():",
        "the tools of a run change in its middle",
        (f"{MCP}test_a_server_that_comes_back_with_other_tools_ends_the_run",),
    ),
    Mutant(
        "mcp-told-changes-are-not-heard",
        "tools/mcp/link.py",
        "        if isinstance(message, types.ToolListChangedNotification):\n            self.suspect = True\n",
        "        del message\n",
        "a change that the server tells of is not looked at",
        (f"{MCP}test_a_change_in_the_run_that_is_told_is_an_error",),
    ),
    Mutant(
        "mcp-errors-are-results",
        "tools/mcp/session.py",
        "if result.is_error:",
        "if result.is_error and not result.content:",
        "a tool's error is shown as its result",
        (f"{MCP}test_a_tools_own_error_is_told_to_the_agent",),
    ),
    Mutant(
        "mcp-gives-all-variables",
        "tools/mcp/link.py",
        "    environment = {}\n    for name",
        "    environment = dict(os.environ)\n    for name",
        "servers of others get our keys",
        (f"{MCP}test_a_server_is_given_no_keys_of_ours",),
    ),
    Mutant(
        "mcp-no-leash",
        "tools/mcp/link.py",
        "        command=sys.executable,\n        args=[*leashed, *settings.command],\n",
        "        command=settings.command[0],\n        args=settings.command[1:],\n",
        "a server outlives us when we are killed",
        (f"{MCP}test_a_server_that_does_not_listen_ends_when_we_are_killed",),
    ),
    Mutant(
        "mcp-all-tools-run-side-by-side",
        "tools/mcp/content.py",
        "alone=not _looks(one, read_only)",
        "alone=False",
        "calls that change something run at the same time, and again after a failure",
        (f"{MCP}test_tools_are_listed_with_what_they_take",),
    ),
    Mutant(
        "mcp-waits-for-ever-for-the-start",
        "tools/mcp/link.py",
        "async with self._limit(self._settings.start_seconds):\n                    client",
        "if True:\n                    client",
        "a server that does not answer stops everything",
        (f"{MCP}test_servers_that_do_not_answer_are_refused_in_their_time",),
    ),
    Mutant(
        "mcp-names-as-they-come",
        "tools/mcp/content.py",
        '_OTHER.sub("_", one.name)[:MAX_NAME]',
        "one.name",
        "names that no template takes",
        (f"{MCP}test_a_change_in_the_run_that_is_told_is_an_error",),
    ),
    Mutant(
        "mcp-our-name-is-called",
        "tools/mcp/session.py",
        "link.call(self._known.names[name], dict(arguments))",
        "link.call(name, dict(arguments))",
        "a tool with a special name can't be called",
        (f"{MCP}test_a_change_in_the_run_that_is_told_is_an_error",),
    ),
    Mutant(
        "mcp-answers-web-pages",
        "tools/mcp/offer.py",
        "stateless=True, security_settings=security",
        "stateless=True",
        "any web page that a user opens can call the tools",
        (f"{OFFER}test_what_one_of_us_offers_another_can_use",),
    ),
    Mutant(
        "mcp-tells-what-is-gone",
        "tools/mcp/offer.py",
        'f"{asked.name} can\'t be reached"',
        'f"{asked.name} can\'t be reached: {error}"',
        "callers are told addresses of our servers",
        (f"{OFFER}test_a_tool_that_is_gone_is_a_fault_of_the_server_that_gives_nothing_away",),
    ),
    Mutant(
        "joined-all-names-get-a-prefix",
        "tools/joined.py",
        "tool.name if count[tool.name] == 1 else",
        "tool.name if len(self._sources) == 1 else",
        "graders and prompts no longer know a tool's name",
        (f"{OFFER}test_tools_of_one_name_get_their_sources_in_front_and_no_others_do",),
    ),
)
