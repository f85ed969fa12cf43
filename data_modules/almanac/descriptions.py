"""How questions name and describe an entry.

CALLED: an entry by its name; where another entry has the name too, only forms with {noun} are used.
PREDICATES: what follows "who" or "that"; a fact that ends in _decade or _century stands for the
year of that name.
"""

RELATIVE = {"person": "who"}  # every other kind: "that"

CALLED = {
    "person": ["{name}", "the {noun} {name}", "the {noun} called {name}"],
    "settlement": ["{name}", "the {noun} of {name}"],
    "building": ["the {name}"],
    "work": ["{name}", "the {noun} {name}", "the {noun} called {name}"],
    "event": ["the {name}"],
}

PREDICATES = {
    "person": {
        "deed": ["{deed}"],
        "teacher": [
            "studied under {teacher}",
            "was a pupil of {teacher}",
            "was taught by {teacher}",
            "learned the craft from {teacher}",
        ],
        "birthplace": [
            "came from {birthplace}",
            "was a native of {birthplace}",
            "hailed from {birthplace}",
            "was born in {birthplace}",
        ],
        "home": ["settled in {home}", "made a home in {home}", "moved to {home}"],
        "correspondent": [
            "wrote letters to {correspondent}",
            "sent letters to {correspondent}",
            "addressed many letters to {correspondent}",
        ],
        "opus": ["created {opus}", "is remembered for {opus}", "was the maker of {opus}"],
        "father": [
            "was the child of {a father}",
            "had {a father} for a father",
            "grew up in the house of {a father}",
        ],
        "prize": ["was awarded {prize}", "received {prize}", "won {prize}"],
        "born_decade": [
            "came into the world in the {born_decade}",
            "was born in the {born_decade}",
        ],
        "died_decade": ["died in the {died_decade}", "passed away in the {died_decade}"],
    },
    "settlement": {
        "river": ["lies on {river}", "stands on the banks of {river}", "is crossed by {river}"],
        "neighbour": [
            "has a coach to {neighbour}",
            "sends a coach to {neighbour}",
            "is the starting point of the coach to {neighbour}",
        ],
        "statue": [
            "has a statue of {statue}",
            "has a monument to {statue}",
            "honours {statue} in bronze",
        ],
        "product": ["is known for {product}", "makes {product}", "lives by {product}"],
        "sight": ["is visited for {sight}", "has {sight}"],
        "fair": ["holds {fair}", "celebrates {fair}"],
        "month": ["holds a feast every {month}", "has its fair in {month}"],
        "founders": ["was founded by {founders}", "was established by {founders}"],
        "founded_century": [
            "goes back to the {founded_century}",
            "dates from the {founded_century}",
        ],
        "province": ["belongs to {province}", "is in the province of {province}"],
        "population": ["has {population} inhabitants", "is home to {population} people"],
    },
    "building": {
        "architect": [
            "was designed by {architect}",
            "was planned by {architect}",
            "had {architect} as its architect",
        ],
        "plaque": ["honours {plaque} in its hall", "has a memorial to {plaque}"],
        "location": ["stands in {location}", "can be seen in {location}"],
        "completed": [
            "opened in {completed}",
            "was completed in {completed}",
            "was finished in {completed}",
        ],
        "completed_decade": [
            "opened in the {completed_decade}",
            "was completed in the {completed_decade}",
        ],
        "material": ["is built of {material}", "is made of {material}"],
        "feature": ["is admired for {feature}", "has {feature}"],
        "payer": ["was paid for by {payer}", "owes its existence to {payer}"],
    },
    "work": {
        "maker": ["is the work of {maker}", "was {made} by {maker}", "was created by {maker}"],
        "setting": ["is set in {setting}", "takes place in {setting}", "unfolds in {setting}"],
        "venue": [
            "was first seen in {venue}",
            "had its first showing in {venue}",
            "was presented in {venue}",
        ],
        "story": ["tells of {story}", "is about {story}", "is the story of {story}"],
        "hero": ["tells of {hero}", "is about {hero}", "has {hero} as its main figure"],
        "dedicatee": [
            "is dedicated to {dedicatee}",
            "was a gift for {dedicatee}",
            "names {dedicatee} in its dedication",
        ],
        "prize": ["won {prize}", "was honoured with {prize}", "earned {prize}"],
        "year": ["dates from {year}", "was {made} in {year}"],
        "year_decade": ["dates from the {year_decade}", "was {made} in the {year_decade}"],
    },
    "event": {
        "location": ["happened in {location}", "had {location} as its scene"],
        "year": ["took place in {year}", "began in {year}"],
        "year_decade": ["took place in the {year_decade}", "began in the {year_decade}"],
        "month": ["fell in {month}", "started in {month}"],
        "cause": ["was caused by {cause}", "arose from {cause}", "had its reason in {cause}"],
        "outcome": ["ended with {outcome}", "led to {outcome}", "resulted in {outcome}"],
        "duration": ["lasted {duration}", "went on for {duration}"],
        "leader": ["had {leader} as its {role}", "made {leader} known as its {role}"],
    },
}

# What makes a description on its own, without a second attribute.
DESCRIPTIVE = {
    "person": ["deed", "teacher", "birthplace", "correspondent", "opus", "home"],
    "settlement": ["river", "neighbour", "statue"],
    "building": ["architect", "plaque", "location"],
    "work": ["story", "maker", "setting", "venue", "dedicatee"],
    "event": ["location", "cause", "outcome", "leader"],
}
