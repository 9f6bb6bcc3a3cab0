"""Memory that is freed is held when asked for, and then nothing is cleared again for what comes next."""

import platform
import subprocess
import sys

import pytest

from qkprism import memory

SCRIPT = """
import resource, sys
from qkprism.memory import give_back, hold_free
if sys.argv[1] == "hold":
    assert hold_free()

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    piece = b"x" * 20_000_000
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
again = faults()
give_back()
print(again, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told to hold memory")
def test_hold_free__pages_are_not_made_anew_until_memory_is_given_back():
    def run(how):
        found = subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, check=True)
        return map(int, found.stdout.split())

    (again, _), (held, given_back) = run("plain"), run("hold")
    assert held < 100 < min(again, given_back)


@pytest.mark.parametrize(("most", "holds"), [(2**31 - 1, True), (2**25, True), (2**20, False)])
def test_hold_free__takes_as_much_as_the_library_allows(most, holds, monkeypatch):
    taken = {}

    def choose(option, value):
        if option == -3 and value > most:  # the threshold from which memory is mapped
            return 0
        taken[option] = value
        return 1

    monkeypatch.setattr(memory, "_function", {"mallopt": choose}.get)
    assert memory.hold_free() is holds
    assert taken == {-1: 2**31 - 1} | ({-3: most} if holds else {})


def test_hold_free__other_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(memory, "_function", {}.get)
    assert not memory.hold_free()
    memory.give_back()
