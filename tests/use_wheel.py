"""Use the installed wheel as a stranger would: in a folder of its own, with nothing of the repository on the path.

.venv-wheel/bin/python -I tests/use_wheel.py dist        # what `make test-wheel` runs after the build
"""

from __future__ import annotations

import base64
import gzip
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IN_THE_WHEEL = ("py.typed", "models/families.json", "contrasts/shelf/induction.toml", "explorer/static/index.html")
IN_THE_SDIST = ("LICENSE", "README.md", "pyproject.toml", "src/qkprism/__init__.py")
HEADS = ("heads", "induction", "--limit", "16", "--top", "3")
DECOMPOSE = ("decompose", "induction", "--limit", "32", "--heads", "L17H3", "--save", "run")


def use(dist: Path) -> None:
    """Look into both archives, then find heads, decompose and read the page that is written."""
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert version("qkprism") == stated, f"{version('qkprism')} is installed, pyproject.toml says {stated}"
    wheel, sdist = dist / f"qkprism-{stated}-py3-none-any.whl", dist / f"qkprism-{stated}.tar.gz"
    names = zipfile.ZipFile(wheel).namelist()
    assert [name for name in IN_THE_WHEEL if f"qkprism/{name}" not in names] == []
    assert [name for name in names if not name.startswith("qkprism")] == []
    with tarfile.open(sdist) as archive:
        kept = set(archive.getnames())
    assert [name for name in IN_THE_SDIST if f"qkprism-{stated}/{name}" not in kept] == []
    with tempfile.TemporaryDirectory() as folder:
        home = said(folder, sys.executable, "-I", "-c", "import qkprism; print(qkprism.__file__)").strip()
        assert not Path(home).is_relative_to(ROOT / "src"), f"{home} is the repository, not the wheel"
        assert "L" in said(folder, command(), *HEADS)
        assert "L17H3" in said(folder, command(), *DECOMPOSE)
        assert "L17H3" in said(folder, command(), "show", "run")
        page = (Path(folder) / "run" / "report.html").read_text()
        data = page.partition('<script type="application/gzip" id="data">')[2].partition("</script>")[0]
        assert b"L17H3" in gzip.decompress(base64.b64decode(data))
    print(f"qkprism {stated}: wheel and sdist are whole, and the wheel works outside the repository.")


def command() -> str:
    """The command as it was installed with the wheel."""
    return str(Path(sys.executable).parent / "qkprism")


def said(folder: str, *words: str) -> str:
    """What a command prints, run in a folder; if it fails, so do we, with what it said."""
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


if __name__ == "__main__":
    use(Path(sys.argv[1]))
