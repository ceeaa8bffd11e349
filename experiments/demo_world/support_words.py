"""Phrases of the customer-support world. Every phrase says one thing; `support` puts a message together from them."""

SCREENS = ("phone", "laptop", "tablet", "monitor", "camera", "smart watch", "television", "game console")
OTHERS = (
    "kettle", "lamp", "chair", "jacket", "backpack", "printer", "keyboard", "toaster", "blender", "bicycle", "table",
    "vacuum cleaner", "speaker", "coffee machine", "suitcase", "headset", "clock", "drill", "tent", "mirror",
)  # fmt: skip
PRODUCTS = SCREENS + OTHERS

# Topic -> phrases. {x} is the product, {y} another one, {o} names the order, {n} a number of days.
TOPICS = {
    "damage": (
        "{o} arrived with a broken part.", "The {x} arrived broken.", "The {x} came with a big crack in it.",
        "My {x} was damaged when I opened the box.", "The box was crushed and the {x} inside is dented.",
        "The {x} you sent me is scratched all over.", "{o} came in pieces.",
        "When I unpacked the {x}, one side was split.",
        "{o} arrived and the {x} is smashed.", "The {x} from {o} has a bent frame and a loose part.",
        "I just opened the parcel and the {x} is cracked.", "Unfortunately the {x} was delivered with a dent.",
    ),
    "damage of a screen": (
        "{o} arrived with a cracked screen.", "The {x} arrived with a cracked screen.",
        "The screen of my new {x} is broken.", "The display of the {x} has a crack from one side to the other.",
        "{o} came with a shattered display.", "The glass of the {x} was broken when it came.",
    ),
    "defect": (
        "The {x} does not turn on.", "The {x} stopped working after {n} days.",
        "My {x} switches itself off all the time.",
        "The {x} makes a loud noise and then stops.", "The {x} worked for {n} days and now it is dead.",
        "The battery of the {x} does not charge any more.", "The {x} from {o} has never worked.",
        "Whatever I do, the {x} will not start.", "After {n} days the {x} failed.",
        "The {x} gets far too hot and then dies.",
    ),
    "delivery": (
        "{o} has not arrived yet.", "I am still waiting for my {x}.", "{o} is {n} days late.",
        "Where is my parcel?", "The tracking page has not changed for {n} days.", "My {x} was due {n} days ago.",
        "The courier never came with {o}.", "It has been {n} days and there is no sign of the {x}.",
        "{o} still has not been shipped.", "The {x} I bought has not been delivered.",
    ),
    "wrong item": (
        "I ordered a {x} and got a {y}.", "{o} was a {x}, but there is a {y} in the box.",
        "You sent me a {y} instead of the {x}.", "This is the wrong {x}, I chose another model.",
        "The {x} has the wrong colour.", "The {x} in the parcel is not the size that I ordered.",
        "Instead of a {x} I received a {y}.", "I received somebody else's {y}.",
    ),
    "payment": (
        "I was charged twice for {o}.", "The invoice for the {x} is wrong.",
        "You took the money for the {x} two times.",
        "My card was billed for a {x} that I never bought.", "The price on the bill is higher than in the shop.",
        "The discount was not taken off {o}.", "There is a payment on my account that I do not know.",
        "{o} was paid, but your site says it was not.",
    ),
    "account": (
        "I cannot log in to my account.", "The password reset mail never comes.", "My account is locked.",
        "Your site says that my user name does not exist.", "I forgot my password.", "How do I change my mail address?",
        "The login page shows an error.", "Somebody else is using my account.",
    ),
    "praise": (
        "I love my new {x}.", "The {x} works perfectly.", "{o} came early and everything is fine.",
        "What a great {x}!", "The {x} is even better than I had hoped.", "Your team did a wonderful job with {o}.",
        "Just a note to say that the {x} is excellent.", "I am very happy with the {x}.",
    ),
    "question": (
        "Is the {x} also sold in black?", "Do you ship the {x} abroad?", "How long is the warranty of the {x}?",
        "When will the {x} be back in stock?", "Which batteries does the {x} need?", "How heavy is the {x}?",
        "Can I pick up the {x} in your shop?", "Does the {x} come with a cable?",
    ),
    "cancellation": (
        "Please cancel {o}.", "I no longer need the {x}, please stop the order.",
        "I want to cancel my order of the {x}.",
        "{o} was a mistake, do not send it.", "Please do not ship the {x}, I changed my mind.",
        "I ordered the {x} by accident and want to cancel it.",
    ),
}  # fmt: skip

WISHES = {
    "refund": (
        "I want my money back.", "Please refund me.", "I would like a refund.", "Please return the money to my card.",
        "I expect a full refund.", "Can I get my money back?", "Give me my money back.", "I am asking for a refund.",
    ),
    "replacement": (
        "Please send me a new one.", "I would like a replacement.", "Can you send another one?",
        "I want you to exchange it.", "Please swap it for one that works.", "I need a new {x} instead.",
        "Could I have a replacement?", "Send me a proper one.",
    ),
}  # fmt: skip

URGENCY = (
    ("There is no hurry.", "Take your time.", "It is not urgent.", "Answer whenever you can.", "This can wait."),
    ("I need an answer this week.", "Please reply in the next few days.", "It should be solved before the weekend.",
     "Please let me know by Friday.", "I leave in five days, so before then, please."),
    ("I need an answer today.", "Please reply today.", "It has to be solved by tonight.",
     "My trip starts tomorrow morning.",
     "Tomorrow is too late."),
    ("I need a reply within the hour.", "Answer me right now.", "This is extremely urgent.", "I need help immediately.",
     "My train leaves in an hour.", "Reply at once.", "I am standing at the airport and need it now."),
)  # fmt: skip

MOODS = (
    ("Thank you very much.", "Kind regards.", "Thanks in advance.", "Have a nice day.", "Thanks for your help.",
     "I am sure we can sort it out."),
    ("This is a bit disappointing.", "I am not happy about this.", "That is annoying.", "I had expected better.",
     "I am getting a little impatient.", "It is rather frustrating."),
    ("I am really angry.", "This is unacceptable.", "I have had enough of this.", "What kind of service is this?",
     "I am very upset.", "That makes me angry."),
    ("This is an outrage!", "I am furious!", "You are the worst shop in the world!", "Never again, you crooks!",
     "I am boiling with rage!", "What a disgrace, you liars!"),
)  # fmt: skip

AGAIN = (
    ("I wrote to you last week.", 1), ("This is the second time I write.", 1), ("I have already called you once.", 1),
    ("I have called you twice already.", 2), ("This is my third message.", 2),
    ("I wrote two times and got no answer.", 2),
    ("I have now written to you three times.", 3), ("This is my fourth message about this.", 3),
)  # fmt: skip

THREATS = (
    "My lawyer will contact you.", "I will take you to court.", "I want to speak to your manager.",
    "I will report you to the police.", "I will tell the newspapers about this.", "Let me talk to your boss.",
    "The consumer office will hear of this.",
)  # fmt: skip

ORDER_NUMBERS = (
    "My order number is {}.",
    "Order number: {}.",
    "It is about order {}.",
    "The number of the order is {}.",
)
OPENINGS = ("Hello,", "Hi,", "Dear team,", "Good morning,", "To whom it may concern:", "Hey,", "Dear support,")
FILLERS = (
    "I bought it in your online shop.", "It was a birthday present.", "I am a customer since 2015.",
    "My neighbour has the same one.",
    "I paid by card.", "I live on the third floor.", "A friend told me about your shop.", "I use it at work.",
    "It is for my daughter.", "I chose it because of the price.", "I have bought from you before.",
)  # fmt: skip
