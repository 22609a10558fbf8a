"""Keys of endpoints: where they come from, and that none is shown."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.engines.endpoint import Endpoint, EndpointSettings, configured, find_key
from coterie.engines.protocol import EngineError
from coterie.errors import UserError
from tests.conftest import Cli
from tests.test_endpoint import HELLO, KEY, fails, hangs_up, says, service, settings


def test_a_missing_key_is_refused_at_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JUDGE_API_KEY", raising=False)
    one = settings("http://127.0.0.1:9/v1", key_variable="JUDGE_API_KEY")
    for content in ("", "JUDGE_API_KEY=\n", "OTHER=x\n"):
        (tmp_path / ".env").write_text(content)
        with pytest.raises(UserError, match=r"JUDGE_API_KEY is not set\n.*\.env"):
            Endpoint(one, folder=tmp_path)
    monkeypatch.setenv("JUDGE_API_KEY", f"{KEY}\n{KEY}")
    with pytest.raises(UserError, match="is not a key") as refused:
        Endpoint(one, folder=tmp_path)
    assert KEY not in str(refused.value)


def test_keys_come_from_the_environment_or_else_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JUDGE_API_KEY", raising=False)
    (tmp_path / ".env").write_text("export JUDGE_API_KEY='from-$FILE'  # mine\n")
    assert find_key("JUDGE_API_KEY", tmp_path).header == {"Authorization": "Bearer from-$FILE"}
    monkeypatch.setenv("JUDGE_API_KEY", "from-environment")
    assert "from-environment" in find_key("JUDGE_API_KEY", tmp_path).header["Authorization"]


def test_a_key_is_shown_nowhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    shown: list[str] = []
    for answer in (
        fails(401, f"Wrong key {KEY}, go away"),
        fails(500, f"{'x' * 290} {KEY}"),
        says(200, f"{KEY}".encode()),
        hangs_up,
    ):
        with service(answer) as service_:
            one = settings(service_.url, key_variable="JUDGE_API_KEY", retries=1)

            async def talk(one: EndpointSettings = one) -> None:
                async with Endpoint(one) as endpoint:
                    shown.extend((repr(endpoint), str(vars(endpoint)), repr(endpoint._key)))
                    try:
                        await endpoint.chat(HELLO, max_tokens=3)
                    except EngineError as error:
                        shown.append("".join(_chain(error)))

            asyncio.run(talk())
            shown.extend((one.model_dump_json(), repr(one)))
        assert service_.keys[0] == f"Bearer {KEY}", "it was sent"
    shown.append(caplog.text)
    assert "<JUDGE_API_KEY>" in "".join(shown)
    for text in shown:
        assert KEY[:8] not in text


def _chain(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield f"{error} {error!r}"
        error = error.__cause__ or error.__context__


def test_doctor_says_which_keys_are_set_and_no_more(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("JUDGE_API_KEY", KEY)
    (tmp_path / ".env").write_text(f"FILE_API_KEY={KEY}\nEMPTY_API_KEY=\nOTHER={KEY}\n")
    found = configured(tmp_path)
    assert found["JUDGE_API_KEY"] and found["FILE_API_KEY"]
    assert not found["OPENAI_API_KEY"] and not found["EMPTY_API_KEY"]
    assert "OTHER" not in found
    said = cli("doctor")
    assert KEY not in said.out + said.err
    assert " ok  equal samples alone and in a batch  bitwise" in said.out
    lines = {
        line.split("key ")[1].split()[0]: line
        for line in said.out.splitlines()
        if "_API_KEY" in line
    }
    assert lines["JUDGE_API_KEY"].split()[-2:] == ["JUDGE_API_KEY", "set"]
    assert lines["OPENAI_API_KEY"].split()[-2:] == ["not", "set"]
