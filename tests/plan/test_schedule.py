"""The time by the compiler's schedule: bundles counted with their loops, and the longer of bundles and bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertjax.plan.hlo import parse
from bertjax.plan.schedule import count_cycles, read_cycles, schedule_time
from bertjax.plan.topologies import CHIPS, empty_dump, planning_environment

BUNDLES = """
LB: loop body
     0   :  { %v1 = vmov 0.0 }
   0x1 LB: > { %s1 = sadd.s32 1, %s2 }
   0x2 LB: >> { %v2 = vld [vmem:[%s3]] }
   0x3   : >> { %p1 = scmp.ge.s32.totalorder %s4, 5 /* loop exit test */ }
   0x4   :  {}
   0x5   : >> { %v4 = vst [vmem:[%s3]] }
   0x6   : > { %p2 = scmp.ge.s32.totalorder %s1, 10 /* loop exit test */ }
   0x7 LH: > { %p3 = scmp.ge.s32.totalorder %s5, 7 /* loop exit test */ }
   0x8 LB: > { %s5 = sadd.s32 1, %s5 }
   0x9   :  { %v3 = vst [vmem:[%s6]] }
"""


def test_cycles_count_every_iteration_of_a_loop() -> None:
    """Also counts a loop's bundles that follow its last branch, and empty bundles, which have no depth."""
    assert count_cycles(BUNDLES) == 1 + 10 * (1 + 5 * 4 + 1) + 7 * 2 + 1


def test_exit_test_may_be_inside_an_inner_loop() -> None:
    outer = "%p2 = scmp.ge.s32.totalorder %s1, 10 /* loop exit test */"
    within = outer.replace("totalorder", "totalorder (%p1),")
    moved = BUNDLES.replace(outer, "%v5 = vmov 0.0").replace("{ %v4 =", f"{{ {within}  ;;  %v4 =")
    assert count_cycles(moved) == count_cycles(BUNDLES)


def test_pipelined_loop_computes_in_all_iterations_but_two() -> None:
    pipelined = BUNDLES.replace("%s1 = sadd.s32 1, %s2 }", "%s1 = sadd.s32 1, %s2 /* iteration index, stage = 1 */ }")
    assert count_cycles(pipelined) == 1 + 8 * (1 + 5 * 4 + 1) + 7 * 2 + 1


PROGRAM = """
ENTRY %main (a: f32[1024,1024]) -> f32[1024,1024] {
  %a = f32[1024,1024]{1,0} parameter(0)
  %loop_fusion.1 = f32[1024,1024]{1,0} fusion(%a), kind=kLoop, calls=%body
  %loop_fusion.2 = f32[1024,1024]{1,0} fusion(%loop_fusion.1), kind=kLoop, calls=%body
  %all-reduce.1 = f32[1024,1024]{1,0} all-reduce(%loop_fusion.2), to_apply=%body
  ROOT %copy.1 = f32[1024,1024]{1,0} copy(%all-reduce.1), backend_config={"estimated_cycles":"3000000"}
}

%body (x: f32[1024,1024]) -> f32[1024,1024] {
  %x = f32[1024,1024]{1,0} parameter(0)
  ROOT %y = f32[1024,1024]{1,0} add(%x, %x)
}
"""


@pytest.mark.parametrize(("cycles", "fusion"), [(1_500_000, 1e-3), (15, 8 * 1024 * 1024 / 8.19e11)])
def test_instruction_takes_the_longer_of_bundles_and_bytes(cycles: int, fusion: float) -> None:
    result = schedule_time(parse(PROGRAM), {"loop_fusion.1": cycles}, CHIPS["v5e"])
    assert result is not None
    # The second fusion is equal to the first, the copy has the cost model's cycles, and exchange is left out.
    assert result.seconds == pytest.approx(2 * fusion + 2e-3, rel=1e-6) and result.modelled == pytest.approx(2e-3)
    assert schedule_time(parse(PROGRAM), {}, CHIPS["tpu7x"]) is None


def test_instruction_without_estimate_takes_its_traffic_time() -> None:
    unknown = PROGRAM.replace('"3000000"', f'"{2**63 - 1}"')
    result = schedule_time(parse(unknown), {"loop_fusion.1": 0}, CHIPS["v5p"])
    assert result is not None and result.modelled == 0
    assert result.seconds == pytest.approx(3 * 8 * 1024 * 1024 / 2.765e12, rel=1e-3)


KERNELS = """
ENTRY %main (a: f32[8,8]) -> f32[8,8] {
  %a = f32[8,8]{1,0} parameter(0)
  %kernel.1 = f32[8,8]{1,0} custom-call(%a), backend_config={"used_scoped_memory_configs":[{"offset":"0","size":"64"}]}
  %kernel.2 = f32[8,8]{1,0} custom-call(%a), backend_config={"used_scoped_memory_configs":[{"offset":"0","size":"32"}]}
  %kernel.3 = f32[8,8]{1,0} custom-call(%a), backend_config={"used_scoped_memory_configs":[{"offset":"0","size":"32"}]}
  ROOT %sum = f32[8,8]{1,0} add(%kernel.1, %kernel.3)
}
"""


def test_kernels_of_equal_shapes_differ_by_their_scratch_memory() -> None:
    result = schedule_time(parse(KERNELS), {"kernel.1": 9_000_000, "kernel.2": 1_500_000}, CHIPS["v5e"])
    assert result is not None and result.seconds == pytest.approx(6e-3 + 2 * 1e-3, rel=1e-4)


def test_read_cycles_maps_files_to_instructions(tmp_path: Path) -> None:
    environment = planning_environment("v5e:1x1", {"LIBTPU_INIT_ARGS": "--flag=1"}, tmp_path)
    assert environment["LIBTPU_INIT_ARGS"].startswith(f"--flag=1 --xla_jf_dump_to={tmp_path} ")
    for name in ("7-loop_fusion.1-01-final_bundles.txt", "7-TLP-01-final_bundles.txt"):
        (tmp_path / name).write_text(BUNDLES)
    (tmp_path / "7-loop_fusion.1-00-schedule-analysis_final_bundles.txt").write_text("")
    assert read_cycles(tmp_path) == {"loop_fusion.1": 236}
    assert empty_dump(environment) == tmp_path and read_cycles(tmp_path) == {}
    assert empty_dump({}) is None
