"""The versions that pyproject.toml allows are tested: from constraints-oldest.txt up to the next major version."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIREMENTS = [Requirement(line) for line in PROJECT["dependencies"]]
EXTRAS = [Requirement(line) for name in ("gguf", "images", "umap") for line in PROJECT["optional-dependencies"][name]]


def pinned(name: str) -> dict[str, Version]:
    lines = (ROOT / name).read_text().splitlines()
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {package.lower().replace("_", "-"): Version(version) for package, version in pins}


def bound(specifiers: SpecifierSet, operator: str) -> Version:
    (found,) = [Version(part.version) for part in specifiers if part.operator == operator]
    return found


@pytest.mark.parametrize("requirement", REQUIREMENTS + EXTRAS, ids=lambda each: each.name)
def test_ranges__end_at_the_next_major_version(requirement: Requirement) -> None:
    highest, here = bound(requirement.specifier, "<"), pinned("constraints.txt")[requirement.name]
    assert re.fullmatch(r"\d+", str(highest))
    assert highest.major == here.major + 1
    assert here in requirement.specifier


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=lambda each: each.name)
def test_ranges__begin_at_what_is_tested(requirement: Requirement) -> None:
    lowest, oldest = bound(requirement.specifier, ">="), pinned("constraints-oldest.txt")[requirement.name]
    assert oldest in requirement.specifier
    if requirement.name != "torch":  # of which no older build for the CPU alone can be installed
        assert oldest == lowest
