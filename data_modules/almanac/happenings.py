"""The kinds of event: their words, the years they fit in, and their causes and ends."""

from typing import NamedTuple

from data_modules.almanac.lexicon import Concept, concepts, names


class Happening(NamedTuple):
    """A kind of event; `title` takes the place, `role` is the part of its best-known person."""

    noun: Concept
    title: str
    years: range
    role: Concept
    causes: list[Concept]
    outcomes: list[Concept]


HAPPENINGS = [
    Happening(
        Concept(("siege", "blockade")),
        "Siege of {}",
        range(1700, 1850),
        Concept(("commander", "troop leader")),
        concepts("""
a disputed crown / a quarrel over the throne
an unpaid loan / a debt never settled
a broken treaty / a violated pact
a murdered envoy / a killed ambassador
"""),
        concepts("""
the surrender of the garrison / the defenders laying down their arms
a costly retreat / the attackers going back with losses
an exchange of hostages / a trade of prisoners
the ruin of the walls / the collapse of the ramparts
"""),
    ),
    Happening(
        Concept(("flood", "inundation")),
        "{} Flood",
        range(1700, 2000),
        Concept(("rescue leader", "relief organiser")),
        concepts("""
a burst dam / a broken barrier
a sudden thaw / the quick melting of snow
a week of rain / seven days of downpour
a spring tide / an unusually high sea
"""),
        concepts("""
the building of a dyke / a new sea wall
the loss of the harvest / a ruined crop
the moving of the market / a new site for the traders
a new course of the river / a changed stream
"""),
    ),
    Happening(
        Concept(("fire", "blaze")),
        "Great Fire of {}",
        range(1700, 2000),
        Concept(("fire captain", "head fireman")),
        concepts("""
a fallen lamp / an overturned light
a baker's oven / a bread stove
a stroke of lightning / a flash from the sky
a careless smoker / someone's pipe
"""),
        concepts("""
a ban on thatched roofs / the forbidding of straw houses
the first fire brigade / a corps of firemen
the loss of the archive / the burning of the records
the widening of the streets / broader roads
"""),
    ),
    Happening(
        Concept(("congress", "conference")),
        "Congress of {}",
        range(1700, 2000),
        Concept(("chairman", "president")),
        concepts("""
a border dispute / a quarrel over the frontier
a customs war / a conflict about duties
the ownership of an island / a claim to an isle
the decline of the herring / the dwindling of the fish
"""),
        concepts("""
a lasting peace / years without war
a secret clause / a hidden article
a common currency / shared coins
a free port / a harbour without duties
"""),
    ),
    Happening(
        Concept(("exhibition", "great show")),
        "{} Exhibition",
        range(1840, 2000),
        Concept(("organiser", "planner")),
        concepts("""
a royal jubilee / an anniversary of the crown
the opening of a railway / a new train line
a rivalry of guilds / a contest between trades
the end of a war / the return of peace
"""),
        concepts("""
a permanent museum / a lasting collection
a heavy deficit / large debts
a boom in trade / flourishing commerce
a famous scandal / a notorious affair
"""),
    ),
    Happening(
        Concept(("strike", "walkout")),
        "{} Strike",
        range(1825, 2000),
        Concept(("ringleader", "spokesman")),
        concepts("""
a cut in wages / lower pay
a longer working day / added hours
a fatal accident / a deadly mishap
the dismissal of a foreman / the sacking of an overseer
"""),
        concepts("""
a ten-hour day / shorter shifts
the first trade union / a league of workers
the closing of the mill / the end of the factory
a general amnesty / a pardon for all
"""),
    ),
]
DURATIONS = names("""
three days
five days
nine days
eleven days
two weeks
three weeks
five weeks
two months
three months
four months
half a year
""")
