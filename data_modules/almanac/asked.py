"""What questions ask.

WHICH asks for the name of an entry that is described; ASKED asks for a fact about {x}, the entry
named or described. A description may be long: it only goes into a form that ends with it.
"""

WHICH = [
    "Which {noun} {clause}?",
    "Which {noun} {clause}?",
    "What is the name of the {noun} {who} {clause}?",
    "Name the {noun} {who} {clause}.",
]

ASKED = {
    "person": {
        "birthplace": [
            "Where was {x} born?",
            "What was the birthplace of {x}?",
            "What was the native place of {x}?",
            "In which place did {x} come into the world?",
        ],
        "born": [
            "When was {x} born?",
            "What is the year of birth of {x}?",
            "In which year did {x} come into the world?",
        ],
        "died": [
            "When did {x} die?",
            "What is the year of death of {x}?",
            "In which year did {x} pass away?",
        ],
        "teacher": [
            "Who taught {x}?",
            "Who was the teacher of {x}?",
            "Under whom did {x} study?",
            "From whom did {x} learn the craft?",
        ],
        "home": [
            "Where did {x} settle?",
            "In which place did {x} make a home?",
            "What was the later home of {x}?",
        ],
        "deed": [
            "What is {x} remembered for?",
            "What was the achievement of {x}?",
            "What is known of the work of {x}?",
        ],
        "father": [
            "What was the trade of the father of {x}?",
            "How did the father of {x} earn a living?",
        ],
        "prize": [
            "Which prize did {x} win?",
            "Which honour was given to {x}?",
            "Which award went to {x}?",
        ],
        "correspondent": [
            "To whom did {x} write letters?",
            "Who received letters from {x}?",
            "Who was the recipient of the letters of {x}?",
        ],
        "opus": ["What is the best known work of {x}?", "For which work is {x} remembered?"],
    },
    "settlement": {
        "river": [
            "On which river does {x} lie?",
            "Which river flows through {x}?",
            "What is the name of the river at {x}?",
        ],
        "province": ["To which province does {x} belong?", "What is the province of {x}?"],
        "founded": ["When was {x} founded?", "What is the founding year of {x}?"],
        "founders": ["Who founded {x}?", "Who were the founders of {x}?"],
        "population": ["How many people live in {x}?", "What is the population of {x}?"],
        "neighbour": [
            "Where does the coach from {x} go?",
            "What is the destination of the coach from {x}?",
        ],
        "product": ["What is made in {x}?", "What is the chief trade of {x}?"],
        "sight": ["What do visitors come to see in {x}?", "What is the landmark of {x}?"],
        "fair": ["What is celebrated each year in {x}?", "Which yearly feast is held in {x}?"],
        "month": [
            "When is the yearly feast of {x}?",
            "In which month does {x} hold its fair?",
            "Which is the month of the fair of {x}?",
        ],
        "statue": ["Of whom is there a statue in {x}?", "Whose monument stands in {x}?"],
    },
    "building": {
        "architect": ["Who designed {x}?", "Who was the architect of {x}?"],
        "completed": [
            "When was {x} completed?",
            "In which year did {x} open?",
            "What was the opening year of {x}?",
        ],
        "material": ["What is {x} built of?", "What is the material of {x}?"],
        "feature": ["What is {x} admired for?", "What do visitors come to see in {x}?"],
        "payer": ["Who paid for {x}?", "What was the source of the money for {x}?"],
        "plaque": ["Who is honoured in {x}?", "Whose memorial is in {x}?"],
        "location": ["Where is {x}?", "What is the location of {x}?"],
    },
    "work": {
        "maker": ["Who {did} {x}?", "Who is the maker of {x}?", "Who created {x}?"],
        "year": [
            "When was {x} {made}?",
            "In which year was {x} {made}?",
            "What is the date of {x}?",
        ],
        "setting": ["Where is {x} set?", "What is the scene of {x}?"],
        "story": ["What is {x} about?", "What is the subject of {x}?"],
        "venue": ["Where was {x} first seen?", "What was the place of the first showing of {x}?"],
        "prize": ["Which prize did {x} win?", "Which honour was given to {x}?"],
        "dedicatee": ["To whom is {x} dedicated?", "Who is named in the dedication of {x}?"],
    },
    "event": {
        "year": ["In which year did {x} take place?", "When was {x}?", "What is the year of {x}?"],
        "month": ["In which month did {x} begin?", "Which is the month of {x}?"],
        "cause": ["What caused {x}?", "What was the reason for {x}?"],
        "outcome": ["How did {x} end?", "What was the result of {x}?"],
        "duration": ["How long did {x} last?", "What was the duration of {x}?"],
        "leader": ["Who was the {role} of {x}?", "Who is known as the {role} of {x}?"],
    },
}
