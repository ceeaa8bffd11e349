"""Customers' messages to a shop, and questions about them: topic, wish, urgency, mood, what to do next."""

import random
from dataclasses import dataclass

from . import words
from .asking import Asked, choice, score, yes_no
from .support_words import (
    AGAIN,
    FILLERS,
    MOODS,
    OPENINGS,
    ORDER_NUMBERS,
    OTHERS,
    PRODUCTS,
    SCREENS,
    THREATS,
    TOPICS,
    URGENCY,
    WISHES,
)

FAULTS = ("damage", "defect", "wrong item")  # topics that call for a refund or a new one
ARRIVED = {"damage": True, "defect": True, "wrong item": True, "praise": True, "delivery": False, "cancellation": False}
TOPIC_MEANING = {
    "damage": "something arrived broken", "defect": "something does not work", "delivery": "something has not arrived",
    "wrong item": "something else was sent", "payment": "a charge or an invoice", "account": "login and passwords",
    "praise": "a happy customer", "question": "a question about a product", "cancellation": "an order to be stopped",
}  # fmt: skip
ACTION_MEANING = {
    "refund": "refund the order", "replace": "send a new one", "track": "look for the parcel",
    "check payment": "look into the charge", "unlock": "help with the login", "thank": "say thank you",
    "answer": "answer the question", "cancel": "stop the order", "escalate": "hand over to a manager",
}  # fmt: skip
ACTION_OF_TOPIC = {
    "delivery": "track", "payment": "check payment", "account": "unlock", "praise": "thank", "question": "answer",
    "cancellation": "cancel",
}  # fmt: skip
MOOD_LEVELS = (
    ("calm", "annoyed", "angry", "furious"), ("friendly", "a bit unhappy", "angry", "furious"),
    ("calm", "slightly annoyed", "angry", "beside themselves with rage"),
    ("not at all", "a little", "very", "extremely"),
)  # fmt: skip
URGENCY_LEVELS = (
    ("no hurry", "within days", "today", "within the hour"), ("it can wait", "this week", "today", "right now"),
    ("not urgent", "somewhat urgent", "urgent", "extremely urgent"),
)  # fmt: skip


@dataclass(frozen=True)
class Message:
    """What a customer's message says. `urgency` and `mood` are 0..3 or None where the message is silent."""

    text: str
    order: int | None
    product: str
    topic: str
    wish: str | None
    urgency: int | None
    mood: int
    contacts: int
    threat: bool


def draw_message(rng: random.Random, *, held_out: bool) -> Message:
    """A message whose first phrase and product are a held-out pair or one of the others, never both."""
    while True:
        key = rng.choice(list(TOPICS))
        screen = key == "damage of a screen"
        product = rng.choice(SCREENS if screen else PRODUCTS)
        phrase = rng.choice(TOPICS[key])
        if words.is_held_out((phrase, product)) == held_out:
            break
    topic = "damage" if screen else key
    order = rng.randint(100, 9999)
    named = rng.choice((f"Order #{order}", f"My order {order}", f"Order {order}", "My order", f"Order no. {order}"))
    parts = [
        phrase.format(
            x=product,
            y=rng.choice([other for other in OTHERS if other != product]),
            n=rng.randint(2, 9),
            o=named if phrase.startswith("{o}") else named.replace("My", "my").replace("Order", "order"),
        )
    ]
    wish = rng.choice((*WISHES, None)) if topic in FAULTS else None
    mood = 0 if topic == "praise" else rng.randrange(4)
    urgency = None if topic == "praise" else rng.choice((None, 0, 1, 2, 3))
    again, contacts = rng.choice(AGAIN) if topic != "praise" and rng.random() < 0.35 else ("", 0)
    threat = mood >= 2 and rng.random() < 0.4
    tail = [rng.choice(WISHES[wish]).format(x=product)] if wish else []
    tail += [rng.choice(URGENCY[urgency])] if urgency is not None else []
    tail += [rng.choice(MOODS[mood])] if mood or rng.random() < 0.6 else []
    tail += [again] if again else []
    tail += [rng.choice(THREATS)] if threat else []
    tail += [rng.choice(ORDER_NUMBERS).format(order)] if rng.random() < 0.3 else []
    tail += rng.sample(FILLERS, rng.choice((0, 0, 1, 2)))
    rng.shuffle(tail)
    parts += tail
    if rng.random() < 0.25:
        rng.shuffle(parts)
    if rng.random() < 0.4:
        parts.insert(0, rng.choice(OPENINGS))
    text = " ".join(parts)
    return Message(text, order if str(order) in text else None, product, topic, wish, urgency, mood, contacts, threat)


def state_of(rng: random.Random, message: Message) -> str | dict:
    """The message as text, or as the ticket that a shop's system might hold."""
    if rng.random() < 0.8:
        return message.text
    ticket: dict = {"channel": rng.choice(("mail", "chat", "phone")), "message": message.text}
    if rng.random() < 0.5:
        ticket = {"ticket": rng.randint(1, 99999), **ticket}
    return ticket


def draw_questions(rng: random.Random, message: Message, most: int) -> list[Asked]:
    """Up to `most` different questions."""
    makers = [_urgent, _wants, _broken, _arrived, _wrote_before, _angry, _about, _about, _action, _action,
              _mood, _mood, _how_urgent, _contacts, _order_named]  # fmt: skip
    asked: dict[str, Asked] = {}
    for make in rng.sample(makers, len(makers)) * 2:
        one = make(rng, message)
        if one is not None and len(asked) < most:
            asked.setdefault(str(one.question.instructions) + one.family, one)
    return list(asked.values())


def _urgent(rng: random.Random, message: Message) -> Asked | None:
    text, least, no = rng.choice((
        ("Does this need a reply within the hour?", 3, "it can wait longer than an hour"),
        ("Is it extremely urgent?", 3, "it is not that urgent"),
        ("Must this be answered today?", 2, "it can wait until tomorrow"),
        ("Does the customer need an answer today at the latest?", 2, "there is more time"),
    ))  # fmt: skip
    yes = "it needs a reply within the hour" if least == 3 else "it needs a reply today"
    urgency = message.urgency
    if (urgency is None or urgency < least) and rng.random() < 0.5:
        return None
    return yes_no(rng, (urgency or 0) >= least, text, yes=yes, no=no, family="urgent")


def _wants(rng: random.Random, message: Message) -> Asked | None:
    wish, text, yes = rng.choice((
        ("refund", "Does the customer want the money back?", "the customer wants a refund"),
        ("refund", "Is the customer asking for a refund?", "the customer asks for a refund"),
        ("replacement", "Does the customer want a new one?", "the customer wants a replacement"),
        ("replacement", "Is the customer asking for a replacement?", "the customer asks for a replacement"),
    ))  # fmt: skip
    if message.topic == "cancellation" or (message.wish is None and rng.random() < 0.7):
        return None
    return yes_no(rng, message.wish == wish, text, yes=yes, no=yes.replace("wants", "does not want").replace(
        "asks", "does not ask"), family="wants")  # fmt: skip


def _broken(rng: random.Random, message: Message) -> Asked | None:
    faulty = message.topic in ("damage", "defect")
    if not faulty and rng.random() < 0.6:
        return None
    text = rng.choice(
        ("Is something broken?", "Is the product damaged or out of order?", "Is there a fault in the product?")
    )
    return yes_no(
        rng, faulty, text, yes="the product is broken or does not work", no="nothing is broken", family="broken"
    )


def _arrived(rng: random.Random, message: Message) -> Asked | None:
    if message.topic not in ARRIVED:
        return None
    text = rng.choice(
        ("Has the order arrived?", "Did the customer receive the parcel?", "Has the product been delivered?")
    )
    return yes_no(rng, ARRIVED[message.topic], text, yes="the parcel has arrived", no="nothing has arrived yet",
                  family="arrived")  # fmt: skip


def _wrote_before(rng: random.Random, message: Message) -> Asked | None:
    if not message.contacts and rng.random() < 0.5:
        return None
    text = rng.choice(("Has the customer contacted us before?", "Is this a repeated complaint?",
                       "Did the customer write or call earlier?"))  # fmt: skip
    return yes_no(rng, message.contacts > 0, text, yes="the customer contacted us before", no="it is the first contact",
                  family="wrote_before")  # fmt: skip


def _angry(rng: random.Random, message: Message) -> Asked:
    text = rng.choice(("Is the customer angry?", "Does the customer sound angry?", "Is this an angry message?"))
    return yes_no(rng, message.mood >= 2, text, yes="the customer is angry or furious", no="the customer is not angry",
                  family="angry")  # fmt: skip


def _order_named(rng: random.Random, message: Message) -> Asked:
    text = rng.choice(("Does the message give an order number?", "Is an order number mentioned?"))
    return yes_no(rng, message.order is not None, text, yes="there is an order number", no="no order number is given",
                  family="order_named")  # fmt: skip


def _about(rng: random.Random, message: Message) -> Asked:
    others = [topic for topic in TOPIC_MEANING if topic != message.topic]
    text = rng.choice(("What is the message about?", "What is the topic?", "Which team should read this?",
                       "What does the customer write about?"))  # fmt: skip
    return choice(rng, message.topic, others, text, says=TOPIC_MEANING.__getitem__, family="about")


def _action(rng: random.Random, message: Message) -> Asked:
    """Threats go to a manager; else the wish decides, or the topic. A fault without a wish may be put right either way,
    so that its gold answer is a coin's when both ways are on offer."""
    open_to_both = False
    if message.threat:
        gold = "escalate"
    elif message.topic not in FAULTS:
        gold = ACTION_OF_TOPIC[message.topic]
    elif message.wish:
        gold = {"refund": "refund", "replacement": "replace"}[message.wish]
    else:
        gold = rng.choice(("refund", "replace"))
        open_to_both = True
    others = [action for action in ACTION_MEANING if action != gold]
    text = rng.choice(("What should support do next?", "What is the next step?", "What should we do?",
                       "Which action fits best?"))  # fmt: skip
    return choice(rng, gold, others, text, says=ACTION_MEANING.__getitem__, family="action", certain=not open_to_both)


def _mood(rng: random.Random, message: Message) -> Asked | None:
    text = rng.choice(("How angry is the customer?", "What is the mood of the customer?", "How angry does this sound?"))
    levels = rng.randint(2, 4)
    if levels == 2:
        if message.mood == 1:
            return None
        return score(
            int(message.mood >= 2), rng.choice((("calm", "angry"), ("friendly", "angry"))), text, family="mood"
        )
    if levels == 3:
        three = rng.choice((("calm", "annoyed", "angry"), ("friendly", "a bit unhappy", "very angry")))
        return score(min(message.mood, 2), three, text, family="mood")
    return score(message.mood, rng.choice(MOOD_LEVELS), text, family="mood")


def _how_urgent(rng: random.Random, message: Message) -> Asked | None:
    if message.urgency is None:
        return None
    text = rng.choice(("How urgent is this?", "How soon is an answer needed?", "How quickly should we reply?"))
    return score(message.urgency, rng.choice(URGENCY_LEVELS), text, family="urgency")


def _contacts(rng: random.Random, message: Message) -> Asked | None:
    if not message.contacts and rng.random() < 0.6:
        return None
    text = rng.choice(("How often did the customer contact us before?", "How many earlier contacts were there?"))
    levels = rng.choice(
        (("never", "once", "twice", "three times"), ("0", "1", "2", "3"), ("none", "one", "two", "three"))
    )
    return score(message.contacts, levels, text, family="contacts")
