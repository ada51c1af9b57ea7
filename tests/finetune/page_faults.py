"""A command of bertjax; its last line has how often each step, but the first, touched a page that was not there yet.

    python page_faults.py COMMAND...

It has how many pages of the smallest kind a step's temporaries are, too: so often it is, if none is there.
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


def counted(self: Temporaries) -> None:
    reuse(self)
    at_steps.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    sizes.append(self._bytes)


if __name__ == "__main__":
    Temporaries.reuse = counted
    assert main(sys.argv[1:]) == 0
    faults = [after - before for before, after in itertools.pairwise(at_steps)]
    print(json.dumps({"pages": sizes[-1] // resource.getpagesize(), "faults": faults}))
