"""The explorer served, and a browser to look at it with; what the page says or asks of others is heard."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import sync_playwright

import qkprism as qk
from qkprism.studies.binding_prompts import binding_prompts
from test_atlas import explained


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    program = shutil.which("chromium")
    if program is None and not os.environ.get("QKPRISM_REQUIRE_ALL"):
        pytest.skip("needs chromium")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[tuple[str, int]]:
    """The command itself: its address and the process; at the end Ctrl-C, which it takes well."""
    command = [sys.executable, "-m", "qkprism", "explore", "--no-browser", *options]
    with (
        open(folder / "log", "w") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder) as process,
    ):
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1], process.pid
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
        finally:
            process.kill()
    assert "Traceback" not in (folder / "log").read_text()


@contextmanager
def exploring(folder: Path, *runs: str) -> Iterator[tuple[str, int]]:
    """A tiny model, with its atlas and runs."""
    model, atlas = explained()
    model.hf.save_pretrained(folder / "little")
    model.tokenizer.save_pretrained(folder / "little")
    atlas.save(folder / "atlas")
    options = ["--device", "cpu", "--dtype", "float32", "--model", "little", "--atlas", "atlas"]
    with serving(folder, *options, *runs) as served:
        yield served


@pytest.fixture(scope="session")
def little(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """A tiny model, with its atlas."""
    with exploring(tmp_path_factory.mktemp("explored")) as served:
        yield served


@pytest.fixture(scope="session")
def bound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The same with two runs: `twins` is in the contrast metric, `one` in the raw one."""
    folder = tmp_path_factory.mktemp("bound")
    contrasts = binding_prompts("boxes", 3, n_train=40, n_test=1).contrasts
    for name, metric in (("twins", "contrast"), ("one", "raw")):
        recipe = qk.Recipe(rank=2, metric=metric)
        features = qk.decompose(explained()[0], contrasts, heads=["L1H2"], recipe=recipe, progress=False)
        features.save(folder / name)
    with exploring(folder, "twins", "one") as (address, _):
        yield address


@pytest.fixture(scope="session")
def served(little: tuple[str, int]) -> str:
    return little[0]


@pytest.fixture(scope="session")
def default(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The default model."""
    with serving(tmp_path_factory.mktemp("default")) as (address, _):
        yield address


@pytest.fixture
def watched(browser: Any) -> Iterator[Any]:
    """A page, and what it said on its console or asked of others: nothing."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    page, heard = context.new_page(), []
    page.on("console", lambda message: heard.append(message.text) if is_wrong(message) else None)
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.on("dialog", lambda dialog: heard.append(f"dialog {dialog.message}"))
    page.on("request", lambda request: heard.append(request.url) if not is_here(request.url) else None)
    page.set_default_timeout(120_000)
    yield page
    context.close()
    assert heard == []


def is_wrong(message: Any) -> bool:
    """Whether the console holds a warning; browsers note there also that a mistake was answered as one, with 400."""
    return message.type in ("error", "warning") and "status of 400" not in message.text


def is_here(url: str) -> bool:
    return url.startswith(("http://127.0.0.1:", "data:", "file:", "blob:"))
