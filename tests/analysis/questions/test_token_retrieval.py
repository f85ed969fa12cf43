import math

import pytest
import torch
from datasets import Dataset

from analysis.questions.token_retrieval import FILE, TokenRetrieval
from analysis.run import write_findings
from analysis.runs.run_folder import read_kept
from tests.analysis.asking import Indexed, asked, data_of, text_of

END = 1


# Document a: tokens 10 11 </s>; document b: 10 12 </s>; angles on the circle.
DOCUMENTS = {"a": ([10, 11, END], [0.0, 1.0, 3.0]), "b": ([10, 12, END], [0.1, 2.0, -2.0])}
QUERIES = {"q0": ([10, END], [0.02, -2.0]), "q1": ([12, 11, END], [1.1, 1.2, 3.0])}
RELEVANT = {"q0": ["b"], "q1": ["a"]}


def circle(texts):
    return {
        name: text_of(torch.stack([torch.tensor(angles).cos(), torch.tensor(angles).sin()], 1), ids)
        for name, (ids, angles) in texts.items()
    }


def make(folder):
    return Indexed(folder, circle(DOCUMENTS), circle(QUERIES))


class Tokenizer:
    """Ids are read as numbers: "w10 w11"."""

    all_special_ids = (0, END, 2)

    def __len__(self):
        return 100

    def convert_ids_to_tokens(self, number):
        return f"w{number}"

    def decode(self, ids):
        return " ".join(map(self.convert_ids_to_tokens, ids))


def data():
    table = Dataset.from_dict({"id": list(QUERIES)})
    return data_of(
        test_queries=lambda split: table,
        relevant=lambda split, chosen: {q: RELEVANT[q] for q in chosen["id"]},
        tokenizer=Tokenizer(),
    )


def test_retrieval_on_a_circle_worked_out_by_hand(tmp_path):
    """Three words: q0's 10 at 0.02, q1's 12 at 1.1 and 11 at 1.2; end tokens ask for nothing.

    Their first three neighbours: a10 b10 a11; a11 b12 b10; a11 b12 b10.
    """
    found = asked(TokenRetrieval, make(tmp_path), data(), 10, neighbours=3)
    rows = found.tables["token_retrieval"]
    third = 1 / 3
    assert [row["gold"] for row in rows] == pytest.approx([2 * third, third, 0])
    # q0: a10 b10; q1's 12: b12 at rank 2; q1's 11: a11 at rank 1.
    assert [row["lexical"] for row in rows] == pytest.approx([2 * third, 2 * third, 0])
    for name in ("gold", "lexical"):
        assert found.metrics[f"analysis/token_retrieval/{name}@1"] == pytest.approx(2 / 3)
    densities = found.tables["token_similarity"]
    width = densities[1]["similarity"] - densities[0]["similarity"]
    for kind in ("gold", "other"):
        assert sum(row[kind] for row in densities) * width == pytest.approx(1, abs=1e-4)
    # b10 is near q0's 10 and far from q1's words, to which it is not relevant.
    assert densities[-1]["gold"] > 0 and densities[0]["gold"] == 0 < densities[0]["other"]

    # What is kept: q1's 12 at 1.1 finds a11 at 1.0 and b12 at 2.0; a alone is relevant.
    write_findings([found], tmp_path)
    kept = read_kept(tmp_path, FILE)["q1"]
    text = {"before": "w10", "after": ""}
    first = {"rank": 1, "similarity": pytest.approx(math.cos(0.1)), "document": "a"}
    first |= {"relevant": True, "token": "w11"} | text
    second = {"rank": 2, "similarity": pytest.approx(math.cos(0.9)), "document": "b"}
    second |= {"relevant": False, "token": "w12"} | text
    shares = dict.fromkeys(("gold", "lexical"), pytest.approx(1 / 3))
    twelve, eleven = kept["tokens"]
    assert kept["text"] == "w12 w11" and eleven["retrieved"][0]["token"] == "w11"
    assert twelve == {"token": "w12", "retrieved": [first, second]} | shares
