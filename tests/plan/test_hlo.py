"""Parse the text of compiled programs: loops, fusions, and every notation of device groups."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from bertjax.plan.collectives import find_collectives
from bertjax.plan.hlo import parse
from bertjax.plan.roofline import memory_traffic

ROUNDS = 5


def make_test_mesh(*shape: int) -> Mesh:
    devices = np.array(jax.devices()[:8]).reshape(shape)
    return Mesh(devices, ("data", "fsdp", "tensor")[: len(shape)], axis_types=(AxisType.Auto,) * len(shape))


def program(attributes: str, *, fusion: str = "") -> str:
    """A program with an all-reduce of 128 floats in a loop of three rounds, as written by the TPU compiler."""
    return f"""HloModule m

%body (p: (s32[], f32[128])) -> (s32[], f32[128]) {{
  %p = (s32[]{{:T(128)}}, f32[128]{{0:T(128)S(1)}}) parameter(0)
  %x = f32[128]{{0:T(128)S(1)}} get-tuple-element(%p), index=1
  %i = s32[]{{:T(128)}} get-tuple-element(%p), index=0
  %r = f32[128]{{0:T(128)}} all-reduce(%x), {attributes}, to_apply=%add
  ROOT %t = (s32[], f32[128]) tuple(%i, %r){fusion}
}}

%condition (p.1: (s32[], f32[128])) -> pred[] {{
  %p.1 = (s32[]{{:T(128)}}, f32[128]{{0:T(128)S(1)}}) parameter(0)
  %bound = s32[]{{:T(128)}} constant(3), metadata={{op_name="x"}}
  %i.1 = s32[]{{:T(128)}} get-tuple-element(%p.1), index=0
  ROOT %lt = pred[]{{:T(512)}} compare(%i.1, %bound), direction=LT
}}

ENTRY %main (a: (s32[], f32[128])) -> (s32[], f32[128]) {{
  %a = (s32[]{{:T(128)}}, f32[128]{{0:T(128)}}) parameter(0)
  ROOT %w = (s32[], f32[128]) while(%a), condition=%condition, body=%body
}}
"""


@pytest.mark.parametrize(
    ("groups", "first", "axes"),
    [
        ("replica_groups={{0,1},{2,3},{4,5},{6,7}}", (0, 1), ("tensor",)),
        ("replica_groups={}", tuple(range(8)), ("data", "fsdp", "tensor")),
        ("replica_groups=[4,2]<=[8]", (0, 1), ("tensor",)),
        ("replica_groups=[2,4]<=[4,2]T(1,0)", (0, 2, 4, 6), ("data", "fsdp")),
        ("replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_0'}", (0, 2, 4, 6), ("data", "fsdp")),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=2,'axis_2'=2] {'axis_0','axis_2'}", (0, 1, 4, 5), ("data", "tensor")),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=4], device_ids=([4,2]T(1,0)) {'axis_0'}", (0, 1), ("tensor",)),
    ],
)
def test_groups_are_read_in_every_notation(groups: str, first: tuple[int, ...], axes: tuple[str, ...]) -> None:
    (collective,) = find_collectives(parse(program(groups)), make_test_mesh(2, 2, 2), (0,) * 4 + (1,) * 4)
    assert (collective.group, collective.axes, collective.times, collective.payload) == (first, axes, 3, 512)
    assert collective.slices == (2 if 4 in first else 1)


def test_unknown_group_notation_is_refused() -> None:
    with pytest.raises(ValueError, match="names the devices of r in an unknown format"):
        find_collectives(parse(program("replica_groups=[[spiral]]")), make_test_mesh(8), (0,) * 8)


def test_continued_gather_is_counted_once() -> None:
    attributes = 'replica_groups={}, frontend_attributes={chain_id="2"}'
    begins = '\n  %c = s32[2]{0:S(4)} custom-call(%r), custom_call_target="AsyncCollectiveStart"'
    assert not find_collectives(parse(program(attributes)), make_test_mesh(8), (0,) * 8)
    assert len(find_collectives(parse(program(attributes, fusion=begins)), make_test_mesh(8), (0,) * 8)) == 1


def test_transfers_between_slices_are_listed() -> None:
    send = (
        "\n  %s = (f32[64,8]{1,0:T(8,128)}, u32[], token[]) send(%x, %x), channel_id=1, is_host_transfer=true, "
        'frontend_attributes={_xla_megascale_transfer_type="ALL_REDUCE"}'
    )
    module = parse(program("replica_groups={{0,1},{2,3},{4,5},{6,7}}", fusion=send))
    _, between = find_collectives(module, make_test_mesh(2, 2, 2), (0,) * 4 + (1,) * 4)
    assert (between.kind, between.payload, between.times, between.slices) == ("all-reduce", 2048, 3, 2)
    assert between.axes == ("data",)


def test_traffic_counts_main_memory_only() -> None:
    # In each of three rounds the all-reduce reads on-chip memory and writes 512 bytes to main memory, and the condition
    # reads two numbers of 4 bytes and writes a byte.
    assert memory_traffic(parse(program("replica_groups={}"))) == 3 * (512 + 4 + 4 + 1)


def test_collectives_on_sparse_cores_are_listed() -> None:
    text = """HloModule m

%called (p: f32[128]) -> f32[128] {
  %p = f32[128]{0:T(128)} parameter(0)
  ROOT %r = f32[128]{0:T(128)} all-reduce(%p), replica_groups={}, to_apply=%add
}, execution_thread="sparsecore"

ENTRY %main (a: f32[128]) -> f32[128] {
  %a = f32[128]{0:T(128)} parameter(0)
  %s = ((f32[128]{0:T(128)}), f32[128]{0:T(128)}) call-start(%a), async_execution_thread="sparsecore", to_apply=%called
  ROOT %d = f32[128]{0:T(128)} call-done(%s)
}
"""
    module = parse(text)
    (collective,) = find_collectives(module, make_test_mesh(8), (0,) * 8)
    assert (collective.kind, collective.payload, collective.times) == ("all-reduce", 512, 1)
    assert memory_traffic(module) == 512 + 512


@pytest.mark.parametrize(
    ("instruction", "read"),
    [
        ("%m = f32[4,128]{1,0:T(4,128)} fusion(%p), kind=kLoop, calls=%relayout", 512),
        ("%m = f32[4,128]{1,0:T(4,128)} fusion(%p), kind=kLoop, calls=%doubled", 4 * 512),
        ("%m = f32[4,128]{1,0} copy(%p)", 512),
    ],
)
def test_fusion_that_slices_a_copy_reads_the_slice(instruction: str, read: int) -> None:
    text = f"""HloModule m

%relayout (q: f32[4,128]) -> f32[4,128] {{
  %q = f32[4,128]{{1,0:T(8,128)}} parameter(0)
  ROOT %c = f32[4,128]{{1,0:T(4,128)}} copy(%q)
}}

%doubled (q: f32[4,128]) -> f32[4,128] {{
  %q = f32[4,128]{{1,0:T(8,128)}} parameter(0)
  ROOT %c = f32[4,128]{{1,0:T(4,128)}} add(%q, %q)
}}

%inside (p: f32[4,128], n: s32[]) -> f32[128] {{
  %p = f32[4,128]{{1,0:T(8,128)}} parameter(0)
  %n = s32[]{{:T(128)S(6)}} parameter(1)
  {instruction}
  %s = f32[1,128]{{1,0:T(4,128)}} dynamic-slice(%m, %n, %n), dynamic_slice_sizes={{1,128}}
  ROOT %b = f32[128]{{0:T(128)}} bitcast(%s)
}}

ENTRY %main (a: f32[4,128], i: s32[]) -> f32[128] {{
  %a = f32[4,128]{{1,0:T(8,128)}} parameter(0)
  %i = s32[]{{:T(128)S(6)}} parameter(1)
  ROOT %f = f32[128]{{0:T(128)}} fusion(%a, %i), kind=kLoop, calls=%inside
}}
"""
    assert memory_traffic(parse(text)) == read + 512


def test_matmul_reads_a_weight_behind_a_bitcast() -> None:
    text = """HloModule m

%shaped (q: f32[2,64]) -> f32[128] {
  %q = f32[2,64]{1,0:T(8,128)} parameter(0)
  ROOT %b = f32[128]{0:T(128)} bitcast(%q)
}

%inside (p: f32[2,64]) -> f32[] {
  %p = f32[2,64]{1,0:T(8,128)} parameter(0)
  %w = f32[128]{0:T(128)} fusion(%p), kind=kLoop, calls=%shaped
  ROOT %d = f32[]{:T(128)} dot(%w, %w)
}

ENTRY %main (a: f32[2,64]) -> f32[] {
  %a = f32[2,64]{1,0:T(8,128)} parameter(0)
  ROOT %f = f32[]{:T(128)} fusion(%a), kind=kOutput, calls=%inside
}
"""
    assert memory_traffic(parse(text)) == 512 + 4


def test_collective_in_a_loop_counts_every_iteration() -> None:
    mesh = make_test_mesh(4, 2)

    def body(x):
        gathered = jax.lax.all_gather(x, "fsdp", tiled=True)
        total, _ = jax.lax.scan(lambda c, _: (jnp.sin(jax.lax.psum(c, "data")), None), gathered, None, length=ROUNDS)
        return total

    function = jax.jit(
        jax.shard_map(body, mesh=mesh, in_specs=P(("data", "fsdp")), out_specs=P("data"), check_vma=False)
    )
    module = parse(function.lower(jax.ShapeDtypeStruct((64, 16), jnp.float32)).compile().as_text())
    collectives = {one.kind: one for one in find_collectives(module, mesh, (0,) * 8)}
    assert (collectives["all-gather"].axes, collectives["all-gather"].times) == (("fsdp",), 1)
    assert collectives["all-gather"].payload == 16 * 16 * 4
    assert (collectives["all-reduce"].axes, collectives["all-reduce"].times) == (("data",), ROUNDS)
    assert collectives["all-reduce"].payload == 16 * 16 * 4
