"""Concepts and their synonyms: what entries say in one wording and questions in another.

Entries and questions choose among a concept's forms independently, so that they often differ,
and the same few pairs recur all over the collection, so that they can be learnt from it.
Concepts of one table never include one another: no question asks for a film that is a comedy.
"""


class Concept(tuple):
    """The surface forms of one meaning; the first is the one that titles use."""

    def form(self, choice: int) -> str:
        return self[choice % len(self)]


class Phrase(tuple):
    """Concepts said one after another: verb, object, region."""

    def form(self, choice: int) -> str:
        return " ".join(c.form(choice >> 3 * i) for i, c in enumerate(self))


def concepts(table: str) -> list[Concept]:
    """One concept a line, its forms separated by slashes."""
    return [Concept(form.strip() for form in line.split("/")) for line in table.split("\n") if line]


def names(table: str) -> list[str]:
    """One name a line."""
    return table.strip().split("\n")


PRIZES = names("""
Lantern Medal
Golden Quill
Amber Ring
Crown Prize
Laurel Cross
Silver Compass
Founders' Cup
Marble Palm
Winter Prize
Star of Merit
Blue Ribbon
Guild Chain
Ivory Key
Jubilee Medal
""")
MONTHS = names("""
January
February
March
April
May
June
July
August
September
October
November
December
""")
TRADES = concepts("""
baker / bread maker
miller / corn grinder
tailor / maker of clothes
blacksmith / forger of iron
innkeeper / tavern owner
schoolmaster / village teacher
ferryman / boatman
carpenter / woodworker
clergyman / parish priest
butcher / meat seller
printer / maker of books
gardener / tender of plants
cobbler / shoemaker
glazier / window maker
notary / town clerk
beekeeper / honey farmer
""")

SIZES = concepts("""
town / borough
city / metropolis
village / hamlet
port / haven
""")
PRODUCTS = concepts("""
glass / bottles and panes
wool / fleeces
cider / apple wine
clocks / timepieces
cheese / dairy goods
paper / writing sheets
salt / brine crystals
leather / tanned hides
bells / cast bronze
rope / ship's cordage
honey / bee products
pottery / earthenware
lace / fine needlework
cutlery / knives and forks
candles / wax lights
silk / shining cloth
""")
FOUNDERS = concepts("""
monks / friars
fishermen / people of the sea
miners / ore diggers
refugees / exiles
merchants / traders
soldiers / war veterans
shepherds / sheep keepers
vintners / growers of wine
""")
SIGHTS = concepts("""
a leaning tower / a crooked steeple
a covered market / a roofed trading hall
a botanical garden / a park of rare plants
a stone quay / a landing place
a wooden church / a timber chapel
a ruined castle / the remains of a fortress
a long colonnade / a row of columns
an old lime tree / an ancient linden
a deep well / a bottomless spring
a painted town hall / a council house with murals
""")
FAIRS = concepts("""
an apple fair / a feast of fruit
a lantern parade / a procession of lights
a boat race / a contest of rowers
a horse market / a sale of mares
a song contest / a meeting of choirs
a masked ball / a dance in disguise
a puppet festival / a week of marionettes
a flower show / a display of blossoms
""")

BUILDINGS = concepts("""
library / house of books
lighthouse / beacon
theatre / playhouse
observatory / star house
hospital / infirmary
concert hall / music hall
museum / gallery
railway station / train stop
""")
OLD_BUILDINGS = BUILDINGS[:6]  # before there were railways
MATERIALS = concepts("""
granite / hard grey stone
red brick / baked clay
sandstone / soft yellow stone
marble / polished white stone
timber / oak beams
cast iron / metal plates
""")
FEATURES = concepts("""
a copper dome / a green metal roof
a spiral staircase / winding steps
a glass ceiling / a transparent roof
a clock tower / a turret that strikes the hours
a mosaic floor / a pavement of small tiles
an inner courtyard / an enclosed yard
a row of statues / a line of carved figures
a bronze door / a heavy metal gate
a roof garden / a terrace of plants
a vaulted cellar / an arched basement
""")
PAYERS = concepts("""
a lottery / the sale of tickets
a tax on beer / a duty on ale
a rich widow / a wealthy lady
the guild of merchants / the traders' association
the royal treasury / the king's purse
a public subscription / gifts from citizens
a shipping company / a firm of boat owners
a retired general / an old commander
""")

# Works, by medium.
MEDIA = {
    "book": concepts("""
novel / prose romance
play / stage piece
poem / work in verse
"""),
    "music": concepts("""
opera / music drama
symphony / piece for orchestra
ballet / dance work
"""),
    "picture": concepts("""
oil painting / canvas
fresco / mural
altarpiece / church panel
"""),
    "film": concepts("""
film / motion picture
"""),
}
HEROES = concepts("""
a lighthouse keeper / a guardian of a beacon
a young widow / a bereaved wife
a runaway apprentice / a fugitive pupil
a blind fiddler / a sightless player
a country doctor / a rural physician
a retired captain / an old seaman
a foundling girl / an abandoned child
a travelling actor / a wandering comedian
a dishonest banker / a crooked moneylender
an exiled prince / a banished heir
a shy librarian / a timid keeper of books
a deserting soldier / a man fleeing from the army
a stubborn miller / an obstinate corn grinder
a proud governess / a haughty tutor
""")
PLOTS = concepts("""
who searches for a lost brother / looking for a missing sibling
who inherits an empty house / coming into a deserted home
who hides a stolen jewel / concealing a precious stone
who falls in love with a stranger / smitten with an unknown visitor
who returns after a long war / coming home from battle
who uncovers a forged will / discovering a false testament
who refuses a marriage / declining to wed
who saves a sinking ship / rescuing a vessel
who is accused of murder / charged with a killing
who builds a flying machine / making a craft for the air
who guards a family secret / keeping silent about the kin
who crosses the mountains in winter / climbing over snowy passes
""")
