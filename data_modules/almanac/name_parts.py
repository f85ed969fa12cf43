"""The parts of which invented names are composed."""


def words(table: str) -> list[str]:
    """The words of a text, each once."""
    return list(dict.fromkeys(table.split()))


WOMEN = words("""
Maren Alba Ottilie Sunniva Ilse Petra Rosalind Tamsin Elodie Greta Linnea Josefa Nerissa Wilma
Adela Brigid Corisande Dagny Eulalia Freya Honora Isolde Juniper Katya Leonie Mirabel Nadine
Odette Philippa Ragna Selma Thora Ursula Viveca Winifred Xenia Ysolde Zelda Agnes Beatrix Cecily
Dorothea Esther Florence Gudrun Hedwig Imogen Judith Klara Lavinia Matilda Nora Olga Pernille
Quenby Ruth Sigrid Thea Una Verena Willa Yrsa Zora Amalia
""")
MEN = words("""
Ivo Casper Edmund Lorenz Tobias Anselm Bertil Conrad Dorian Emeric Fabian Gustav Henrik Ignaz
Jasper Kasimir Leopold Magnus Nils Osric Percival Quentin Rupert Stellan Theobald Ulric Valentin
Walter Xaver Yorick Zacharias Alaric Benedikt Clemens Dietmar Eskil Ferdinand Gideon Hector
Isidor Joachim Konrad Ludvig Mortimer Norbert Oswald Piers Roderick Silvester Thaddeus Urban
Viktor Wolfram Abelard Barnaby Cornelius Donatus Erasmus Florian Gregor Horatio Ingmar Jonas
Kilian
""")
SURNAME_STARTS = words("""
Hol Kar Bren Mar Ash Wyn Tor Lind Fal Ber Gar Hav Ill Jor Kel Lan Mel Nor Or Pel Quar Ros Sal
Tam Ul Var Wes Yar Zel Al Bor Cal Dar Els Far Gil Har Is Jan Kir Lor Mon Nev Os Pen Rad Sten
Thorn Und Ver Wil Yel Arn Bal Cor Dun Erl Fin Grim Hes Ott Raven Stock Wend Kess
""")
SURNAME_ENDS = words("""
loway sten nard wick berg ton ley man dahl quist ford mark well son ner gate low ridge croft
stead worth vik strand bourne kamp thal hoff mann ster bury den dale grove lund wood haug mire
nell combe shaw hurst by cott ville zen brook ker tell vane more gren pole sall tham ric garth
ding vald burn
""")
PLACE_STARTS = words("""
Vel Ost Ham Kron Bri Dor Eld Fjor Gron Hel Ib Jut Kal Lor Mos Nar Olm Pra Quel Rav Sil Tar Ulm
Vis Wer Yst Zan Am Bel Cas Dro Er Fen Gal Hav Isk Jar Kes Lum Mor Nes Or Pel Ros Ske Tol Und Var
Wol Yar Zir Alt Bor Cran Del Esk Fro Glen Hul Ing Kar Lan Mar Nor Ov Pol Rus Ste Thor Urs Ver
Win Ald Bran Cor Dun Elm Far Gos Holm Kil Lis Mel Nid Opp Pen Rim Sor Tre Utt Vor Wex Yel Zel
Arm Bax Cal Dal Ems
""")
PLACE_ENDS = words("""
sund mere holm berg vik stad haven ford gard minster by wick brook dorf heim nes port mouth stow
thorpe burg lund mark wold combe gate leigh mont quay rade sel tarn vale wash yard zell bach
cliff den fell grav hus kirk low marsh nau oven pass rock stern tal ufer ven wald bury croft
dale ey fleet garth hythe kamp lauf moor neck ost peth ridge skar toft vang weir
""")
PLACE_WORDS = words("""
Upper Lower New Old Great Little Port North South East West Long High Far Castle Abbey Market
Stoke King's Queen's Monk's White
""")
RIVER_STARTS = words("""
Amm Brae Cel Dour Esp Fyr Gla Hest Iv Jol Kym Lav Mul Nid Oss Pir Quen Rhi Sav Tam Ux Vist Wend
Yar Zwi Arl Bev Cor Dren Ell Fos Gar Hod Isl Jed Kess Lyr Med Nav Orl Pel Rum Sev Tor Ull Ved
Wye Yss Zor Alb Ban Cald Der Eck Fal Gip Hamb Ing Kel Lod Mar Nen Par Rib Stou Tyr Urk Ver
""")
RIVER_ENDS = words("""
er ow a el ine ava ent um is one eth ul ar ey ock il en und ol ett
""")
RIVER_WORDS = words("""
Upper Lower Little Great North South East West White Black Red Green Old Young Silver Cold Dark
Long
""")
PROVINCE_STARTS = words("""
Nord Suder Wester Oster Mittel Hoch Grau Stern Wald Fels Gold Eisen
""")
PROVINCE_ENDS = words("""
land mark reach shire gau ria
""")
TITLE_ADJECTIVES = words("""
Silver Hollow Distant Broken Golden Quiet Burning Second Last Hidden Crooked Winter Scarlet
Patient Drowned Restless Narrow Paper Glass Iron Wandering Sleeping Unfinished Borrowed
Forgotten Painted Wooden Empty Northern Singing Blind Gentle Salt Crimson Midnight Stolen
Faithful Ancient Velvet Copper
""")
TITLE_NOUNS = words("""
Heron Lantern Orchard Mirror Bridge Garden Letter Harbour Clock Window Staircase Meadow Compass
Violin Candle Feather River Crown Island Key Sparrow Wedding Ferry Tower Cradle Shadow Anchor
Bell Voyage Fountain Hunter Mill Rose Ladder Door Kingdom Raven Sail Journey Harvest Stranger
Well Needle Masquerade Chapel Fiddler Swan Oath Thread Carriage Portrait Market Snow Road
Pilgrim Song Cellar Fox Summer Wolf
""")
# Women and men in turn: an even number is a woman's name.
GIVEN = [name for pair in zip(WOMEN, MEN, strict=True) for name in pair]
OF_PLACES = {
    "place": (PLACE_STARTS, PLACE_ENDS, PLACE_WORDS),
    "river": (RIVER_STARTS, RIVER_ENDS, RIVER_WORDS),
}
