"""The best documents of some queries, and the shares of which their scores consist.

Pages are made without the model, so the run's `best_documents.json` keeps what they show of a
search.
"""

from dataclasses import dataclass

from analysis.questions.analysis import Analysis, Findings, Subject
from analysis.runs.evaluation import drop_own_hits
from analysis.statistics import spread_numbers
from gr_mvdr.options import Count, part
from gr_mvdr.texts import text_without_title
from gr_mvdr.tokenizers import readable
from models.results import find_snippet

FILE = "best_documents"
DEPTH = 100  # ranks in which relevant documents are looked for
BEST = 5  # documents kept for each query


@part("analysis")
@dataclass
class BestDocuments(Analysis):
    """Which documents does a search rank first, and what gives them their score?

    Args:
        queries: the maximum number of queries, evenly spread over those with stored alignments.
    """

    queries: Count

    name = FILE

    @classmethod
    def applies(cls, subject: Subject) -> bool:
        return subject.store is not None and subject.model is not None

    def finish(self) -> Findings:
        """Returns no metric, only `best_documents.json`: query id → {text, documents}, with `id`,
        `title`, `snippet`, `rank`, `score`, `gold` and `shares` of each document.
        """
        model, data, split = self.subject.model, self.subject.data, self.subject.split
        names = list(dict.fromkeys(query for query, _ in self.subject.store.pairs))
        chosen = {names[number] for number in spread_numbers(len(names), self.queries)}
        table = data.evaluation.test_queries(split)
        table = table.select([n for n, q in enumerate(table["id"][:]) if q in chosen])
        searched = model.retrieve(table, DEPTH + data.drop_identical, with_shares=True)
        ranking = drop_own_hits(searched, data, DEPTH)
        relevant = data.evaluation.relevant(split, table)
        row = {name: number for number, name in enumerate(data.documents["id"][:])}
        kept = {}
        for query, text in zip(table["id"][:], table["text"][:], strict=True):
            documents = [
                {"id": name, "rank": rank, "score": score, "gold": name in relevant[query]}
                for rank, (name, score) in enumerate(ranking.scores(query).items(), start=1)
                if rank <= BEST or name in relevant[query]
            ]
            for one in documents:
                document = data.documents[row[searched.passage(query, one["id"])]]
                one["title"] = document["title"]
                one["snippet"] = find_snippet(text, text_without_title(document))
                one["shares"] = [
                    {
                        "text": readable(data.tokenizer, share.tokens, model.spell),
                        "value": share.value,
                    }
                    for share in searched.shares[query][one["id"]]
                ]
            kept[query] = {"text": text, "documents": documents}
        return Findings(records={FILE: kept})
