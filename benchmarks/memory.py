"""How much memory a process holds, as Linux tells it.

`ru_maxrss` will not do: a process that another one starts begins with the peak of the one that started it.
"""

from __future__ import annotations

from pathlib import Path


def memory(process: int | str = "self") -> tuple[int, int]:
    """The memory of a process without files now, and the peak of all that it held, in MB; 0 when it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0, 0
    fields = dict(line.split(":", 1) for line in lines)
    anonymous, highest = (int(fields.get(name, "0 kB").split()[0]) // 1024 for name in ("RssAnon", "VmHWM"))
    return anonymous, highest
