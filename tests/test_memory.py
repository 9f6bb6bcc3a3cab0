"""Memory that is freed is held when asked for, and then nothing is cleared again for what comes next."""

import platform
import subprocess
import sys

import pytest

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
