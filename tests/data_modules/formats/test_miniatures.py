"""Every format: found by itself, read whole, stored, and trained on."""

import gzip
import zipfile
from pathlib import Path

import pytest

from data_modules.formats.catalogue import read_layout
from gr_mvdr.files import PACKED
from tests.data_modules.formats.miniature import (
    FORMATS,
    MINIATURES,
    TEXTS,
    TITLES,
    copied,
    found_pairs,
    pairs,
)
from tests.runs import compose_config
from train import train

TITLED = {"beir", "wu", "dpr", "trec"}  # the others join the two
PARTED = {"beir"}  # dev_seen and dev_unseen are there


@pytest.mark.parametrize("format", FORMATS)
def test_a_format_is_found_and_holds_what_it_should(format):
    layout = read_layout(MINIATURES / format)
    assert layout.options["reader"].split("/")[0] == format and layout.name == format
    documents = list(layout.documents())
    if format in TITLED:
        assert [(d.title, d.text) for d in documents] == list(zip(TITLES, TEXTS, strict=True))
    else:
        joined = [f"{title} {text}" for title, text in zip(TITLES, TEXTS, strict=True)]
        assert [(d.title, d.text) for d in documents] == [("", text) for text in joined]
    splits = ["train", "dev", *(["dev_seen", "dev_unseen"] if format in PARTED else [])]
    assert sorted(layout.judgements) == sorted(splits)
    for split in splits:
        assert found_pairs(layout, split) == pairs(split), split
    assert all(Path(row.where.partition(":")[0]) in layout.files for row in documents)
    given = {"wu": ({"dev"}, 1), "dpr": (set(), 2), "trec": ({"dev"}, 0)}
    assert (set(layout.candidates), len(layout.negatives)) == given.get(format, (set(), 0))


def repacked(folder: Path, ending: str, windows: bool) -> None:
    """Packs every plain file; Windows line ends and a byte order mark first."""
    for file in [f for f in folder.rglob("*") if f.is_file() and f.suffix not in PACKED]:
        content = file.read_bytes()
        if windows:
            content = b"\xef\xbb\xbf" + content.removeprefix(b"\xef\xbb\xbf")
            content = content.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
        file.unlink()
        target = file.with_name(file.name + ending)
        if ending == ".gz":
            target.write_bytes(gzip.compress(content))
        else:
            with zipfile.ZipFile(target, "w") as archive:
                archive.writestr(file.name, content)


@pytest.mark.parametrize(
    ("format", "ending", "windows"),
    [*((format, ".gz", True) for format in FORMATS), ("wu", ".zip", True)],
)
def test_packing_line_ends_and_byte_order_marks_change_nothing(format, ending, windows, tmp_path):
    def content(layout):
        rows = [*layout.documents(), *layout.queries()]
        for split in sorted(layout.judgements):
            rows += layout.judgements[split]()
        return [row[1:] for row in rows]

    folder = copied(format, tmp_path)
    repacked(folder, ending, windows)
    assert content(read_layout(folder)) == content(read_layout(MINIATURES / format))


def test_a_format_runs_to_the_end(tmp_path):
    """A model that trains reads hard negatives."""
    files = f"data=files data.path={MINIATURES / 'dpr'} data.test_split=dev"
    run = f"experiment=smoke model=t5_colbert logger=none analysis=none output={tmp_path} name=run"
    metrics = train(compose_config("train", *files.split(), *run.split())).metrics
    assert metrics["retrieve/recall@100"] == 1.0 and "rerank/mrr@10" in metrics
