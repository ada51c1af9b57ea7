"""The flags that tests give to XLA."""

import pytest
from fake_devices import QUICK, xla_flags


@pytest.mark.parametrize("quick", [True, False])
def test_xla_flags_keep_those_of_the_user(monkeypatch: pytest.MonkeyPatch, quick: bool) -> None:
    """Also in a subprocess of a test, whose XLA_FLAGS contain the test flags too."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_max_isa=AVX2 --xla_force_host_platform_device_count=3")
    monkeypatch.setenv("XLA_FLAGS", xla_flags(devices=8))
    count, *ours, last = xla_flags(devices=1, quick=quick).split()
    assert count == "--xla_force_host_platform_device_count=1"
    assert last == "--xla_cpu_max_isa=AVX2", "later flags override earlier ones"
    assert (ours[: len(QUICK)] == QUICK) == quick and bool(ours) == quick
