"""Run a command of bertjax; the last line of its output has the page faults of each step except the first.

    python page_faults.py COMMAND...

It also has the number of smallest pages in a step's temporaries, which is the number of faults if none is reused.
"""

from __future__ import annotations

import itertools
import json
import resource
import sys

from bertjax.__main__ import main
from bertjax.runtime.host_memory import Temporaries

reuse = Temporaries.reuse
at_steps: list[int] = []
sizes: list[int] = []


def count_faults(self: Temporaries) -> None:
    reuse(self)
    at_steps.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    sizes.append(self._bytes)


if __name__ == "__main__":
    Temporaries.reuse = count_faults
    assert main(sys.argv[1:]) == 0
    faults = [after - before for before, after in itertools.pairwise(at_steps)]
    print(json.dumps({"pages": sizes[-1] // resource.getpagesize(), "faults": faults}))
