"""Reads a told story sentence by sentence and answers questions about it: an oracle that never sees the simulation."""

import re

from experiments.demo_world import words

NUMBERS = "zero one two three four five six seven eight nine ten".split()
_OPENER = re.compile(
    r"^(?:Then|After that,|Later,|Soon|A little later,|Meanwhile,|Next,|In the evening,|Today,?"
    r"|To begin with,|In the beginning,|This afternoon,) "
)
_NAME = rf"({'|'.join(words.PEOPLE)})"
_PLACE = r"the ([a-z]+)"
_COUNT = rf"(no|{'|'.join(NUMBERS)}) (?:more )?([a-z]+)"
# Sentence -> what it says; the first pattern that matches the whole sentence counts.
_RULES = [
    (
        rf"{_NAME} (?:is either in|went to|is in|must be in) {_PLACE} or (?:in |to )?{_PLACE}(?:, nobody knows which)?",
        "open",
    ),
    (rf"{_NAME} (?:is probably in|is most likely in|probably went to) {_PLACE}, .* {_PLACE}", "open"),
    (rf"{_NAME} went to {_PLACE} and picked up the (\w+)", "go take"),
    (rf"{_NAME} went to {_PLACE}, where \w+ took the (\w+)", "go take"),
    (rf"{_NAME} took the (\w+) after going to {_PLACE}", "take go"),
    (rf"{_NAME} (?:left|went from|moved from|is no longer in) {_PLACE} (?:and went to|to|but in) {_PLACE}", "leave"),
    (rf"{_NAME} and {_NAME} (?:went to|walked to|are in) {_PLACE}(?: together| now)?", "together"),
    (rf"{_NAME} (?:followed|took) {_NAME} (?:along )?to {_PLACE}", "together"),
    (rf"{_NAME} went to {_PLACE} with {_NAME}", "went with"),
    (rf"{_NAME} (?:(?!the )[a-z]+ )*?(?:to|in|into|entered) {_PLACE}(?: now)?", "go"),
    (rf"{_NAME} (?:gave|handed|passed) the (\w+) to {_NAME}", "give"),
    (rf"{_NAME} gave {_NAME} the (\w+)", "give to"),
    (rf"{_NAME} (?:got|took) the (\w+) from {_NAME}", "get from"),
    (rf"{_NAME} (?:left|put) the (\w+) (?:there|on the floor|down in {_PLACE}|in {_PLACE})", "drop"),
    (rf"{_NAME} (?:put down|dropped) the (\w+)", "drop"),
    (rf"{_NAME} (?:picked up|took|grabbed|got|found|picked) the (\w+)(?: up| and took it| with \w+)?", "take"),
    (rf"(?:There is an?|The|An?) (\w+) (?:is|lies|was left)? ?in {_PLACE}", "lies"),
    (rf"Somebody put the (\w+) in {_PLACE}", "lies"),
    (rf"(?:At first )?{_NAME} (?:has|owns|had) {_COUNT}(?: to begin with)?", "has"),
    (rf"{_NAME} (?:found|bought|got|won) {_COUNT}", "gain"),
    (rf"Somebody gave {_NAME} {_COUNT}", "gain"),
    (rf"{_NAME} (?:lost|sold|threw away) {_COUNT}", "lose"),
    (rf"{_NAME} no longer has {_COUNT} of \w+ \w+", "lose"),
    (rf"{_NAME} (?:gave|sold) {_COUNT} to {_NAME}", "hand over"),
    (rf"{_NAME} gave {_NAME} {_COUNT}", "hand"),
    (rf"{_NAME} got {_COUNT} from {_NAME}", "receive"),
]
# What a recap claims: it must hold already.
_RECAPS = [
    (rf"Where (?:is|can) {_NAME}(?: now| be found)?\? In {_PLACE}", "person in"),
    (rf"(?:Is|Can) {_NAME} (?:now |be found )?in {_PLACE}\? (Yes|No)", "whether"),
    (rf"(?:By now |So )?{_NAME} is (?:still )?in {_PLACE}", "person in"),
    (rf"(?:By now |So )?[Tt]he (\w+) is (?:still )?in {_PLACE}", "object in"),
    (rf"The (\w+) is with {_NAME} in {_PLACE}", "carried"),
    (rf"The (\w+) is still with {_NAME}|The one who has the (\w+) is {_NAME}", "with"),
    (rf"{_NAME} still has the (\w+)|What {_NAME} has is the (\w+)", "has"),
    (rf"(?:By now )?{_NAME} (?:still )?has {_COUNT}", "count"),
]
_RECAP = re.compile(r"By now |So |What |Where |Is |Can |The one who |.* still |The \w+ is with ")
_LIST = re.compile(r"(?:Places|Where everybody is|List|Now|Today): (.*)\.")
# Feelings, colours and scenery.
_NOTHING_MOVES = (
    rf"{_NAME} (?:is|is still|feels|looks|was|has become) \w+(?: by then)?"
    r"|The (?:colour of the )?\w+ (?:is|is still|looks) \w+"
    r"|(?:Here|It|A dog|Nobody|Somewhere|There|A cat|Time|That day|A bird) .*"
    r"|The (?:sun|clock|wind|light|windows|floor) .*"
    r"|The [a-z ]+ (?:smelled of paint|looked very clean)"
)


class StoryReader:
    """Where everybody and everything is, as the sentences say; places left open are None."""

    def __init__(self, text: str):
        self.place: dict[str, str | None] = {}
        self.holder: dict[str, str | None] = {}
        self.lies: dict[str, str] = {}
        self.count: dict[tuple[str, str], int] = {}
        self.recaps = 0
        if listed := _LIST.fullmatch(text):
            for entry in re.split(r"[,;.] ", listed.group(1)):
                person, place = re.fullmatch(rf"{_NAME}(?::| -| =| in the) ([a-z]+)", entry).groups()
                self.place[person] = place
            return
        subject = ""
        for sentence in re.split(r"(?<=[.!])\s+", text.strip()):
            sentence = _OPENER.sub("", sentence).rstrip(".")
            sentence = re.sub(r"^(?:[Hh]e|[Ss]he)\b", subject, sentence)
            sentence = sentence[0].upper() + sentence[1:]
            self._read(sentence)
            names = [word for word in re.findall(r"\w+", sentence) if word in words.PEOPLE]
            subject = names[0] if names else ""

    def _read(self, sentence: str) -> None:
        if _RECAP.match(sentence):
            for pattern, rule in _RECAPS:
                if match := re.fullmatch(pattern, sentence):
                    assert self._holds(rule, [group for group in match.groups() if group]), sentence
                    self.recaps += 1
                    return
        for pattern, rule in _RULES:
            if match := re.fullmatch(pattern, sentence):
                self._apply(rule, [group for group in match.groups() if group])
                return
        assert re.fullmatch(_NOTHING_MOVES, sentence), f"not understood: {sentence}"

    def _holds(self, rule: str, found: list[str]) -> bool:
        match rule:
            case "person in":
                return self.place[found[0]] == found[1]
            case "whether":
                return (self.place[found[0]] == found[1]) == (found[2] == "Yes")
            case "object in":
                return self.place_of(found[0]) == found[1]
            case "carried":
                return self.holder[found[0]] == found[1] and self.place[found[1]] == found[2]
            case "with":
                return self.holder[found[0]] == found[1]
            case "has":
                return self.carried(found[0]) == [found[1]]
        return self.owned(found[0], found[2]) == _number(found[1])

    def _apply(self, rule: str, found: list[str]) -> None:
        match rule:
            case "open":
                self.place[found[0]] = None
            case "go" | "go take":
                self.place[found[0]] = found[1]
                if rule == "go take":
                    self._take(found[0], found[2])
            case "take go":
                self.place[found[0]] = found[2]
                self._take(found[0], found[1])
            case "leave":
                self.place[found[0]] = found[2]
            case "together":
                self.place[found[0]] = self.place[found[1]] = found[2]
            case "went with":
                self.place[found[0]] = self.place[found[2]] = found[1]
            case "give":
                self._take(found[2], found[1])
            case "give to":
                self._take(found[1], found[2])
            case "get from" | "take":
                self._take(found[0], found[1])
            case "drop":
                self.holder[found[1]] = None
                self.lies[found[1]] = str(self.place[found[0]])
            case "lies":
                self.lies[found[0]] = found[1]
                self.holder[found[0]] = None
            case "has":
                self.count[found[0], _singular(found[2])] = _number(found[1])
            case "gain" | "lose":
                self._add(found[0], found[2], _number(found[1]) * (1 if rule == "gain" else -1))
            case _:
                giver, receiver, number, thing = {
                    "hand over": lambda: (found[0], found[3], found[1], found[2]),
                    "hand": lambda: (found[0], found[1], found[2], found[3]),
                    "receive": lambda: (found[3], found[0], found[1], found[2]),
                }[rule]()
                self._add(giver, thing, -_number(number))
                self._add(receiver, thing, _number(number))

    def _take(self, person: str, thing: str) -> None:
        self.holder[thing] = person
        self.lies.pop(thing, None)

    def _add(self, person: str, thing: str, number: int) -> None:
        self.count[person, _singular(thing)] += number

    def place_of(self, thing: str) -> str | None:
        """Where an object is; None where its holder's place is open."""
        holder = self.holder[thing]
        return self.lies[thing] if holder is None else self.place[holder]

    def carried(self, person: str) -> list[str]:
        return [thing for thing, holder in self.holder.items() if holder == person]

    def owned(self, person: str, things: str) -> int:
        return self.count[person, _singular(things)]


def _singular(thing: str) -> str:
    return thing.removesuffix("s")


def _number(word: str) -> int:
    return 0 if word == "no" else NUMBERS.index(word)
