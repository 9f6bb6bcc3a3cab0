"""The explorer under load: none of many questions is lost, memory stays flat, and who goes away frees the place."""

from __future__ import annotations

import json
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from conftest import serving
from test_atlas import WORDS

AT_ONCE, MANY = 20, 500
GROWTH = 30_000  # kB


def asked(address: str, what: str, **question: Any) -> Any:
    request = Request(f"{address}api/{what}", json.dumps(question).encode(), {"content-type": "application/json"})
    with urlopen(request, timeout=120) as answer:
        return json.load(answer)


def opened(address: str) -> None:
    while json.load(urlopen(f"{address}api/start", timeout=60))["stage"] != "ready":
        time.sleep(0.2)


def memory(process: int) -> int:
    """Resident kB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


def test_load__twenty_at_once_are_all_answered_and_memory_is_flat_over_five_hundred(little: tuple[str, int]) -> None:
    address, process = little
    opened(address)

    def row(place: int) -> int:
        text = f"{WORDS} {place % 50}"
        return len(asked(address, "row", text=text, query=5 + place % 20, head="L1H2", key=None)["attention"])

    with ThreadPoolExecutor(AT_ONCE) as threads:
        assert all(threads.map(row, range(100)))  # caches are full after these
        before = memory(process)
        assert len(list(threads.map(row, range(MANY)))) == MANY
    assert memory(process) - before < GROWTH


def test_load__ctrl_c_while_the_model_works_ends_it_well(
    little: tuple[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that is within torch cannot be stopped; the command ends all the same, and says nothing wrong."""
    monkeypatch.setenv("QKPRISM_CACHE", str(tmp_path))  # no atlas is kept here, so it is made
    model = os.readlink(f"/proc/{little[1]}/cwd") + "/little"
    with serving(tmp_path, "--device", "cpu", "--model", model) as (address, _):
        while json.load(urlopen(f"{address}api/start", timeout=60))["stage"] != "surveying":
            time.sleep(0.05)
    assert "terminate" not in (tmp_path / "log").read_text()


def test_load__who_goes_away_frees_the_place(little: tuple[str, int]) -> None:
    address, _ = little
    opened(address)
    place = urlsplit(address)
    body = json.dumps({"text": WORDS + " gone", "query": None}).encode()
    head = f"POST {place.path}api/explain HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json\r\n"
    for _ in range(200):  # more than the queue holds
        with socket.create_connection((place.hostname, place.port)) as client:
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    for left in reversed(range(15)):  # the server notices one by one who is gone
        try:
            found = asked(address, "explain", text=WORDS, query=None)
            break
        except HTTPError:
            if not left:
                raise
            time.sleep(0.2)
    assert found["tokens"]
