from data_modules.formats.lines import find, find_all


def test_a_file_that_is_there_plain_and_packed_counts_once(tmp_path):
    for name in ("b.tsv.gz", "a.tsv", "a.tsv.gz", "c.tsv.zip", "c.txt", "d.tsv.bz2"):
        (tmp_path / name).touch()
    (tmp_path / "e.tsv").mkdir()
    assert [file.name for file in find_all(tmp_path, "*.tsv")] == ["a.tsv", "b.tsv.gz", "c.tsv.zip"]
    assert find(tmp_path, "b.tsv", "a.tsv").name == "b.tsv.gz"
    assert find(tmp_path, "x.tsv") is None and find_all(tmp_path / "nowhere", "*") == []
