"""The twelve kinds of person, their professions and what they are known for.

A deed is a verb, an object and a region. Where the objects are a table, each profession of the
kind has its own.
"""

from data_modules.almanac.lexicon import Concept, concepts

PROFESSIONS = [
    concepts("novelist / writer of fiction\npoet / writer of verse\nplaywright / dramatist"),
    concepts("novelist / writer of fiction\npoet / writer of verse\nplaywright / dramatist"),
    concepts("composer / musician"),
    concepts("painter / artist"),
    concepts("film director / film-maker"),
    concepts("architect / designer of buildings"),
    concepts(
        "botanist / plant scientist\nornithologist / bird expert\ngeologist / earth scientist"
    ),
    concepts(
        "astronomer / stargazer\nmeteorologist / weather expert\nphysicist / natural philosopher"
    ),
    concepts("historian / chronicler\nlinguist / scholar of languages\nlawyer / advocate"),
    concepts("engineer / machine builder\nclockmaker / horologist\nshipbuilder / shipwright"),
    concepts("explorer / traveller\nnavigator / sea captain\ncartographer / mapmaker"),
    concepts("physician / doctor\napothecary / pharmacist"),
]
_TOLD = Concept(("wrote about", "told the story of", "described"))
_PEOPLE = concepts("""
the shepherds / the sheep keepers
the smugglers / the contraband traders
the miners / the ore diggers
the weavers / the cloth makers
the pilgrims / the devout wanderers
the fishermen / the fishing folk
the orphans / the parentless children
the soldiers / the fighting men
""")
_SONGS = concepts("""
the folk songs / the country tunes
the lullabies / the cradle songs
the dances / the reels and waltzes
the hymns / the sacred songs
the marches / the regimental music
the ballads / the sung tales
""")
_VIEWS = concepts("""
the ruined abbeys / the fallen monasteries
the harvests / the reapers at work
the windmills / the grinding mills
the storms / the wild weather
the horse fairs / the mounted markets
the forests / the deep woods
""")
_OLD_BUILDINGS = concepts("""
the watchtowers / the lookout posts
the granaries / the corn stores
the churches / the places of worship
the almshouses / the homes of the poor
the stone barns / the old farm sheds
the city gates / the ancient portals
""")
_NATURE = {
    "botanist": concepts("""
the mosses / the bog plants
the orchids / the rare blossoms
the ferns / the shade plants
the lichens / the rock plants
"""),
    "ornithologist": concepts("""
the owls / the night birds
the geese / the grey waterfowl
the falcons / the hunting birds
the songbirds / the small singers
"""),
    "geologist": concepts("""
the fossils / the petrified shells
the hot springs / the warm wells
the copper veins / the metal seams
the limestone caves / the chalk caverns
"""),
}
_HEAVENS = {
    "astronomer": concepts("""
the meteor showers / the falling stars
the summer skies / the starlit nights
the eclipses / the darkenings of the sun
"""),
    "meteorologist": concepts("""
the hailstorms / the ice showers
the sea fogs / the morning mists
the whirlwinds / the spinning gales
"""),
    "physicist": concepts("""
the echoes / the returning sounds
the lightning / the electric flashes
the rainbows / the coloured arcs
"""),
}
_RECORDS = {
    "historian": concepts("""
the peasant revolts / the farmers' risings
the royal tombs / the kings' graves
the plague years / the great sickness
"""),
    "linguist": concepts("""
the dialects / the local tongues
the proverbs / the old sayings
the place names / the naming of villages
"""),
    "lawyer": concepts("""
the fishing rights / the claims to the nets
the land disputes / the quarrels over fields
the inn licences / the tavern permits
"""),
}
_MACHINES = {
    "engineer": concepts("""
the steam pumps / the water engines
the canals / the waterways
the iron bridges / the metal crossings
"""),
    "clockmaker": concepts("""
the tower clocks / the steeple chimes
the sundials / the shadow dials
the music boxes / the singing caskets
"""),
    "shipbuilder": concepts("""
the ferries / the passenger boats
the lifeboats / the rescue vessels
the whalers / the hunting ships
"""),
}
_UNKNOWN = concepts("""
the glaciers / the ice fields
the sandbanks / the shallows
the mountain passes / the high roads
the harbours / the anchorages
the hidden coves / the secret bays
the caravan routes / the merchants' tracks
""")
_ILLS = concepts("""
the marsh fever / the shaking sickness
the blindness / the loss of sight
the scurvy / the seamen's disease
the consumption / the coughing illness
the gout / the swollen joints
the smallpox / the pocks
""")
DEEDS = [
    (_TOLD, _PEOPLE[:4]),
    (_TOLD, _PEOPLE[4:]),
    (Concept(("collected", "gathered", "wrote down")), _SONGS),
    (Concept(("painted", "put on canvas", "drew")), _VIEWS),
    (Concept(("filmed", "brought to the screen")), _PEOPLE),
    (Concept(("restored", "repaired", "rebuilt")), _OLD_BUILDINGS),
    (Concept(("catalogued", "listed", "classified")), _NATURE),
    (Concept(("explained", "accounted for", "studied")), _HEAVENS),
    (Concept(("recorded", "set down", "documented")), _RECORDS),
    (Concept(("improved", "perfected", "modernised")), _MACHINES),
    (Concept(("charted", "mapped", "surveyed")), _UNKNOWN),
    (Concept(("treated", "cured", "fought")), _ILLS),
]
REGIONS = concepts("""
of the northern fens / of the marshes in the north
of the salt coast / of the seaside
of the southern hills / of the high ground in the south
of the eastern plains / of the flat lands in the east
of the western isles / of the islands in the west
of the river valleys / of the lowlands
of the border country / of the frontier
of the lake district / of the land of lakes
of the high moors / of the bare uplands
of the old capital / of the former royal seat
""")
