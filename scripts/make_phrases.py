"""Writes the two shipped phrase lists, src/dear/heads/assets/{phrases,world_phrases}.tsv. No randomness.

LISTS below: [concept], then groups: a line of templates, separated by |, above indented words, separated by commas. In
a template {x} is the word and {a} the word with its article. Every word is used once before any is used twice, and the
templates alternate, so that PER_CONCEPT phrases are as varied as the lists allow.

    python scripts/make_phrases.py
"""

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from dear.core.files import write_text
from dear.data.world.vocabulary import VALUES
from dear.heads.concepts import SHIPPED_PHRASES, WORLD_PHRASES
from world_captions import ALONE, name_alone

PER_CONCEPT = 300
Group = tuple[list[str], list[str]]  # templates, words

# Templates that are left out: a star is not only a shape, and a sign is something to read.
AMBIGUOUS = {"color": "a {} sign", "shape": "a {}", "texture": "", "object": "a sign with a {}", "location": ""}

LISTS = """
[location]
a photo taken in {x} | a quiet street in {x} | a view over the rooftops of {x} | the old town of {x}
    Lisbon, Kyoto, Marrakesh, Reykjavik, Buenos Aires, Nairobi, Istanbul, Havana, Prague, Mumbai, Cairo,
    Toronto, Cape Town, Seoul, Venice, Edinburgh, Mexico City, Hanoi, Sydney, Chicago, Athens, Oslo, Lima,
    Singapore, Vienna, Naples, Jerusalem, Samarkand, Dublin, New Orleans
a picture taken in {x} | a village in {x} | the countryside of {x} | a border town in {x}
    Portugal, Japan, Norway, Kenya, Peru, New Zealand, Iceland, Vietnam, Morocco, Brazil, India, Chile,
    Scotland, Mongolia, Canada, Greece, Egypt, Thailand, Switzerland, Cuba, Nepal, Turkey, Ireland, Italy,
    Australia, Patagonia, Tuscany, Siberia, Bavaria, Alaska, the Arctic, Antarctica
{a} | a scene at {a} | an image captured near {a} | {a} seen from above
    sandy beach, rocky coastline, mountain valley, tropical rainforest, sand dune desert, river delta,
    alpine meadow, fjord, island lagoon, wheat field, pine forest, frozen lake, volcanic crater, canyon,
    waterfall gorge, vineyard hillside, fishing harbor, city skyline, market square, suburban street, train
    station, airport terminal, cathedral square, university campus, farmyard, botanical garden, mountain
    pass, hotel lobby, hospital corridor, supermarket aisle, subway platform, stadium, public library,
    castle courtyard, shopping mall, highway interchange, cemetery, playground, restaurant kitchen, living room,
    bathroom, attic, garage, classroom, coral reef, polar ice cap
[object]
a photo of {a} | a small {x} | a close-up of {a} | an old {x}
    teapot, alarm clock, wristwatch, suitcase, umbrella, lamp, candle, vase, mirror, pillow, toothbrush,
    hairbrush, key ring, wallet, backpack, laptop, keyboard, telephone, television, radio, camera,
    microscope, telescope, typewriter, calculator, light bulb, battery charger, vacuum cleaner, washing
    machine, toaster, frying pan, coffee mug, wine glass, dinner plate, cutting board, corkscrew, kitchen
    scale, blender
an image of {a} | a large {x} | {a} in the middle | a beautiful {x}
    hammer, screwdriver, wrench, ladder, shovel, wheelbarrow, chainsaw, paint bucket, toolbox, drill,
    armchair, bookshelf, wooden desk, sofa, wardrobe, rocking chair, bunk bed, coffee table, bicycle,
    motorcycle, tractor, pickup truck, sailboat, canoe, helicopter, fire truck, steam engine, scooter,
    guitar, violin, piano, trumpet, drum kit, accordion, flute, tennis racket, skateboard, basketball
a picture of {a} | a small {x} | a close-up of {a} | an old {x}
    leather boot, raincoat, straw hat, wool scarf, wedding dress, necktie, handbag, pair of sunglasses, royal
    crown, pearl necklace, teddy bear, kite, chess board, jigsaw puzzle, snow globe, birdcage, flower pot,
    mailbox, fire hydrant, shopping cart, parking meter, garden hose, ship anchor, door key, loaf of bread,
    cheeseburger, birthday cake, jar of honey, bowl of soup, bottle of olive oil
a drawing of {a} | a large {x} | {a} in the middle | a beautiful {x}
    oak tree, palm tree, rose bush, sunflower, mushroom, pumpkin, pear, apple, cactus, tulip, wooden hut,
    brick house, tent, garden shed, greenhouse, windmill, rowing boat, toy rocket
[color]
{a} tone | shades of {x} | an image dominated by {x} | {a} background
    red, blue, green, yellow, orange, purple, pink, brown, black, white, gray, turquoise, crimson, scarlet,
    maroon, magenta, lavender, violet, indigo, navy blue, sky blue, cobalt blue, teal, cyan, mint green,
    olive green, emerald green, lime green, mustard yellow, golden yellow, lemon yellow, amber, peach,
    coral, salmon pink, fuchsia, burgundy, beige, ivory, cream, tan, chocolate brown, rust red, charcoal
    gray, silver gray, khaki, lilac, plum, ochre, aquamarine
a pale {x} tint | everything in {x} | a photo washed in {x} | a deep {x} hue
    red, blue, green, yellow, orange, purple, pink, brown, turquoise, magenta, lavender, violet, indigo,
    teal, mint green, olive green, mustard, amber, peach, coral, burgundy, lilac, plum, ochre, aquamarine
{a} palette | a picture full of {x} colors
    pastel, monochrome, earthy brown, red and gold, blue and white, black and yellow, pink and green, orange
    and teal, neon, muted gray, rainbow, bright primary, warm autumn, cool bluish, jewel-toned, faded
    yellowish, multicolored, vivid saturated, desaturated, purple and orange
[shape]
{a} | a sign shaped like {a} | the outline of {a} | {a} drawn with one line
    circle, square, triangle, rectangle, hexagon, pentagon, octagon, oval, ellipse, rhombus, trapezoid,
    parallelogram, semicircle, crescent, five-pointed star, cross shape, heart shape, arrow shape, spiral,
    helix, ring shape, diamond shape, teardrop shape, half-moon shape, kite shape
a photo of {a} | something in the form of {a} | {a} seen from the side | a perfect {x}
    cube, sphere, cylinder, cone, pyramid, prism, cuboid, torus, hemisphere, tetrahedron, dodecahedron,
    spherical dome, ovoid, rounded cone, truncated pyramid, hollow cylinder
{x} | a view with {x} | {x} meeting in the middle | a composition of {x}
    nested squares, sharp angles, right angles, rounded corners, stacked cubes, overlapping ovals, jagged edges,
    spiraling curves, perpendicular lines
{a} shape | an image of {a} form | {a} outline | {a} silhouette
    round, rectangular, triangular, oblong, elongated, symmetrical, asymmetrical, irregular, angular,
    curved, conical, cylindrical, spherical, tapered, bulging, star-like, pointed, arched, flattened,
    hourglass, egg-like, crooked, geometric, jagged, boxy, S-curved, bell-like, wedge-like, lopsided
[texture]
a close-up of {x} | the texture of {x} | {x} up close | a surface covered in {x}
    rough tree bark, cracked clay, polished marble, brushed steel, rusted iron, coarse sandpaper, crumpled
    paper, woven wicker, knitted wool, soft velvet, wrinkled linen, smooth silk, worn leather, fluffy
    fleece, peeling paint, weathered wood, rippled sand, bubble wrap, frosted glass, wet concrete,
    corrugated cardboard, quilted fabric, glossy enamel, dry moss, grainy plaster, pebbled rubber, hammered
    copper, tangled thread, splintered plywood, shiny satin, fuzzy felt, stitched denim, granite,
    terracotta, burlap, corduroy, suede, lace, tweed, porcelain, bamboo matting, cork
{a} surface | {a} texture | a picture of something {x} | a finish that looks {x}
    rough, smooth, bumpy, grainy, glossy, matte, fuzzy, slippery, wrinkled, scaly, prickly, porous, sticky,
    gritty, velvety, furry, spongy, flaky, cracked, woven, ribbed, pitted, crumbly, lumpy, silky, metallic,
    crinkled, fibrous, powdery, leathery
{a} pattern | {a} surface | a fabric with {a} pattern
    herringbone, striped, polka-dotted, plaid, checkered, houndstooth, paisley, tartan, crosshatched, floral,
    honeycomb, basketweave, pinstriped, speckled, marbled, mottled, camouflage, argyle, gingham, chevron,
    zigzag, latticed, pleated, embroidered, braided, meshed, dotted, wavy, tiled, brickwork, scalloped, spotted
[animal]
a photo of {a} | a large {x} | {a} in the middle | a beautiful {x}
    lion, tiger, elephant, giraffe, zebra, rhinoceros, hippopotamus, cheetah, leopard, gorilla, chimpanzee,
    orangutan, kangaroo, koala, panda, polar bear, grizzly bear, wolf, fox, raccoon, badger, beaver, otter,
    hedgehog, squirrel, rabbit, moose, reindeer, bison, camel, antelope, sloth, armadillo, hyena, lynx, wild
    boar, porcupine, bat, skunk, meerkat
an image of {a} | a small {x} | a close-up of {a} | an old {x}
    golden retriever, dachshund, poodle, bulldog, tabby cat, Siamese cat, kitten, puppy, horse, donkey, cow,
    sheep, goat, pig, llama, hamster, guinea pig, parrot, canary, rooster, duckling, goose, turkey bird
a picture of {a} | a large {x} | a close-up of {a} | a beautiful {x}
    bald eagle, barn owl, flamingo, peacock, pelican, penguin, toucan, hummingbird, woodpecker, swan, heron,
    ostrich, raven, seagull, crocodile, tortoise, iguana, chameleon, rattlesnake, cobra, tree frog, toad,
    salamander, dolphin, humpback whale, great white shark, seahorse, octopus, jellyfish, lobster,
    clownfish, stingray, sea turtle, walrus, butterfly, dragonfly, honeybee, ladybug, grasshopper,
    tarantula, scorpion, snail
[human]
a portrait of {a} | {a} at work | a photo of {a} | an experienced {x}
    firefighter, nurse, doctor, surgeon, police officer, soldier, pilot, flight attendant, chef, baker,
    waiter, butcher, farmer, fisherman, carpenter, blacksmith, plumber, electrician, mechanic, construction
    worker, miner, teacher, professor, student, scientist, librarian, lawyer, judge, politician, journalist,
    photographer, painter, sculptor, musician, opera singer, ballerina, actor, magician, clown, athlete,
    boxer, jockey, lifeguard, astronaut, priest, monk, nun, tailor, hairdresser, dentist, postman, janitor,
    taxi driver, sailor, bodyguard, shopkeeper, veterinarian, engineer
{a} | a picture of {a} | {a} looking at the camera | the profile of {a}
    toddler, newborn baby, teenage girl, teenage boy, schoolgirl, young man, young woman, middle-aged man,
    elderly woman, elderly gentleman, grandmother, grandfather, pregnant woman, bride, groom, businessman,
    businesswoman, bearded man, bald man, red-haired woman, freckled boy, man in a suit, woman in a sari,
    girl with braids, woman with curly hair, man with a mustache, boy with glasses, tall man, blonde girl,
    woman in a headscarf
{x} | an image of {x} | {x} posing together
    a mother and her daughter, a father and his son, an elderly couple, a group of teenagers, twin sisters,
    a large family, a newlywed couple, three generations of a family, two colleagues, a crowd of strangers,
    schoolchildren in uniform, a group of tourists
[text]
a sign with the letter {x} | the letter {x} in bold type | a handwritten letter {x}
    A, B, C, D, E, F, G, H, J, K, L, M, N, P, Q, R, S, T, V, W, X, Y, Z
the word {x} | a sign that says {x} | {x} written in capital letters | the word {x} in print
    OPEN, CLOSED, STOP, SALE, WELCOME, EXIT, DANGER, ENTRANCE, HELLO, PUSH, PULL, PRIVATE, WARNING, FREE,
    CAUTION, PLEASE, THANK YOU, VACANCY
{x} | a photo of {x} | a picture showing {x} | {x} seen up close
    a handwritten note, a page of printed text, a newspaper headline, a love letter, a typed manuscript, a
    shopping list, a chalkboard full of writing, a street sign, a signature in ink, graffiti lettering, neon
    lettering, Arabic calligraphy, Chinese characters, Cyrillic letters, Hebrew script, Gothic lettering,
    cursive handwriting, an engraved inscription, hieroglyphs on stone, a book title, a poster slogan, a
    restaurant menu, a product label, a license plate, a brand logo, a movie subtitle, a comic speech
    bubble, a page from a dictionary, a postcard message, a printed receipt, a warning label, a tombstone
    inscription, a tattooed quotation, a crossword, a musical score with lyrics, a stenciled caption, a
    typewritten memo, a sentence in italics, a paragraph in small print, an alphabet chart, a printed form,
    a footnote, a poem on parchment, a billboard advertisement, a watermark, a text message, an email on a
    screen, a line of source code, a spelling mistake, a monogram, scribbled notes, a headline in bold
    letters, a name tag, a bilingual sign, a library catalog card, a table of contents
[number]
{x} in a row | a photo of {x} | exactly {x} | {x} counted one by one
    two shirts, three apples, four chairs, five coins, six candles, seven bottles, eight buttons, nine stones,
    ten pencils, eleven cards, a dozen eggs, twenty balloons, a pair of shoes, one single leaf, two doors,
    three boats, four windows, five flowers, six pigeons, seven hats, eight boxes, nine spoons, ten fingers,
    twelve lanterns, fifty flags, a hundred marbles
the number {x} | {x} items in total | an image with the number {x} | a count of {x}
    one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, thirteen, fourteen, fifteen,
    sixteen, seventeen, eighteen, nineteen, twenty, thirty, forty, fifty, sixty, seventy, eighty, ninety,
    one hundred, two hundred, five hundred, one thousand, one million, zero
the numeral {x} | the digits {x} | a picture of the number {x} | number {x} on a jersey
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 15, 17, 21, 24, 30, 36, 42, 50, 64, 75, 88, 99, 100, 365, 1000
{x} | a view with {x}
    only one of them, a pair, a trio, a quartet, a handful, half a dozen, dozens of them, hundreds of them,
    too many to count, a single item, twice as many, an even number, an odd number, a couple of things, a
    large quantity, several of the same kind, a set of three, a set of four, a group of five, a group of
    seven
[style]
{a} photograph | {a} shot | a photo with {a} look
    long-exposure, tilt-shift, macro, black-and-white, sepia-toned, high-contrast, overexposed,
    underexposed, grainy film, fisheye, panoramic, infrared, aerial, double-exposure, backlit, low-key,
    soft-focus, shallow depth-of-field, vintage Polaroid, time-lapse, motion-blurred, cinematic, wide-angle,
    candid, documentary, studio-lit, HDR, lomography, silhouette, cross-processed, vignetted, daguerreotype
{a} | an artwork done as {a} | an amateur {x} | {a} in a frame
    oil painting, watercolor painting, charcoal sketch, pencil drawing, ink illustration, woodcut print,
    linocut print, pastel drawing, acrylic painting, fresco, mosaic, collage, stained-glass design,
    engraving, etching, lithograph, screen print, comic-book illustration, cartoon drawing, caricature,
    digital rendering, 3D render, pixel-art image, vector illustration, airbrush painting, chalk drawing,
    origami artwork, paper-cut artwork, gouache painting, tapestry, concept art piece, anime drawing
artwork in the style of {x} | {x} art | an image influenced by {x}
    Impressionism, Cubism, Surrealism, Expressionism, Pop Art, Art Nouveau, Art Deco, Baroque, Romanticism,
    Renaissance painting, Minimalism, Abstract Expressionism, Pointillism, Fauvism, Dadaism, Futurism,
    Photorealism, Bauhaus, Rococo, Neoclassicism, ukiyo-e, Gothic art, Byzantine icons, street art, folk
    art, steampunk, psychedelic posters, vaporwave
[emotion]
a feeling of {x} | an atmosphere of {x} | a photo that conveys {x} | an expression of {x}
    joy, sadness, anger, fear, disgust, surprise, love, grief, loneliness, hope, despair, pride, shame,
    guilt, envy, jealousy, gratitude, nostalgia, serenity, excitement, boredom, anxiety, contentment,
    melancholy, tenderness, compassion, rage, awe, regret, relief, disappointment, embarrassment,
    frustration, curiosity, longing, trust, panic, delight, affection, heartbreak, bliss, dread
{a} mood | {a} face | a picture with {a} feeling | {a} look in the eyes
    happy, sad, angry, frightened, gloomy, cheerful, anxious, peaceful, tense, lonely, tender, hopeful,
    bitter, joyful, sorrowful, playful, nostalgic, serene, eerie, furious, confused, worried, delighted,
    miserable, romantic, somber, euphoric, resentful, calm, shocked, ashamed, bored, proud, grateful
{x} | an image of {x}
    a tearful goodbye, a warm embrace, tears of happiness, a broken heart, a burst of laughter, a joyful
    reunion, a cry for help, an angry outburst, a bittersweet farewell, a loving gaze, a nervous smile,
    quiet sorrow, wild enthusiasm, deep mourning, a sense of wonder, a scream of terror, a sigh of relief, a
    sulking pout, a blush of embarrassment, a tender moment
[action]
a man {x} | a woman {x} | someone {x} | a photo of people {x}
    jumping over a puddle, riding a bicycle, climbing a rope, swimming underwater, running a race, dancing,
    throwing a ball, catching a frisbee, kicking a football, lifting weights, doing a handstand, skating,
    skiing downhill, surfing a wave, rowing a boat, paddling upstream, diving off a cliff, hiking uphill,
    walking in the rain, crossing the street, sprinting for the bus, crawling through a tunnel, stretching,
    doing yoga, boxing, fencing, wrestling, shooting an arrow, swinging a bat, hitting a golf ball
a girl {x} | a boy {x} | two friends {x} | an image of somebody {x}
    cooking dinner, chopping vegetables, kneading dough, pouring tea, washing dishes, sweeping the floor,
    ironing shirts, folding laundry, painting a fence, digging a hole, planting seeds, watering plants,
    sawing wood, hammering a nail, fixing a bike, driving a car, pushing a stroller, carrying boxes, pulling
    a sled, opening a gift, blowing out candles, taking a selfie, waving goodbye, shaking hands, clapping,
    pointing at the sky, whispering, shouting, singing along, playing chess, juggling, flying a kite,
    building a sandcastle, brushing teeth, combing hair, tying shoelaces, yawning, sleeping, eating noodles,
    drinking water, reading aloud, typing, knitting, sewing, fishing, camping, feeding birds, milking a cow,
    walking the dog, riding a horse
{x} | a picture of {x}
    children chasing each other, a crowd cheering, a team celebrating a goal, a runner crossing the line, a
    dog fetching a stick, a cat leaping off a wall, a horse galloping, birds taking off, a car speeding by,
    water splashing, leaves falling, a train departing, a rocket launching, a door slamming, a ball
    bouncing, dancers spinning, hands clapping, a skater falling, a couple waltzing, a climber reaching up"""


def read_lists(text: str) -> dict[str, list[Group]]:
    concepts: dict[str, list[Group]] = {}
    for block in text.strip().removeprefix("[").split("\n["):
        concept, body = block.split("]\n")
        concepts[concept] = []
        for group in re.split(r"\n(?=\S)", body):
            templates, text_of_words = group.split("\n", 1)
            words = [" ".join(word.split()) for word in text_of_words.split(",")]
            concepts[concept].append((templates.split(" | "), words))
    return concepts


def with_article(word: str) -> str:
    # Sound decides, not spelling: "a university", "an S-curved".
    vowel = word[0].lower() in "aeiou" and not word.lower().startswith(("uni", "euph"))
    return f"{'an' if vowel or word.startswith(('S-', 'HDR', 'hourglass')) else 'a'} {word}"


def compose(groups: list[Group]) -> Iterator[str]:
    for turn in range(max(len(templates) for templates, _ in groups)):
        for templates, words in groups:
            if turn < len(templates):
                for index, word in enumerate(words):
                    template = templates[(index + turn) % len(templates)]
                    yield template.format(x=word, a=with_article(word))


def world_phrases() -> dict[str, list[str]]:
    """The sentences of Attribute World about one value alone, without those that leave the attribute open."""
    return {
        attribute: [
            name_alone(attribute, value, template)
            for value in values
            for template in ALONE[attribute]
            if template != AMBIGUOUS[attribute]
        ]
        for attribute, values in VALUES.items()
    }


def write(path: Path, phrases: dict[str, list[str]]) -> None:
    lines = [f"{concept}\t{phrase}\n" for concept, of_concept in phrases.items() for phrase in of_concept]
    write_text(path, "".join(lines))
    print(f"{path.name}: {', '.join(f'{len(of_concept)} {concept}' for concept, of_concept in phrases.items())}")


def main() -> None:
    corpus = {c: list(islice(dict.fromkeys(compose(g)), PER_CONCEPT)) for c, g in read_lists(LISTS).items()}
    short = [concept for concept, phrases in corpus.items() if len(phrases) < PER_CONCEPT]
    if short:
        raise SystemExit(f"Too few words for {PER_CONCEPT} phrases of {', '.join(short)}.")
    write(SHIPPED_PHRASES, corpus)
    write(WORLD_PHRASES, world_phrases())


if __name__ == "__main__":
    main()
