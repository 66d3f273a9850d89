"""The small world of the demo task: sixteen families of everyday topics and the phrases that make advice good or poor.

Everything is data. A family holds eight topics and the phrases a good answer is made of (what to do, how, how much or
how often, why); the vague phrases that poor answers use instead are shared by all families.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Split = Literal["train", "heldout", "rl_train", "rl_heldout"]

# The place of a topic inside its family decides its split, so every family is seen in every split.
_SPLIT_BY_PLACE: tuple[Split, ...] = (
    "train",
    "rl_train",
    "train",
    "rl_train",
    "heldout",
    "rl_heldout",
    "rl_train",
    "train",
)


_WITHOUT_ARTICLE = ("study", "sport")  # families whose objects are subjects and sports


@dataclass(frozen=True)
class Family:
    """Phrases shared by the topics of one family; `{o}` in an action stands for the object ("the fern" or "it")."""

    name: str
    actions: tuple[str, ...]
    details: tuple[str, ...]
    amounts: tuple[str, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Topic:
    """One everyday topic: "water a fern", "watering a fern", about the object "fern"."""

    key: str
    gerund: str
    noun: str
    plural: bool
    family: Family
    split: Split

    @property
    def reference(self) -> str:
        """The object as an answer names it: "the fern", but "history" and "running"."""
        return self.noun if self.family.name in _WITHOUT_ARTICLE else f"the {self.noun}"

    @property
    def pronoun(self) -> str:
        """ "it", or "them" for a plural object."""
        return "them" if self.plural else "it"


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(";"))


# name; verb/gerund of the first four topics; of the last four; eight objects; actions; details; amounts; reasons
_WORLD: tuple[tuple[str, str, str, str, str, str, str, str], ...] = (
    (
        "plants",
        "water/watering",
        "grow/growing",
        "a fern; a cactus; a rose bush; a lemon tree; a tomato plant; a bonsai; basil; an orchid",
        "soak the soil around {o}; turn {o} to the light; cut the dry leaves off {o}; stand {o} on wet stones; "
        "loosen the earth under {o}",
        "early in the morning; near a bright window; with a light hand; out of the wind",
        "every three days; twice a week; once every ten days; on two mornings a week; every second day",
        "wet roots rot quickly; dry roots drop leaves; new shoots need air; small roots drink slowly",
    ),
    (
        "blades",
        "sharpen/sharpening",
        "look after/looking after",
        "a kitchen knife; a chisel; an axe; a razor; a pocket knife; a hand saw; garden shears; scissors",
        "draw {o} along a wet stone; rub a drop of oil on {o}; polish {o} on a strip of leather; dry {o} on a towel; "
        "file the nicks out of {o}",
        "at a low angle; away from your body; with even pressure; from heel to tip",
        "ten times on each side; for five minutes a month; after every third use; twenty strokes at a time; "
        "once a month",
        "a dull edge slips; rust eats thin steel; a thin edge bends; clean steel cuts straight",
    ),
    (
        "cleaning",
        "clean/cleaning",
        "clean/cleaning",
        "a window; an oven; a carpet; a mirror; a bathtub; a keyboard; a sofa; a fridge",
        "wipe {o} with warm vinegar; brush the dust off {o}; rub baking soda into {o}; rinse {o} with soapy water; "
        "dry {o} with newspaper",
        "from top to bottom; with a soft cloth; in small circles; with the door open",
        "for ten minutes every saturday; once a week; every two weeks; twice a month; for a quarter of an hour",
        "old grease turns hard; dust holds moisture; fresh stains lift easily; soap leaves streaks",
    ),
    (
        "cooking",
        "cook/cooking",
        "cook/cooking",
        "rice; an egg; a chicken; pasta; a soup; a fish; a potato; lentils",
        "salt the water for {o}; put a lid over {o}; let {o} rest on a plate; stir {o} with a wooden spoon; "
        "taste a bite of {o}",
        "on low heat; in a heavy pan; away from the flame; before you serve",
        "for twelve minutes; every four minutes; for half an hour; two times per pot; for the last five minutes",
        "steam finishes the middle; high heat burns the outside; salt needs time to spread; slow heat keeps it soft",
    ),
    (
        "baking",
        "bake/baking",
        "bake/baking",
        "bread; a cake; a pie; cookies; a pizza; muffins; a tart; pancakes",
        "weigh the flour for {o}; fold cold butter into {o}; let the dough of {o} rise; turn {o} around in the oven; "
        "cool {o} on a rack",
        "under a damp towel; in a warm corner; on the middle shelf; with floury hands",
        "for forty minutes; after the first ten minutes; for one hour; twice per batch; for exactly eight minutes",
        "yeast works slowly; ovens heat unevenly; warm crumb tears; too much flour makes it tough",
    ),
    (
        "packing",
        "pack/packing",
        "pack/packing",
        "a suitcase; a school bag; a picnic basket; a moving box; a gym bag; a backpack; a toolbox; a lunch box",
        "roll the soft things in {o}; put heavy things low in {o}; write a list for {o}; weigh {o} on a scale; "
        "fill the corners of {o}",
        "on a clear table; in flat layers; with the zip side up; starting with shoes",
        "two days ahead; for twenty minutes; the evening before; one hour before you leave; in three rounds",
        "rolled clothes save space; a low weight carries well; lists stop you forgetting; loose things break",
    ),
    (
        "pets",
        "care for/caring for",
        "train/training",
        "a cat; a rabbit; a goldfish; a hamster; a puppy; a parrot; a pony; a dog",
        "give {o} fresh water; weigh the food of {o}; check the eyes of {o}; speak softly to {o}; clean the bed of {o}",
        "in a quiet room; at the same place; with slow movements; before your own meal",
        "every morning at seven; twice a day; for fifteen minutes a day; three times a week; every evening",
        "animals trust habits; stress makes them ill; clean water prevents disease; short lessons stay fresh",
    ),
    (
        "music",
        "play/playing",
        "learn/learning",
        "the guitar; the piano; the violin; the drums; the flute; the trumpet; the cello; the harp",
        "tune {o} by ear; play a slow scale on {o}; count aloud while playing {o}; record yourself on {o}; "
        "repeat one hard bar on {o}",
        "with a metronome; in front of a mirror; with loose shoulders; at half speed",
        "for twenty minutes a day; six days a week; five times in a row; every evening after dinner; for half an hour",
        "muscles learn slowly; mistakes settle in fast; the ear needs a beat; short practice sticks best",
    ),
    (
        "study",
        "study/studying",
        "study/studying",
        "history; grammar; algebra; chemistry; geography; spelling; biology; physics",
        "write ten cards about {o}; explain {o} to a friend; solve old tests in {o}; draw a map of {o}; "
        "read one chapter of {o}",
        "at an empty desk; with your phone off; without looking at notes; in your own words",
        "for thirty minutes a day; every monday and thursday; three times before the exam; one hour at a time; "
        "for six weeks",
        "recall builds memory; sleep sorts new facts; gaps show up early; spaced practice lasts",
    ),
    (
        "writing",
        "write/writing",
        "write/writing",
        "a letter; an essay; a speech; a poem; a diary; a report; a story; a review",
        "state the point of {o} first; read {o} aloud; cut every third word of {o}; show {o} to a reader; "
        "plan {o} on one page",
        "with a pencil; in plain words; away from the screen; in short lines",
        "for ten minutes a day; two days before it is due; in three drafts; twice from start to end; "
        "before nine o'clock",
        "ears catch clumsy lines; readers like short words; a rest shows the errors; a plan saves time",
    ),
    (
        "repairs",
        "fix/fixing",
        "repair/repairing",
        "a leaky tap; a squeaky door; a stuck drawer; a flat tire; a loose chair; a torn shirt; a cracked plate; "
        "a broken lamp",
        "tighten the screws of {o}; take a photo of {o}; sand the rough side of {o}; put a new part in {o}; "
        "press the glue on {o}",
        "with the right screwdriver; after turning the power off; on a flat bench; with thin gloves",
        "a quarter turn at a time; for two minutes; once every six months; for a full day; three turns at most",
        "old parts wear out; glue needs time to set; small gaps grow; too much force strips the thread",
    ),
    (
        "body",
        "relax/relaxing",
        "strengthen/strengthening",
        "a stiff neck; a sore back; tired eyes; tense shoulders; weak knees; a tight hip; flat feet; a sore wrist",
        "put a warm towel over {o}; stretch {o} to each side; breathe out while moving {o}; rub {o} with your thumbs; "
        "rest {o} on a pillow",
        "lying on the floor; without any pain; in a dark room; with slow breaths",
        "for thirty seconds; eight times per side; every two hours; three times a day; for ten slow breaths",
        "warm muscles let go; blood brings fresh oxygen; joints dislike sitting; slow work avoids injury",
    ),
    (
        "sport",
        "get better at/getting better at",
        "start/starting",
        "running; swimming; tennis; climbing; rowing; skating; cycling; boxing",
        "warm up before {o}; film one session of {o}; write down each hour of {o}; find a coach for {o}; "
        "rest a day after {o}",
        "at an easy pace; with a partner; on soft ground; in good shoes",
        "for five minutes; three times a week; every other day; ten percent more each week; for two months",
        "tendons adapt slowly; cold muscles tear; rest makes you stronger; habits beat talent",
    ),
    (
        "money",
        "save for/saving for",
        "pay for/paying for",
        "a holiday; a car; a house; a bicycle; a wedding; a laptop; a course; a camera",
        "open an account for {o}; move a fixed sum for {o}; compare three prices of {o}; sell one thing for {o}; "
        "write the cost of {o} down",
        "on payday; before you spend anything; in a simple table; with your bank",
        "fifty dollars a month; every first friday; ten percent of your pay; once a week; for twelve months",
        "automatic saving needs no will; small sums add up; prices drop in winter; a number keeps you honest",
    ),
    (
        "storing",
        "store/storing",
        "keep/keeping",
        "apples; cheese; onions; coffee; honey; tea; mushrooms; lettuce",
        "wrap {o} in paper; put {o} in a glass jar; hang {o} in a net; write the date on {o}; "
        "sort the bad bits of {o} out",
        "in a dark cupboard; below ten degrees; away from the stove; in a single layer",
        "for up to three weeks; every five days; within two hours; for one month; twice a week",
        "light spoils the taste; trapped water grows mold; air dries it out; one bad piece spoils the rest",
    ),
    (
        "outdoors",
        "prepare for/preparing for",
        "enjoy/enjoying",
        "a hike; a camping trip; a beach day; a bike tour; a boat trip; a night walk; a ski day; a road trip",
        "check the weather for {o}; pack two liters of water for {o}; mark the route of {o}; "
        "tell a friend about {o}; bring dry socks for {o}",
        "on a paper map; at first light; with a full phone; in a dry bag",
        "three days ahead; every two hours; one hour earlier than planned; the night before; at least twice",
        "storms come fast; thirst clouds your mind; wet feet get blisters; phones lose signal",
    ),
)


def _build_topics() -> tuple[Topic, ...]:
    topics: list[Topic] = []
    for name, first, second, objects, actions, details, amounts, reasons in _WORLD:
        family = Family(name, _phrases(actions), _phrases(details), _phrases(amounts), _phrases(reasons))
        for place, (phrase, split) in enumerate(zip(_phrases(objects), _SPLIT_BY_PLACE, strict=True)):
            verb, gerund = (first if place < 4 else second).split("/")
            article, _, rest = phrase.partition(" ")
            noun = rest if article in ("a", "an", "the") else phrase
            plural = article not in ("a", "an") and noun.endswith(("s", "feet")) and name not in _WITHOUT_ARTICLE
            topics.append(Topic(f"{verb} {phrase}", f"{gerund} {phrase}", noun, plural, family, split))
    return tuple(topics)


TOPICS: tuple[Topic, ...] = _build_topics()
FAMILIES: tuple[Family, ...] = tuple({topic.family.name: topic.family for topic in TOPICS}.values())


def topics_of(split: Split) -> tuple[Topic, ...]:
    """Topics of one split, in a fixed order. The four splits share no topic."""
    return tuple(topic for topic in TOPICS if topic.split == split)


# What poor answers say instead: no topic in them, about as many words as the good phrases.
VAGUE_ACTIONS: tuple[str, ...] = _phrases(
    "do your best with {o}; take good care of {o}; be very careful with {o}; do whatever feels right with {o}; "
    "try something nice with {o}; deal with {o} in some way; give {o} the right treatment; think a little about {o}; "
    "keep an eye on {o}; make the most of {o}"
)
VAGUE_DETAILS: tuple[str, ...] = _phrases(
    "in the usual way; as best you can; with some care; if at all possible; one way or another; in a good mood"
)
VAGUE_AMOUNTS: tuple[str, ...] = _phrases(
    "now and then; from time to time; every so often; when it feels right; as often as needed; once in a while; "
    "for as long as it takes; more or less regularly"
)
VAGUE_REASONS: tuple[str, ...] = _phrases(
    "it is usually a good idea; most people say so; it tends to help somehow; things often work out; "
    "it never hurts to try; good things take time"
)
HEDGES: tuple[str, ...] = _phrases(
    "maybe; I guess; it depends but; perhaps; I am not sure but; probably; hard to say but; who knows but"
)
