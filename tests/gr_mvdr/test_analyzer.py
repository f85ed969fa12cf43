import random

import pytest

from gr_mvdr.analyzer import LANGUAGES, Analyzer, find_spans, guess_language, split_words

SENTENCES = {
    "en": "The birds that live on this island are not seen in winter, and they fly to the south.",
    "de": "Die Vögel, die auf dieser Insel leben, sind im Winter nicht da und fliegen nach Süden.",
    "fr": "Les oiseaux de cette île ne sont pas là en hiver et ils volent vers le sud au vent.",
    "es": "Los pájaros que viven en esta isla no están en invierno y vuelan hacia el sur.",
    "nl": "De vogels die op dit eiland wonen zijn er in de winter niet en vliegen naar het zuid.",
    "ru": "Птицы, которые живут на этом острове, зимой не видны, и они летят на юг.",
    "zh": "这个岛上的鸟在冬天看不到，它们飞向南方 (bird)。",
    "ja": "この島の鳥は冬には見られず、南へ飛んで行く。",
    "ko": "이 섬에 사는 새들은 겨울에 남쪽으로 날아간다.",
    "hi": "इस द्वीप के पक्षी सर्दियों में दक्षिण की ओर उड़ते हैं।",
    "ar": "الطيور التي تعيش في هذه الجزيرة تطير إلى الجنوب في الشتاء.",
    "none": "Qwx zrt plk vbn",
}


@pytest.mark.parametrize(
    "text, words",
    [
        ("The CAT's naïve, x_1 ΟΔΟΣ", ["the", "cat", "s", "naïve", "x_1", "οδοσ"]),
        ("e\u0301te\u0301 İstanbul ﬁn", ["été", "istanbul", "fin"]),
        ("हिन्दी தமிழ் שָׁלוֹם مُحَمَّد", ["हिन्दी", "தமிழ்", "שָׁלוֹם", "مُحَمَّد"]),
        ("中国人abc 鳥 한국어", ["中国", "国人", "abc", "鳥", "한국", "국어"]),
        (" … ", []),
    ],
)
def test_words_keep_their_marks_and_scripts_without_spaces_become_pairs(text, words):
    assert split_words(text) == words


def test_terms_are_stems_without_stop_words_in_the_order_of_the_text():
    assert Analyzer("en").terms("The cats are running, a cat ran") == ["cat", "run", "cat", "ran"]
    assert Analyzer("de").terms("die Vögel und der Vogel") == ["vogel", "vogel"]
    assert Analyzer().terms("The cats are") == ["the", "cats", "are"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_text_has_the_terms_of_its_words_in_every_language(language):
    pytest.importorskip("Stemmer")
    analyzer, draw = Analyzer(language), random.Random(0)
    text = "".join(draw.choices("".join(SENTENCES.values()) + "\n\t  ", k=2000))
    spelled = [text[start:end].lower() for start, end in find_spans(text)]
    for word, found in zip(split_words(text), spelled, strict=True):
        assert word == found or word not in found  # another spelling covers the whole chunk
    terms = [analyzer.term(word) for word in split_words(text)]
    assert analyzer.terms(text) == [term for term in terms if term]


@pytest.mark.parametrize("language", SENTENCES)
def test_the_language_is_guessed_from_its_script_or_its_stop_words(language):
    assert guess_language([SENTENCES[language]] * 3) == language
