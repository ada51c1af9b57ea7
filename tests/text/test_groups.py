"""Groups of near relatives: each in one split, recorded in the store, with one member per epoch."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from bertjax.config import DataConfig
from bertjax.input.batches import RowBatches
from bertjax.input.windows import one_of_each_group
from bertjax.text.groups import name_hash, read_groups
from bertjax.text.prepare import prepare, reading_notes
from bertjax.text.store.format import TokenStore

LETTERS = "LAGVSERTIDPKQNFYMHWC"


def sequence(number: int) -> str:
    draw = np.random.default_rng(number)
    return "".join(draw.choice([*LETTERS], size=30))


@pytest.fixture
def data(tmp_path):
    """200 records in 50 clusters of 1 to 7 members, as MMseqs2 lists them."""
    clusters = {f"r{n}": f"c{n * n % 50}" for n in range(200)}
    (tmp_path / "a.fasta").write_text("".join(f">{name}\n{sequence(int(name[1:]))}\n" for name in clusters))
    (tmp_path / "clusters.tsv").write_text("".join(f"{group}\t{name}\n" for name, group in clusters.items()))
    return DataConfig(
        sources=(f"fasta:{tmp_path}/a.fasta",),
        tokenizer="characters:esm2",
        groups=f"mmseqs:{tmp_path}/clusters.tsv",
        root=str(tmp_path / "data"),
        held_out=0.3,
        workers=1,
        rows="crops",
        sequence_length=34,
    )


def groups_of(store: TokenStore) -> dict[str, np.ndarray]:
    groups = {name: store.split(name).groups for name in ("train", "held_out")}
    assert groups["train"] is not None and groups["held_out"] is not None
    return groups


def test_a_cluster_is_in_one_split(data):
    store = TokenStore.open(prepare(data))
    groups = groups_of(store)
    assert not {*groups["train"]} & {*groups["held_out"]}
    clusters = Counter(name_hash(f"c{n * n % 50}") for n in range(200))
    assert Counter(np.concatenate([*groups.values()]).tolist()) == clusters
    split = store.split("train")
    first = split.tokens(split.sentence_offsets[:1], np.diff(split.sentence_offsets[:2]))
    text = "".join(store.tokenizer().tokens[number] for number in first)
    number = next(n for n in range(200) if sequence(n) == text)
    assert groups["train"][0] == name_hash(f"c{number * number % 50}")
    alone = TokenStore.open(prepare(replace(data, groups="")))
    assert alone.path != store.path and alone.split("train").groups is None
    assert any(note.startswith("records are held out at random") for note in reading_notes(alone.manifest))
    assert not any("held out" in note for note in reading_notes(store.manifest))


def test_an_epoch_reads_one_member_of_each_cluster(data):
    store = TokenStore.open(prepare(data))
    split, tokenizer = store.split("train"), store.tokenizer()
    batches = RowBatches(split, tokenizer, replace(data, sampling="groups"), 0, objectives=("mlm",))
    clusters = len({*split.groups.tolist()})
    assert batches.rows_per_epoch == clusters
    epochs = []
    for epoch in range(6):
        rows = batches.pairs(np.arange(epoch * clusters, (epoch + 1) * clusters))
        documents = np.searchsorted(split.sentence_offsets, rows.first[:, 0])
        assert sorted(split.groups[documents].tolist()) == sorted({*split.groups.tolist()})
        epochs.append(tuple(sorted(documents.tolist())))
    assert len({*epochs}) == 6
    without = TokenStore.open(prepare(replace(data, groups=""))).split("train")
    with pytest.raises(ValueError, match="the token store has no groups; prepare it with"):
        RowBatches(without, tokenizer, replace(data, sampling="groups"), 0, objectives=("mlm",))


def test_group_members_are_drawn_uniformly():
    count = 50_000
    groups = np.arange(4 * count, dtype=np.uint64) % count
    members = []  # in each of four epochs, the number of the drawn member within each group
    for epoch in range(4):
        member, group = np.divmod(one_of_each_group(groups, 1, epoch).document, count)
        order = np.argsort(group)
        assert np.array_equal(group[order], np.arange(count))
        assert (np.abs(np.bincount(member) - count / 4) < 5 * np.sqrt(count * 0.25 * 0.75)).all()
        members.append(member[order])
    equal_shares = [np.mean(members[0] == members[1]), np.mean(members[0][1:] == members[0][:-1])]
    assert np.abs(np.array(equal_shares) - 0.25).max() < 5 * np.sqrt(
        0.25 * 0.75 / count
    )  # epochs and groups are independent


def test_groups_may_come_from_a_column(tmp_path):
    (tmp_path / "a.csv").write_text("text,family\n" + "".join(f"{sequence(n)},f{n % 9}\n" for n in range(90)))
    rows = [json.dumps({"text": sequence(100 + n), "family": n % 9}) for n in range(90)]
    (tmp_path / "b.jsonl").write_text("\n".join(rows))
    data = DataConfig(
        sources=(f"csv:{tmp_path}/a.csv:text", f"jsonl:{tmp_path}/b.jsonl"),
        tokenizer="characters",
        groups="column:family",
        root=str(tmp_path / "data"),
        held_out=0.3,
        workers=1,
    )
    groups = groups_of(TokenStore.open(prepare(data)))
    assert not {*groups["train"]} & {*groups["held_out"]}
    assert len({*np.concatenate([*groups.values()])}) == 18


def few_groups(tmp_path, count):
    rows = [json.dumps({"text": sequence(n)[: 24 + n % 7], "family": n % count}) for n in range(160)]
    (tmp_path / "few.jsonl").write_text("\n".join(rows))
    return DataConfig(
        sources=(f"jsonl:{tmp_path}/few.jsonl",),
        tokenizer="characters",
        groups="column:family",
        root=str(tmp_path / "data"),
        held_out=0.001,
        workers=1,
    )


def test_note_states_the_share_of_a_whole_group(tmp_path):
    manifest = TokenStore.open(prepare(few_groups(tmp_path, 8))).manifest
    train, held_out = (manifest["splits"][split] for split in ("train", "held_out"))
    assert (train["documents"], held_out["documents"]) == (140, 20)
    share = held_out["tokens"] / (train["tokens"] + held_out["tokens"])
    assert any(note.startswith(f"{share:.1%} of the text is held out") for note in reading_notes(manifest))


def test_group_that_is_half_of_the_text_is_refused(tmp_path):
    with pytest.raises(ValueError, match="one group is 50% of the text, but groups are not divided"):
        prepare(few_groups(tmp_path, 2))


@pytest.mark.parametrize(
    ("written", "content", "message"),
    [
        ("clusters.tsv", "", "write file:PATH"),
        ("file:{}/none.tsv", "", "no such file"),
        ("file:{}/c.tsv", "a b c\n", "line 1: 'a b c'; expected two names"),
        ("file:{}/c.tsv", "a g\nb g\na h\n", "line 3: this record was already put in another group"),
    ],
)
def test_invalid_groups_are_refused(tmp_path, written, content, message):
    (tmp_path / "c.tsv").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_groups(written.format(tmp_path))


def test_groups_of_other_records_are_refused(data, tmp_path):
    (tmp_path / "others.tsv").write_text("x1 g\nx2 g\n")
    with pytest.raises(ValueError, match="none of 200 records is in a group; list these records by their names"):
        prepare(replace(data, groups=f"file:{tmp_path}/others.tsv"))
