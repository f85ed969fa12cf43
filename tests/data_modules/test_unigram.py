import random

from data_modules.unigram import train_tokenizer
from gr_mvdr.tokenizers import UNK_ID


def texts(n=200, seed=0):
    """Sentences of a small invented language, with capitals and punctuation."""
    rng = random.Random(seed)
    syllables = ["ka", "lo", "mi", "ren", "sto", "vel", "u", "dra"]
    lexicon = ["".join(rng.choices(syllables, k=rng.randint(1, 3))) for _ in range(60)]
    return [
        " ".join(rng.choices(lexicon, k=rng.randint(3, 9))).capitalize() + rng.choice(".?!")
        for _ in range(n)
    ]


def ids(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def test_training_gives_the_same_pieces_every_time():
    first, second = (train_tokenizer(iter(texts()), 60) for _ in range(2))
    assert 20 < len(first) <= 60
    assert first.backend_tokenizer.to_str() == second.backend_tokenizer.to_str()


def test_a_word_counts_with_its_first_letters_and_every_letter_is_known(capsys):
    rng = random.Random(0)
    word = "".join(rng.choices("acgt", k=300_000)) + "z漢"
    trained = train_tokenizer([*texts(), f"Kalo, {word}. mi"], 200)  # whole: minutes
    said = "training sees only the first 256 letters of longer words (1 in these texts)\n"
    assert capsys.readouterr().out == f"tokenizer: {said}"
    pieces = ids(trained, word)
    assert UNK_ID not in pieces and trained.decode(pieces).replace(" ", "") == word
    cut = train_tokenizer([*texts(), f"Kalo, {word[:256]}. mi a c g t z 漢"], 200)
    assert cut.backend_tokenizer.to_str() == trained.backend_tokenizer.to_str()
    # Punctuation ends a word, whatever its script.
    capsys.readouterr()
    train_tokenizer([*texts(), "漢字、" * 200], 200)
    assert not capsys.readouterr().out
