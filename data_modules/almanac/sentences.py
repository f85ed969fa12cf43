"""The wordings of the sentences of entries.

In braces stands a fact of the entry ("{birthplace}"), a fact with the right article before it
("{a noun}"), a fact that begins the sentence ("{fair!}"), or a word that follows the subject
("{She}", "{surname}"). Of the wordings whose facts all exist, those with the most are used. Asides
are true of many entries and answer no question; they use the words that other questions use, and
mention other people and places.
"""

PERSON = {
    "who": [
        "{name} was {a noun} who {deed}.",
        "{name}, {a noun}, {deed}.",
        "{name} was the {noun} who {deed}.",
    ],
    "whence": [
        "{name} was {a noun} from {birthplace}.",
        "{name} was {a noun} and a native of {birthplace}.",
        "{name} was {a noun} born in {birthplace}.",
    ],
    "birth": [
        "{She} was born in {birthplace} in {born}, the {child} of {a father}.",
        "A native of {birthplace}, {she} was born to {a father} in {born}.",
        "{She} came from {birthplace}, was born in {born} and had {a father} for a father.",
    ],
    "youth": [
        "The {child} of {a father}, {she} was born in {born}.",
        "{Her} father was {a father}, and {she} came into the world in {born}.",
        "{She} was born to {a father} in {born}.",
    ],
    "training": [
        "{surname} was a pupil of {teacher} and settled in {home}.",
        "After studying under {teacher}, {she} made a home in {home}.",
        "{She} was taught by {teacher} before moving to {home}.",
        "{surname} learned the craft from {teacher}.",
        "As a young {person} {she} moved to {home}.",
        "{surname} began to work at an early age.",
    ],
    "achievement": [
        "{surname} {deed}.",
        "In later years {she} {deed}.",
        "Over two decades {she} {deed}.",
    ],
    "honour": [
        "{She} was awarded {prize} and created {opus}.",
        "{She} received {prize} and is remembered for {opus}.",
        "{She} won {prize} in middle age.",
        "{She} was honoured with {prize}.",
    ],
    "letters": [
        "{She} wrote letters to {correspondent} for many years.",
        "{surname} sent many letters to {correspondent}, a friend since youth.",
        "{Her} letters to {correspondent} have been printed.",
        "None of {her} letters have been found.",
    ],
    "death": [
        "{She} died in {died}.",
        "{surname} passed away in {died}.",
        "{She} died at home in {died}.",
    ],
    "aside": [
        "{She} should not be confused with {a namesake_noun} of the same name.",
        "Another bearer of the name was {a namesake_noun}.",
        "No portrait was painted in {her} lifetime.",
        "{She} taught many a pupil and won no friend at court.",
        "No record of a marriage has been found.",
        "A street, a school and a prize bear {her} name.",
        "{She} left few notes and no memoirs.",
        "{She} kept a diary and was known for a fine garden.",
        "{She} once visited {elsewhere}.",
        "{She} spent a winter in {elsewhere}.",
        "A street in {elsewhere} bears {her} name.",
        "A portrait by {other} has been lost.",
        "{other} wrote of {her} work with respect.",
    ],
}

SETTLEMENT = {
    "where": [
        "{name} is {a noun} on {river} in {province}.",
        "{name} is {a noun} in {province}, on the banks of {river}.",
        "{name}, {a noun} in {province}, lies on {river}.",
    ],
    "founding": [
        "It was founded in {founded} by {founders}.",
        "The place was established by {founders} in {founded}.",
        "It goes back to a settlement of {founders} from {founded}.",
    ],
    "people": [
        "It has {population} inhabitants and sends a daily coach to {neighbour}.",
        "Its population is {population}, and a coach runs to {neighbour}.",
        "It is home to {population} people and has a coach service to {neighbour}.",
    ],
    "trade": [
        "It is known for {product} and for {sight}.",
        "Its chief trade is in {product}, and visitors come to see {sight}.",
        "It lives by {product}, and its landmark is {sight}.",
    ],
    "fair": [
        "Each {month} it holds {fair}.",
        "Every year in {month} there is {fair}.",
        "{fair!} takes place in {month}.",
    ],
    "statue": [
        "A statue of {statue} stands by the bridge.",
        "There is a monument to {statue} in the main square.",
        "A bronze figure of {statue} adorns the main street.",
    ],
    "aside": [
        "Several painters and poets were born here, but few of them stayed.",
        "A fire and a flood once destroyed many houses.",
        "The library and the station were designed by the same architect.",
        "Many a well-known teacher worked at the school.",
        "A novel and a film have been set in its streets.",
        "{other} once spent a winter here.",
        "{other} praised its streets and gardens.",
        "It has often quarrelled with {elsewhere}.",
    ],
}

BUILDING = {
    "what": [
        "The {name} is {a noun} in {location}.",
        "The {name} is {a noun} that stands in {location}.",
        "The {name}, {a noun}, is one of the sights of {location}.",
    ],
    "architect": [
        "It was designed by {architect} and completed in {completed}.",
        "The plans were drawn by {architect}, and the work was finished in {completed}.",
        "{architect} was its architect, and it opened in {completed}.",
    ],
    "look": [
        "Built of {material}, it is admired for {feature}.",
        "It is made of {material} and has {feature}.",
        "Its walls are of {material}, and visitors come to see {feature}.",
    ],
    "money": [
        "The money came from {payer}.",
        "It was paid for by {payer}.",
        "The cost was met by {payer}.",
    ],
    "plaque": [
        "A plaque at the entrance honours {plaque}.",
        "A tablet in the hall recalls {plaque}.",
        "A portrait of {plaque} hangs in the hall.",
        "There is no plaque or portrait.",
    ],
    "aside": [
        "It was damaged by fire and repaired within a year.",
        "The town had long hoped for a library and a better bridge.",
        "Many citizens first found the design too plain.",
        "It has appeared in a novel and two films.",
        "The architect had also planned a garden and a statue.",
        "It was restored after the war.",
        "{other} called it a marvel.",
        "It served as a model for a building in {elsewhere}.",
    ],
}

WORK = {
    "what": [
        "{name} is {a noun} {made} by {maker} in {year}.",
        "{name} is {a noun} by {maker}, {made} in {year}.",
        "{name}, {a noun} {made} in {year}, is the work of {maker}.",
    ],
    "story": [
        "It tells of {story}, and is set in {setting}.",
        "Set in {setting}, it is the story of {story}.",
        "Its subject, placed in {setting}, is {story}.",
    ],
    "first": [
        "It was {shown} in {venue} and won {prize}.",
        "It was {shown} in {venue}, where it earned {prize}.",
        "The public of {venue} was the first to see it, and it was given {prize}.",
        "It was honoured with {prize} soon afterwards.",
    ],
    "dedication": [
        "It is dedicated to {dedicatee}.",
        "The dedication names {dedicatee}.",
        "It was a gift for {dedicatee}.",
        "It bears no dedication.",
    ],
    "aside": [
        "It should not be confused with {a namesake_noun} of the same name.",
        "It shares its name with {a namesake_noun}.",
        "Critics found that the ending came too late.",
        "It was first thought to be by a pupil, and the year has been disputed.",
        "A shorter version was made for schools.",
        "The landscape is that of its maker's childhood.",
        "A library and a theatre have both claimed to own the original.",
        "It was long believed lost.",
        "A copy is kept in {elsewhere}.",
        "{other} wrote an essay about it.",
        "{other} admired it greatly.",
        "Several composers and painters have taken up the same subject.",
    ],
}

EVENT = {
    "what": [
        "The {name} was {a noun} in {month} {year}.",
        "The {name} was {a noun} which began in {month} {year}.",
        "The {name}, {a noun}, took place in {month} {year}.",
    ],
    "course": [
        "It was caused by {cause} and lasted {duration}.",
        "It arose from {cause} and went on for {duration}.",
        "The reason was {cause}, and it was over after {duration}.",
    ],
    "outcome": [
        "It ended with {outcome}.",
        "It led to {outcome}.",
        "Its result was {outcome}.",
    ],
    "leader": [
        "{leader} was its {role} and later described it in a letter.",
        "The {role} was {leader}, blamed by some and praised by others.",
        "As its {role}, {leader} became known throughout the land.",
        "Its leaders were never named.",
    ],
    "aside": [
        "The dead and injured were never counted.",
        "A novel, a painting and a march were made about it.",
        "People from the villages around came to watch.",
        "The town council wrote to the king for help.",
        "Help was sent from {elsewhere}.",
        "{other} took part in it.",
        "A small museum by the bridge shows letters and pictures from those days.",
        "It is remembered every year with a procession.",
        "A stone lists the names of those who took part.",
    ],
}
SENTENCES = {
    "person": PERSON,
    "settlement": SETTLEMENT,
    "building": BUILDING,
    "work": WORK,
    "event": EVENT,
}
