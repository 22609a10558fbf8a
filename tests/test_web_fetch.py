"""Pages are fetched from the public net only, and no server can take more than its bytes and its time."""

import asyncio
import datetime
import gzip
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from coterie.tools.web import (
    KINDS,
    Extractor,
    Fetched,
    Fetcher,
    FetchSettings,
    Page,
    PageError,
    decompress,
    is_public,
)
from tests.web_hosts import Hosts, hosts


@pytest.fixture
def host() -> Iterator[Hosts]:
    with hosts() as server:
        yield server


def allowing(*servers: Hosts, **more: Any) -> FetchSettings:
    return FetchSettings(private_hosts=tuple(one.name for one in servers), **more)


def fetch(url: str, settings: FetchSettings, trust: ssl.SSLContext | None = None) -> Fetched:
    async def get() -> Fetched:
        fetcher = Fetcher(settings, trust=trust)
        try:
            return await fetcher.fetch(url, KINDS)
        finally:
            await fetcher.close()

    return asyncio.run(get())


def refusal(url: str, settings: FetchSettings) -> str:
    with pytest.raises(PageError) as failed:
        fetch(url, settings)
    return str(failed.value)


def text(url: str, settings: FetchSettings) -> Page:
    fetched = fetch(url, settings)

    async def take() -> Page:
        extractor = Extractor()
        try:
            return await extractor.page(fetched)
        finally:
            extractor.close()

    return asyncio.run(take())


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[list[str]]]:
    """Names that stand for addresses: for each look-up the next ones, the last for all later ones."""
    table: dict[str, list[list[str]]] = {}
    real = socket.getaddrinfo

    def look(host: Any, port: Any, *more: Any, **named: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name not in table:
            return real(host, port, *more, **named)
        found = table[name].pop(0) if len(table[name]) > 1 else table[name][0]
        kinds = (socket.AF_INET6 if ":" in one else socket.AF_INET for one in found)
        return [
            (kind, socket.SOCK_STREAM, 6, "", (one, port))
            for kind, one in zip(kinds, found, strict=True)
        ]

    monkeypatch.setattr(socket, "getaddrinfo", look)
    return table


def test_an_article_is_taken_out_of_its_page(host: Hosts) -> None:
    for path in ("oslo", "packed", "hop/2"):
        page = text(f"{host.url}/{path}", allowing(host))
        assert page.title == "Oslo" and "capital of Norway" in page.text
        assert f"[the fjord]({host.url}/fjord)" in page.text
        assert "Login" not in page.text and "alert" not in page.text


def test_characters_are_read_as_the_server_or_the_page_names_them(host: Hosts) -> None:
    assert text(f"{host.url}/plain", allowing(host)).text == "Grüße aus Oslo"
    assert "Осло — столица Норвегии" in text(f"{host.url}/named", allowing(host)).text
    for path in ("slowcodec", "wide"):
        assert "capital of Norway" in text(f"{host.url}/{path}", allowing(host)).text
    assert "café" in text(f"{host.url}/misnamed", allowing(host)).text


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254",
        "100.100.100.200", "168.63.129.16", "192.0.0.192", "224.0.0.1", "240.0.0.1", "255.255.255.255",
        "::", "::1", "fe80::1", "fd00:ec2::254", "fc00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
        "64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::", "2001:0:7f00:1::", "2001:db8::1", "::127.0.0.1", "fec0::1",
    ],
)  # fmt: skip
def test_addresses_outside_the_public_net_are_not_asked(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))
    for public in ("93.184.216.34", "8.8.8.8", "2606:2800:220:1::1", "2a00:1450:4001::8a"):
        assert is_public(ipaddress.ip_address(public))


@pytest.mark.parametrize(
    "form", ["127.0.0.1", "2130706433", "0x7f.1", "127.1", "localhost", "[::ffff:127.0.0.1]"]
)
def test_this_machine_is_not_asked_however_it_is_written(host: Hosts, form: str) -> None:
    assert "may not be read" in refusal(f"http://{form}:{host.port}/oslo", FetchSettings())
    assert not host.asked


def test_a_name_with_one_private_address_is_not_asked(
    names: dict[str, list[list[str]]], host: Hosts
) -> None:
    names["trap.test"] = [["93.184.216.34", "127.0.0.1"]]
    said = refusal(f"http://trap.test:{host.port}/oslo", FetchSettings())
    assert said == "trap.test is not in the public net, so it may not be read" and not host.asked


def test_a_name_that_stands_for_another_address_a_moment_later_changes_nothing(
    names: dict[str, list[list[str]]], host: Hosts
) -> None:
    names["moves.test"] = [["127.0.0.1"], ["127.0.0.2"]]
    settings = FetchSettings(private_hosts=(f"moves.test:{host.port}",))
    with hosts("127.0.0.2", host.port) as other:
        fetch(f"http://moves.test:{host.port}/oslo", settings)
        assert host.asked["/oslo"] == 1 and not other.asked
    assert host.heads[0]["Host"] == f"moves.test:{host.port}"


def test_redirects_are_checked_like_the_first_url(
    host: Hosts, names: dict[str, list[list[str]]]
) -> None:
    names["trap.test"] = [["10.0.0.1"]]
    with hosts() as inner:
        private = f"{inner.url}/oslo", f"http://localhost:{inner.port}/", "http://trap.test/"
        others = "file:///etc/passwd", "ftp://example.org/", "http://user:word@example.org/"
        table = dict.fromkeys((*private, "//169.254.169.254/"), "may not be read")
        for host.to, said in (table | dict.fromkeys(others, "URL")).items():
            assert said in refusal(f"{host.url}/away", allowing(host))
        assert not inner.asked


def test_redirects_end(host: Hosts) -> None:
    assert refusal(f"{host.url}/loop", allowing(host)) == "it redirects more than 5 times"
    assert host.asked["/loop"] == 6
    for path in ("hop/4", "flooded"):
        assert b"capital" in fetch(f"{host.url}/{path}", allowing(host)).body
    assert "more than 5 times" in refusal(f"{host.url}/hop/5", allowing(host))
    assert host.sent < 2**27, "the body of a redirect is not read"


@pytest.mark.parametrize("path", ["huge", "endless"])
def test_a_long_body_is_cut_off(host: Hosts, path: str) -> None:
    got = fetch(f"{host.url}/{path}", allowing(host, page_bytes=100_000))
    assert len(got.body) == 100_000 and not got.whole
    assert host.sent < 2**27


def test_a_packed_body_unpacks_to_no_more_than_the_limit(host: Hosts) -> None:
    got = fetch(f"{host.url}/bomb", allowing(host, page_bytes=200_000))
    assert got.body == b"0" * 200_000 and not got.whole
    assert "packed as gzip, gzip" in refusal(f"{host.url}/twice", allowing(host))
    assert "can't be unpacked" in refusal(f"{host.url}/broken", allowing(host))


def test_one_packed_piece_unpacks_to_no_more_than_the_limit() -> None:
    piece = gzip.compress(b"0" * 2**24)

    class Piece(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield piece

    async def pieces() -> list[bytes]:
        body = httpx2.Response(200, headers={"Content-Encoding": "gzip"}, stream=Piece())
        return [one async for one in decompress(body, 1000)]

    assert len(piece) < 20_000 and asyncio.run(pieces()) == [b"0" * 1000]


@pytest.mark.parametrize("path", ["drip", "silent"])
def test_a_slow_server_has_its_time_and_no_more(host: Hosts, path: str) -> None:
    began = time.monotonic()
    said = refusal(f"{host.url}/{path}", allowing(host, page_seconds=0.5))
    assert said in ("it took longer than 0.5 seconds", "it can't be read: ReadTimeout")
    assert time.monotonic() - began < 10


def test_what_is_no_text_is_not_read(host: Hosts) -> None:
    assert refusal(f"{host.url}/pdf", allowing(host)) == "it is application/pdf, which is not read"
    with pytest.raises(PageError, match="not text, whatever its server says"):
        text(f"{host.url}/lie", allowing(host))
    with pytest.raises(PageError, match="it has no text"):
        text(f"{host.url}/empty", allowing(host))


def test_a_page_that_breaks_the_parser_fails_alone(host: Hosts) -> None:
    with pytest.raises(PageError, match="text"):
        text(f"{host.url}/deep", allowing(host))
    assert "capital" in text(f"{host.url}/oslo", allowing(host)).text


def test_only_pages_of_the_web_are_read() -> None:
    odd = (
        "file:///etc/passwd",
        "gopher://example.org",
        "javascript:alert(1)",
        "example.org",
        "http://",
    )
    for url in (*odd, "http://192.0.43.7:0/", "http://192.0.43.7:99999/"):
        assert "URL" in refusal(url, FetchSettings())
    assert "user's name" in refusal("http://example.org@127.0.0.1/", FetchSettings())
    assert "is not found" in refusal("http://nowhere.invalid/", FetchSettings())


def test_hosts_are_allowed_and_denied_with_all_below_them(
    host: Hosts, names: dict[str, list[list[str]]]
) -> None:
    for name in ("example.test", "wiki.example.test", "bad.example.test", "notexample.test"):
        names[name] = [["127.0.0.1"]]
    settings = FetchSettings(
        allowed_hosts=("Example.test",),
        denied_hosts=("bad.example.test",),
        private_hosts=tuple(f"{name}:{host.port}" for name in names),
    )
    for name in ("example.test", "wiki.example.test", "WIKI.example.test."):
        assert b"capital" in fetch(f"http://{name}:{host.port}/oslo", settings).body
    for name in ("bad.example.test", "notexample.test", "bad.example.test."):
        assert "may not be read" in refusal(f"http://{name}:{host.port}/oslo", settings)
    assert host.asked["/oslo"] == 3


def test_a_private_host_is_allowed_at_its_port_alone(host: Hosts) -> None:
    with hosts() as other:
        assert b"capital" in fetch(f"{host.url}/oslo", allowing(host)).body
        assert "may not be read" in refusal(f"{other.url}/oslo", allowing(host))
    with pytest.raises(ValueError, match="is not a host"):
        FetchSettings(allowed_hosts=("https://example.org",))


def test_nothing_of_one_page_is_sent_with_another(
    host: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")

    async def both() -> None:
        fetcher = Fetcher(allowing(host))
        await fetcher.fetch(f"{host.url}/cookie", KINDS)
        await fetcher.fetch(f"{host.url}/oslo", KINDS)
        await fetcher.close()

    asyncio.run(both())
    assert [head.get("Cookie") for head in host.heads] == [None, None]
    assert {head["Connection"] for head in host.heads} == {"close"}


def certificate(folder: Path, name: str) -> tuple[Path, ssl.SSLContext]:
    """A certificate of a name with its key, and a context that believes it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    secret = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(secret.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(secret, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8
    pem = secret.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    public = made.public_bytes(serialization.Encoding.PEM)
    file = folder / "server.pem"
    file.write_bytes(pem + public)
    return file, ssl.create_default_context(cadata=public.decode())


def test_tls_checks_the_name_although_the_connection_goes_to_an_address(
    tmp_path: Path, names: dict[str, list[list[str]]]
) -> None:
    names["safe.test"] = names["other.test"] = [["127.0.0.1"]]
    file, trust = certificate(tmp_path, "safe.test")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    server = Hosts()
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    settings = FetchSettings(private_hosts=tuple(f"{name}:{server.port}" for name in names))
    try:
        assert b"capital" in fetch(f"https://safe.test:{server.port}/oslo", settings, trust).body
        with pytest.raises(PageError, match="no connection"):
            fetch(f"https://other.test:{server.port}/oslo", settings, trust)
        assert server.asked["/oslo"] == 1
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
