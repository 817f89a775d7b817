"""API keys: making, keeping, loading and checking them."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from frontend.errors import AuthenticationError
from frontend.keys import KeyFileError, KeyRing, append_key, make_key


def test_a_key_leads_to_its_tenant(tmp_path: Path) -> None:
    path = tmp_path / "keys.jsonl"
    plain = {}
    for tenant in ("red", "blue"):
        plain[tenant], record = make_key(tenant, 1_764_547_200)
        append_key(path, record)
    ring = KeyRing.load(path)
    assert len(ring) == 2
    assert ring.tenant_of(f"Bearer {plain['red']}") == "red"
    assert ring.tenant_of(f"  bearer   {plain['blue']} ") == "blue"
    assert ring.tenant_of_key(plain["blue"]) == "blue"


def test_the_file_holds_no_key_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "keys.jsonl"
    plain, record = make_key("red", 0)
    append_key(path, record)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert plain not in path.read_text()
    assert plain.removeprefix("sk-antiphon-") not in path.read_text()


def test_keys_differ() -> None:
    assert len({make_key("red", 0)[0] for _ in range(100)}) == 100


def test_writers_at_one_time_lose_no_line(tmp_path: Path) -> None:
    path = tmp_path / "keys.jsonl"
    records = [make_key(f"tenant-{number}", 0)[1] for number in range(32)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda record: append_key(path, record), records))
    assert len(KeyRing.load(path)) == 32


def test_a_line_left_unfinished_does_not_spoil_the_next(tmp_path: Path) -> None:
    path = tmp_path / "keys.jsonl"
    path.write_text('{"sha256": "ab')
    append_key(path, make_key("red", 0)[1])
    with pytest.raises(KeyFileError, match=r"keys\.jsonl:1: "):
        KeyRing.load(path)
    path.write_bytes(b"\n".join(path.read_bytes().splitlines()[1:]))
    assert len(KeyRing.load(path)) == 1


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Basic abc",
        "sk-antiphon-x",
        "Bearer sk-antiphon-x",
        "Bearer \udcff",
    ],
)
def test_anything_else_is_a_401(header: str | None) -> None:
    _, record = make_key("red", 0)
    with pytest.raises(AuthenticationError) as caught:
        KeyRing([record]).tenant_of(header)
    assert caught.value.body()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "[]",
        '{"sha256": "00", "tenant": "red", "created": 0}',
        '{"sha256": "%s", "tenant": "red", "created": 0}' % ("zz" * 32),
        '{"sha256": "%s", "tenant": "", "created": 0}' % ("00" * 32),
        '{"sha256": "%s", "tenant": "red"}' % ("00" * 32),
        '{"sha256": "%s", "tenant": "red", "created": 0, "x": 1}' % ("00" * 32),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "keys.jsonl"
    append_key(path, make_key("red", 0)[1])
    path.write_text(path.read_text() + "\n" + line + "\n")
    with pytest.raises(KeyFileError, match=r"keys\.jsonl:3: "):
        KeyRing.load(path)


def test_a_missing_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="No such file"):
        KeyRing.load(tmp_path / "none")
